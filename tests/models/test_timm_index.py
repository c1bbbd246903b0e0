"""Checkpoints of timm's models are recognised by names and shapes alone."""

import lzma
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import modelscope_cli as ms
from modelscope_cli.checkpoints.identify import fingerprint, identify, timm_architectures
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.model_of_checkpoint import recognise
from modelscope_cli.models.request import ModelRequest


@pytest.fixture
def timm() -> Any:
    return pytest.importorskip("timm")


def shapes_of(model: Any, prefix: str = "") -> dict[str, Any]:
    return {f"{prefix}{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def test_the_index_has_every_architecture_of_timm(timm: Any) -> None:
    from timm_fingerprints import FILE

    _, *lines = lzma.decompress(FILE.read_bytes()).decode().splitlines()
    keys, names = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert len(set(keys)) == len(keys)
    assert sorted(" ".join(names).split()) == sorted(timm.list_models())


# One of each kind of head: a linear layer, two, a convolution, several.
HEADS = ("test_vit", "levit_128s", "dla46_c", "crossvit_9_240")


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("n", [None, 3])
def test_it_is_recognised_with_any_number_of_classes(timm: Any, name: str, n: int | None) -> None:
    from timm_fingerprints import shapes_of as skeleton_of

    shapes = skeleton_of(name, n)
    prefix = "module." if n else ""
    found = identify({f"{prefix}{key}": shape for key, shape in shapes.items()})
    assert f"timm:{name}" in found.candidates
    assert found.num_classes == (n or 1000)
    assert (found.score, found.prefix) == (1.0, prefix)


def test_one_shape_or_name_that_differs_is_another_model(timm: Any) -> None:
    shapes = shapes_of(timm.create_model("test_vit"))
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith("num_batches_tracked")}
    assert timm_architectures(shapes) == ("test_vit",)
    assert timm_architectures({**shapes, "norm.weight": (65,)}) == ()
    assert timm_architectures({**shapes, "norm.scale": (64,)}) == ()
    assert timm_architectures({name: shape for name, shape in shapes.items() if name != "norm.bias"}) == ()


def test_what_torchvision_has_too_stays_torchvisions(timm: Any) -> None:
    found = identify(shapes_of(timm.create_model("resnet18")))
    assert found.name == "resnet18"


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_bare_state_dict_is_loaded_as_the_model_it_is_of(timm: Any, tmp_path: Path, suffix: str) -> None:
    model = timm.create_model("test_convnext", num_classes=4)
    file = tmp_path / f"net.{suffix}"
    save_file(model.state_dict(), file) if suffix == "safetensors" else torch.save(model.state_dict(), file)
    for load in (load_model, load_skeleton):
        loaded = load(ModelRequest(str(file), device="cpu"))
        assert loaded.info.name == "timm:test_convnext"
        assert loaded.notes[0] == f"model: timm:test_convnext, by the names and shapes in '{file}'"
        assert loaded.module.num_classes == 4
    state = load_model(ModelRequest(str(file), device="cpu")).module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert ms.weights(file).architecture.name == "timm:test_convnext"


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_a_checkpoint_without_its_head(timm: Any, tmp_path: Path, name: str) -> None:
    state = timm.create_model(name, num_classes=0).state_dict()
    state = {key: tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "net.pth")
    loaded = load_model(ModelRequest(str(tmp_path / "net.pth"), device="cpu"))
    assert loaded.module.num_classes == 0
    assert identify(read_contents(tmp_path / "net.pth").shapes()).num_classes is None
    with pytest.raises(CannotRunError, match="has no head"):
        ms.doctor(loaded, Image.new("RGB", (50, 40)))


def test_where_several_fit_the_name_of_the_file_decides_or_the_plainest_is_taken(
    timm: Any, tmp_path: Path
) -> None:
    from timm_fingerprints import shapes_of as skeleton_of

    shapes = skeleton_of("tf_efficientnet_b0", 3)
    state = {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    for called, model in [
        ("net.pth", "efficientnet_b0"),
        ("tf_efficientnet_b0-1234.pth", "tf_efficientnet_b0"),
    ]:
        torch.save(state, tmp_path / called)
        request, (note,) = recognise(ModelRequest(str(tmp_path / called)))
        assert request.model == f"timm:{model}"
        assert "by the names and shapes in" in note
        assert "timm:efficientnet_blur_b0" in note
    found = ms.weights(tmp_path / "net.pth").architecture
    assert found.name is None
    assert found.candidates[:2] == ("timm:efficientnet_b0", "timm:tf_efficientnet_b0")


def test_the_other_of_two_that_fit_is_named(timm: Any, tmp_path: Path) -> None:
    module = timm.create_model("test_efficientnet_ln", num_classes=3)
    torch.save(module.state_dict(), tmp_path / "net.pth")
    request, (note,) = recognise(ModelRequest(str(tmp_path / "net.pth")))
    names = {"timm:test_efficientnet_gn", "timm:test_efficientnet_ln"}
    (other,) = names - {request.model}
    assert f"they also fit {other}: --model NAME" in note


def test_a_fingerprint_leaves_out_the_head_only() -> None:
    shapes = {"b": (2, 3), "a": (1,), "head": (5, 3)}
    assert fingerprint(shapes, {"head"}) == fingerprint({"a": (1,), "b": (2, 3)}, {"head"})
    assert fingerprint(shapes, {"head"}) != fingerprint({**shapes, "b": (3, 2)}, {"head"})
    assert fingerprint({"a": (1, 1)}, ()) != fingerprint({"a": (11,)}, ())
