"""Weights out of a cache and off a server of the test's own."""

import functools
import http.server
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models import zoo
from modelscope_cli.models.architecture import seeded
from modelscope_cli.models.load import load_model
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.models.zoo import choose_weights

NAME = "squeezenet1_1"  # 5 MB


@pytest.fixture(scope="module")
def trained() -> dict[str, torch.Tensor]:
    with seeded(123):
        return models.squeezenet1_1().state_dict()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def load(**kwargs: object) -> LoadedModel:
    return load_model(ModelRequest(**{"model": NAME, "device": "cpu", "progress": False, **kwargs}))  # type: ignore[arg-type]


def assert_holds(module: nn.Module, state: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(module.state_dict()), dict(state), rtol=0, atol=0)


def test_auto_takes_the_cached_file_without_asking_anyone(
    cache: Path, publish: Callable[..., Path], trained: dict[str, torch.Tensor]
) -> None:
    file = shutil.move(publish(NAME, trained), cache)
    loaded = load()
    assert_holds(loaded.module, trained)
    info = loaded.info.weights
    assert (info.requested, info.resolved, info.origin) == ("auto", "IMAGENET1K_V1", "cache")
    assert info.sha256 is not None
    assert info.sha256.startswith(Path(file).stem[-8:])
    assert loaded.categories is not None
    assert len(loaded.categories) == 1000
    assert loaded.transforms.crop_size == [224]  # type: ignore[union-attr]
    assert not loaded.module.training
    assert not loaded.warnings
    assert any(note.startswith("weights: IMAGENET1K_V1 (auto; from the cache") for note in loaded.notes)


def test_what_is_not_cached_is_downloaded_into_the_cache(
    server: str,
    cache: Path,
    publish: Callable[..., Path],
    trained: dict[str, torch.Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = publish(NAME, trained, server)
    loaded = load(weights="default", progress=True)
    assert_holds(loaded.module, trained)
    assert loaded.info.weights.origin == "download"
    assert (cache / file.name).read_bytes() == file.read_bytes()
    assert capsys.readouterr().out == ""
    assert socket.getdefaulttimeout() is None
    assert load().info.weights.origin == "cache"


def test_auto_without_a_network_is_random_and_warns(publish: Callable[..., Path]) -> None:
    publish(NAME, {})  # at a port where nobody listens
    loaded = load()
    assert loaded.info.weights.resolved == "random"
    assert loaded.info.weights.origin == "seeded random"
    assert [warning.code for warning in loaded.warnings] == ["random_weights"]
    assert "refused" in loaded.warnings[0].message
    assert_holds(loaded.module, load(weights="none").module.state_dict())


def test_offline_never_touches_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *args, **kwargs: pytest.fail("downloads"))
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    loaded = load()
    assert "offline" in loaded.warnings[0].message


@pytest.mark.parametrize("weights", ["IMAGENET1K_V1", "SqueezeNet1_1_Weights.IMAGENET1K_V1", "DEFAULT"])
def test_explicit_weights_that_cannot_be_had_are_an_error(
    weights: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    with pytest.raises(CannotRunError) as caught:
        load(weights=weights)
    assert "'IMAGENET1K_V1'" in caught.value.message
    assert "--weights none" in (caught.value.hint or "")
    assert str(cache) in (caught.value.hint or "")


def test_a_silent_server_times_out(publish: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        publish(NAME, {}, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "timed out" in load().warnings[0].message


def test_a_download_with_the_wrong_hash_is_an_error_and_leaves_nothing(
    server: str, cache: Path, publish: Callable[..., Path], trained: dict[str, torch.Tensor]
) -> None:
    file = publish(NAME, trained, server)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CannotRunError, match=r"download of 'http.*' is damaged"):
        load()
    assert not list(cache.iterdir())


def test_a_damaged_cached_file_is_never_replaced_by_random(
    cache: Path, publish: Callable[..., Path], trained: dict[str, torch.Tensor]
) -> None:
    file = cache / publish(NAME, trained).name
    file.write_bytes(b"PK\x03\x04 half")
    with pytest.raises(CannotRunError) as caught:
        load()
    assert f"'{file}' are damaged" in caught.value.message
    assert caught.value.hint == f"rm {file}"


def test_number_of_classes_gets_a_fresh_head_and_keeps_the_rest(
    cache: Path, publish: Callable[..., Path], trained: dict[str, torch.Tensor]
) -> None:
    shutil.move(publish(NAME, trained), cache)
    loaded = load(num_classes=7)
    state = loaded.module.state_dict()
    head = {"classifier.1.weight", "classifier.1.bias"}
    assert state["classifier.1.weight"].shape == (7, 512, 1, 1)
    for name in state.keys() - head:
        assert torch.equal(state[name], trained[name]), name
    assert any("classifier.1.weight, classifier.1.bias" in note for note in loaded.notes)
    assert loaded.categories is None
    assert torch.equal(
        load(num_classes=7).module.state_dict()["classifier.1.weight"], state["classifier.1.weight"]
    )
    assert load(num_classes=1000).categories is not None


def test_a_fresh_detection_head_knows_its_classes(cache: Path, publish: Callable[..., Path]) -> None:
    name = "ssdlite320_mobilenet_v3_large"
    builder = models.get_model_builder(name)
    with seeded(0):
        state = builder(weights=None, weights_backbone=None).state_dict()
    shutil.move(publish(name, state), cache)
    loaded = load(model=name, num_classes=5)
    with torch.no_grad():
        outputs = loaded.module.eval()([torch.rand(3, 64, 64)])
    assert (outputs[0]["labels"] < 5).all()
    assert loaded.module.head.classification_head.num_columns == 5  # type: ignore[union-attr]


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no fbgemm here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # making the weights warns
def test_quantized_weights_make_a_quantized_model(cache: Path, publish: Callable[..., Path]) -> None:
    name = "quantized_shufflenet_v2_x0_5"
    state = models.quantization.shufflenet_v2_x0_5(quantize=True).state_dict()
    shutil.move(publish(name, state), cache)
    loaded = load(model=name)
    assert "Quantized" in repr(loaded.module)
    assert loaded.module(torch.rand(1, 3, 64, 64)).shape == (1, 1000)
    with pytest.raises(CannotRunError, match="float32 only, not on 'cpu' in 'float16'"):
        load(model=name, dtype="float16")
    with pytest.raises(UsageError, match="cannot take --num-classes 4"):
        load(model=name, num_classes=4)


def test_unknown_weights_list_those_there_are_and_the_hint_takes_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load(model="resnet50", weights="imagenet_v2")
    assert "'imagenet_v2', only IMAGENET1K_V1, IMAGENET1K_V2" in caught.value.message
    assert caught.value.hint == "--weights IMAGENET1K_V2"


def test_quantized_names_also_have_the_weights_of_their_float_sibling() -> None:
    assert choose_weights("quantized_resnet50", "IMAGENET1K_V1") is models.ResNet50_Weights.IMAGENET1K_V1
    assert "backend" in choose_weights("quantized_resnet50", "auto").meta
