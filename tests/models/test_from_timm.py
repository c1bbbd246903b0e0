"""Models of timm by name: built as timm builds them, with the weights of the hub's own cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.request import ModelRequest

timm = pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")


def asked(model: str, **said: object) -> ModelRequest:
    return ModelRequest(model, device="cpu", progress=False, **said)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def publish(hub: Path) -> Callable[..., Path]:
    """Return a function that puts a file into the cache as the hub's library lays it out."""

    def put(repository: str, file: str, save: Callable[[Path], object]) -> Path:
        folder = hub / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(snapshot.name)
        save(snapshot / file)
        return snapshot / file

    return put


def test_it_is_what_timm_makes() -> None:
    torch.manual_seed(3)
    theirs = timm.create_model("resnet18d").eval()
    ours = load_model(asked("timm:resnet18d", weights="none", seed=3))
    assert ours.info.source == "timm"
    assert ours.info.weights.resolved == "random"
    state = ours.module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize("name", ["resnet18d", "vit_tiny_patch16_224"])
def test_a_summary_counts_as_timm_does(name: str) -> None:
    record = ms.summary(f"timm:{name}")
    assert record.totals.params == sum(p.numel() for p in timm.create_model(name).parameters())
    assert load_skeleton(asked(f"timm:{name}")).device.type == "meta"


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_weights_are_those_of_the_cache(suffix: str, publish: Callable[..., Path]) -> None:
    from safetensors.torch import save_file

    theirs = timm.create_model("resnet18d")
    save = save_file if suffix == "safetensors" else torch.save
    file = "model.safetensors" if suffix == "safetensors" else "pytorch_model.bin"
    path = publish("timm/resnet18d.ra2_in1k", file, lambda to: save(theirs.state_dict(), to))
    loaded = load_model(asked("timm:resnet18d"))
    assert loaded.info.weights.resolved == "ra2_in1k"
    assert loaded.info.weights.origin == "cache"
    assert str(path) in loaded.notes[0]
    state = loaded.module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())
    assert "state_dict" not in loaded.module.pretrained_cfg


def test_without_a_file_auto_is_random_and_says_so() -> None:
    loaded = load_model(asked("timm:resnet18d"))
    assert loaded.info.weights.resolved == "random"
    assert [warning.code for warning in loaded.warnings] == ["random_weights"]
    assert "offline and not in the cache" in loaded.warnings[0].message


@pytest.mark.parametrize("weights", ["DEFAULT", "ra2_in1k"])
def test_without_a_file_weights_that_were_asked_for_are_an_error(weights: str) -> None:
    with pytest.raises(CannotRunError, match="offline and not in the cache"):
        load_model(asked("timm:resnet18d", weights=weights))


@pytest.mark.parametrize(
    ("model", "weights"), [("timm:resnet18d.no_such", "auto"), ("timm:resnet18d", "no_such")]
)
def test_a_tag_that_is_not_there_names_those_that_are(model: str, weights: str) -> None:
    with pytest.raises(UsageError, match="has no weights 'no_such', only ra2_in1k"):
        load_model(asked(model, weights=weights))


@pytest.mark.parametrize("argument", ["pretrained=true", "checkpoint_path=x.pth", "num_classes=3"])
def test_an_argument_that_is_an_option_is_refused(argument: str) -> None:
    with pytest.raises(UsageError, match="a separate option"):
        load_model(asked("timm:resnet18d", model_args=(argument,)))


def test_the_list_has_what_timm_publishes() -> None:
    entries = {entry.name: entry for entry in ms.list_models("timm:resnet50*").models}
    assert set(entries) == {f"timm:{name}" for name in timm.list_models("resnet50*")}
    published = timm.models.get_pretrained_cfg("resnet50d")
    entry = entries["timm:resnet50d"]
    assert entry.input_shapes == ((1, *published.input_size),)
    assert entry.default_weights == published.tag
    assert entry.default_weights in entry.weights
    assert entry.family == "resnet"
    assert entry.params is None
