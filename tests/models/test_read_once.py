"""A checkpoint given as the model is read and identified once, from the command line to the loaded model."""

from collections import Counter

import pytest
import torch
import torchvision
from safetensors.torch import save_file

import modelscope_cli as ms
from modelscope_cli.checkpoints import tensors
from modelscope_cli.models import model_of_checkpoint
from modelscope_cli.shell.app import run


class Settings:
    """Torch does not load it as weights only, so such a file is read from its bytes."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same weights in every way that is read by a path of its own."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    state = torchvision.models.squeezenet1_1(num_classes=10).state_dict()
    save_file(state, folder / "a.safetensors")
    torch.save({"state_dict": state}, folder / "a.pt")
    torch.save({"state_dict": state, "settings": Settings()}, folder / "foreign.pt")
    (folder / "shards").mkdir()
    save_file(state, folder / "shards" / "model-1.safetensors")
    names = ", ".join(f'"{name}": "model-1.safetensors"' for name in state)
    (folder / "shards" / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{names}}}}}')
    return {
        "safetensors": folder / "a.safetensors",
        "torch": folder / "a.pt",
        "foreign": folder / "foreign.pt",
        "shards": folder / "shards" / "model.safetensors.index.json",
    }


@pytest.fixture
def read(monkeypatch):
    """Count what is read of headers, and what is identified, in the room that loads models."""
    counts = Counter()
    for module in (model_of_checkpoint, tensors, tensors):
        for name in ("read_contents", "identify"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, _counting(getattr(module, name), counts, name))
    return counts


def _counting(function, counts, name):
    def count(*arguments):
        counts[name] += 1
        return function(*arguments)

    return count


ONCE = {"read_contents": 1, "identify": 1}


@pytest.mark.parametrize("kind", ["safetensors", "torch", "foreign", "shards"])
def test_by_a_command(files, read, capsys, kind):
    assert run(["summary", str(files[kind]), "--json"]) == 0
    assert '"name": "squeezenet1_1"' in capsys.readouterr().out
    assert read == ONCE


@pytest.mark.parametrize("kind", ["safetensors", "torch", "foreign", "shards"])
def test_by_a_function(files, read, kind):
    assert ms.load(files[kind]).info.name == "squeezenet1_1"
    assert read == ONCE
