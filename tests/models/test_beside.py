"""Checkpoints that say of which model of timm or transformers they are, themselves or by the file beside them."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.models import hubs
from modelscope_cli.models.hubs import described_beside
from modelscope_cli.models.load import load_model
from modelscope_cli.models.model_of_checkpoint import recognise
from modelscope_cli.models.request import ModelRequest

OF_TIMM = {
    "architecture": "resnet18d",
    "pretrained_cfg": {"input_size": [3, 96, 96], "crop_pct": 0.9, "url": "x"},
}


def beside(folder: Path, config: Any) -> Path:
    """Write a checkpoint of two tensors and a `config.json` beside it."""
    save_file({"fc.weight": torch.zeros(2, 2), "fc.bias": torch.zeros(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder / "model.safetensors"


def test_a_config_of_timm_names_the_model_and_its_preparation(tmp_path: Path) -> None:
    described = described_beside(
        beside(tmp_path, {**OF_TIMM, "model_args": {"in_chans": 1, "num_classes": 4}})
    )
    assert described is not None
    assert described.model == "timm:resnet18d"
    assert described.model_args == (
        "in_chans=1",
        "pretrained_cfg={'input_size': [3, 96, 96], 'crop_pct': 0.9}",
    )
    assert not described.is_whole


def test_a_config_of_transformers_is_read_with_its_folder(tmp_path: Path) -> None:
    file = beside(tmp_path, {"model_type": "vit"})
    for path in (tmp_path, file):
        described = described_beside(path)
        assert described is not None
        assert described.model == f"hf:{tmp_path}"
        assert described.is_whole
    other = file.rename(tmp_path / "another.safetensors")
    assert described_beside(other) is None


@pytest.mark.parametrize(
    "config", ["", "{", "[1]", "{}", {"architecture": "resnet18"}, {"arch": "x"}, "\xff"]
)
def test_a_config_of_an_unknown_library_is_ignored(tmp_path: Path, config: Any) -> None:
    assert described_beside(beside(tmp_path, config)) is None


@pytest.mark.parametrize(("config", "package"), [(OF_TIMM, "timm"), ({"model_type": "vit"}, "transformers")])
def test_without_the_package_the_error_is_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, package: str
) -> None:
    monkeypatch.setattr(hubs, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"needs the package '{package}'") as caught:
        recognise(ModelRequest(str(beside(tmp_path, config))))
    assert caught.value.hint == f"pip install {package}"


@pytest.fixture
def timm() -> Any:
    return pytest.importorskip("timm")


def test_a_checkpoint_of_a_training_with_timm(timm: Any, tmp_path: Path) -> None:
    model = timm.create_model("test_resnet", num_classes=6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    saver = timm.utils.CheckpointSaver(
        model,
        optimizer,
        args=argparse.Namespace(model="test_resnet"),
        checkpoint_dir=str(tmp_path),
        recovery_dir=str(tmp_path),
    )
    saver.save_checkpoint(0, 1.0)
    loaded = load_model(ModelRequest(str(tmp_path / "last.pth.tar"), device="cpu"))
    assert loaded.info.name == "timm:test_resnet"
    assert loaded.notes[0].startswith("model: timm:test_resnet, by the metadata of")
    state = loaded.module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_what_timm_writes_for_the_hub(timm: Any, tmp_path: Path) -> None:
    model = timm.create_model("test_resnet", num_classes=2)
    model.pretrained_cfg.update(input_size=(3, 64, 64), mean=(0.1, 0.2, 0.3), crop_mode="squash")
    timm.models.save_for_hf(
        model, tmp_path, model_config={"label_names": ["cat", "dog"]}, safe_serialization="both"
    )
    for file in ("", "model.safetensors", "pytorch_model.bin"):
        loaded = load_model(ModelRequest(str(tmp_path / file), device="cpu"))
        assert loaded.info.name == "timm:test_resnet"
        assert loaded.categories == ("cat", "dog")
        assert loaded.transforms.mean == [0.1, 0.2, 0.3]
        assert loaded.transforms.mode == "squash"
        assert torch.equal(loaded.module.fc.weight, model.fc.weight)
    assert ms.summary(tmp_path).run.input.shape == ((1, 3, 64, 64),)


def test_a_folder_of_transformers_is_a_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    for typed in (tmp_path, tmp_path / "model.safetensors"):
        loaded = load_model(ModelRequest(str(typed), device="cpu"))
        assert loaded.info.name == f"hf:{tmp_path}"
        assert loaded.info.weights.resolved == "model.safetensors"
        assert loaded.notes[0] == f"model: hf:{tmp_path}, by the config.json in '{tmp_path}'"
