"""What is described is what torch and safetensors would load."""

import json
import os
import pickle
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, nn

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import read_checkpoint, read_values
from modelscope_cli.errors import CannotRunError

BASE = torch.arange(24.0)
STATE = {
    "a.weight": BASE.reshape(4, 6),
    "a.turned": BASE.reshape(4, 6).T,
    "a.part": BASE[5:9],
    "a.scalar": torch.tensor(7),
    "a.empty": torch.empty(0, 3),
    **{
        f"kinds.{dtype}": torch.ones(3, 2).to(dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64)
    },
    "kinds.float8": torch.ones(4).to(torch.float8_e4m3fn),
    "kinds.uint16": torch.ones(4).to(torch.uint16),
}


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def assert_describes(contents: Contents, state: dict[str, Tensor]) -> None:
    assert {tensor.name for tensor in contents.tensors} == state.keys()
    for entry in contents.tensors:
        tensor = state[entry.name]
        assert entry.shape == tuple(tensor.shape)
        assert entry.dtype == str(tensor.dtype).removeprefix("torch.")
        assert entry.nbytes == tensor.numel() * tensor.element_size()
        values = read_values(entry)
        assert values.dtype == tensor.dtype
        assert torch.equal(values.to(torch.complex128), tensor.to(torch.complex128))


@pytest.mark.parametrize("zip_format", [True, False])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_torch_files(tmp_path: Path, zip_format: bool, protocol: int) -> None:
    path = tmp_path / "a.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=zip_format, pickle_protocol=protocol)
    contents = read_contents(path)
    assert_describes(contents, STATE)
    assert (contents.foreign, contents.beside, contents.note) == ((), {}, None)


@pytest.mark.parametrize("zip_format", [True, False])
def test_a_pickled_module_and_a_training_state(tmp_path: Path, zip_format: bool) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1, bias=False)))
    torch.save(module, tmp_path / "module.pt", _use_new_zipfile_serialization=zip_format)
    contents = read_contents(tmp_path / "module.pt")
    assert_describes(contents, module.state_dict())
    assert "torch.nn.modules.linear.Linear" in contents.foreign

    optimizer = torch.optim.Adam(module.parameters())
    content = {
        "epoch": 3,
        "net": module,
        "optimizer": optimizer.state_dict(),
        "args": Namespace(lr=0.1),
        "x": Runs(),
    }
    torch.save(content, tmp_path / "train.pt", _use_new_zipfile_serialization=zip_format)
    contents = read_contents(tmp_path / "train.pt")
    assert_describes(contents, module.state_dict())
    assert contents.beside["epoch"] == "3"
    assert contents.beside["args"].startswith("argparse.Namespace")
    assert {"argparse.Namespace", f"{os.system.__module__}.system"} <= set(contents.foreign)
    assert contents.note == "using 'net'; not read: epoch, optimizer, args, x"


def sharded(folder: Path, file: str = "a.safetensors") -> Path:
    save_file({"x": torch.ones(2)}, folder / "a.safetensors")
    torch.save({"y": torch.zeros(3)}, folder / "b.bin")
    index = {"metadata": {"total_size": 20}, "weight_map": {"x": file, "y": "b.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json"


def test_shards(tmp_path: Path) -> None:
    state = {"x": torch.ones(2), "y": torch.zeros(3)}
    index = sharded(tmp_path)
    assert_describes(read_contents(index), state)
    assert_describes(read_contents(tmp_path), state)
    torch.testing.assert_close(read_checkpoint(index).state, state)


@pytest.mark.parametrize("file", ["/etc/passwd", "../a.safetensors", "below/../../a.safetensors", "a\0b"])
def test_an_index_stays_in_its_folder(tmp_path: Path, file: str) -> None:
    with pytest.raises(CannotRunError, match="outside its folder"):
        read_contents(sharded(tmp_path, file))


def test_shards_that_are_missing_or_lack_a_tensor(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="is missing"):
        read_contents(sharded(tmp_path, "c.safetensors"))
    with pytest.raises(CannotRunError, match="lacks 'x'"):
        read_contents(sharded(tmp_path, "b.bin"))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(CannotRunError, match="weight_map"):
        read_contents(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    state = {"w": torch.rand(5, 4), "b": torch.ones(3).to(torch.bfloat16)}
    dcp.save({"model": state, "epoch": 3}, checkpoint_id=tmp_path / "d", no_dist=True)
    with pytest.raises(CannotRunError, match="which torch turns into one file") as caught:
        read_checkpoint(tmp_path / "d")
    assert caught.value.hint == (
        f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {tmp_path / 'd'} model.pt"
    )


def test_a_compressed_archive_is_not_unpacked(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(CannotRunError, match="compressed"):
        read_contents(tmp_path / "b.pt")


def test_a_bare_pickle_of_tensors(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(pickle.dumps(STATE))
    with pytest.raises(CannotRunError, match=r"only be read by running 'torch\.storage\._load_from_bytes'"):
        read_contents(tmp_path / "a.pt")
