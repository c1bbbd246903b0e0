"""`lrfind` from Python: the same document as the command's, and a module of the caller's left as it is."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.models.importspec import import_object
from modelscope_cli.shell.app import run

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
OF_THE_CALL = {"argv", "elapsed_ms", "out_dir", "files"}
SMALL = {"size": 32, "pictures": 40, "batch": 8, "steps": 5}
FLAGS = "--size 32 --pictures 40 --batch 8 --steps 5 --out run --json -q"
MODELS = {
    "zoo": (("-m", "squeezenet1_1"), {"model": "squeezenet1_1"}),
    "module": (("-m", TINY, "--linear", "--to", "0.5"), {"model": TINY, "linear": True, "high": 0.5}),
    "checkpoint": (
        ("-m", TINY, "-c", f"{SAMPLES}/tiny_resnet.safetensors"),
        {"model": TINY, "checkpoint": SAMPLES / "tiny_resnet.safetensors"},
    ),
}
LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
generator = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10)
loaders = DataLoader(data, batch_size=8), DataLoader(data, batch_size=32)
"""


def comparable(document):
    return {key: value for key, value in document.items() if key not in OF_THE_CALL}


@pytest.mark.parametrize("kind", MODELS)
def test_function_and_command_give_the_same_document(capsys, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    argv, keywords = MODELS[kind]
    assert run(["lrfind", *FLAGS.split(), *argv]) == 0
    document = json.loads(capsys.readouterr().out)
    record = ms.lrfind(**{**SMALL, **keywords})
    assert capsys.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    assert comparable(json.loads(json.dumps(record.to_dict()))) == comparable(document)
    again = ms.lrfind(**{**SMALL, **keywords}, out="mine")
    assert {file.name for file in (tmp_path / "mine").iterdir()} == set(again.files)


def test_loaders_by_name_are_those_of_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(LOADERS)
    assert run(["lrfind", *FLAGS.split(), "-m", TINY, "--loaders", "own.py:loaders"]) == 0
    document = json.loads(capsys.readouterr().out)
    record = ms.lrfind(TINY, loaders="own.py:loaders", steps=5)
    assert comparable(json.loads(json.dumps(record.to_dict()))) == comparable(document)


def test_a_module_and_a_loader_are_left_as_they_were(unchanged, capsys):
    torch.manual_seed(0)
    model = import_object(TINY, "--model")().double()
    model(torch.randn(2, 3, 32, 32, dtype=torch.float64)).sum().backward()
    model.block1.eval()
    data = TensorDataset(torch.randn(32, 3, 32, 32), torch.arange(32) % 10)
    loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    check, order = unchanged(model), loader.generator.get_state()
    record = ms.lrfind(model, loader, steps=6, norm_layer="group")
    check()
    assert torch.equal(order, loader.generator.get_state())
    assert capsys.readouterr() == ("", "")
    assert record.restored.weights
    assert record.data == "DataLoader"
    assert record.run.input.shape == ((8, 3, 32, 32),)


@pytest.mark.parametrize(("keywords", "words"), [
    ({"low": 1.0, "high": 0.1}, "--from 1 --to 0.1"),
    ({"steps": 2}, "the least is 3"),
    ({"smoothing": 1.0}, "smoothing=1"),
    ({"loaders": "own.py:loaders", "data": "folder"}, "exclude each other"),
])  # fmt: skip
def test_refusals(keywords, words):
    with pytest.raises(UsageError) as caught:
        ms.lrfind(TINY, **keywords)
    assert words in caught.value.message
