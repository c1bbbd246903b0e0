"""Headers of safetensors files: where values are, dtypes that torch does not have, and hostile files."""

import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import read_values
from modelscope_cli.errors import CannotRunError


def put(path: Path, header: str | bytes, n_data: int) -> None:
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_data))


def test_values_are_where_the_library_reads_them(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(6.0).reshape(2, 3),
        "a": torch.arange(3, dtype=torch.int8),
        "c": torch.ones(5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    save_file(tensors, tmp_path / "a.safetensors", {"epoch": "3"})
    contents = read_contents(tmp_path / "a.safetensors")
    assert contents.metadata == {"epoch": "3"}
    assert {entry.name: entry.dtype for entry in contents.tensors} == {
        name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()
    }
    assert all(torch.equal(read_values(entry), tensors[entry.name]) for entry in contents.tensors)


@pytest.mark.parametrize("header", [
    '{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,3]}}',
    '{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"y":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}',
    '{"x":{"dtype":"U8","shape":[1048576,1048576,1048576,1048576],"data_offsets":[0,3]}}',
    '{"x":',
    "[]",
])  # fmt: skip
def test_what_the_library_refuses_is_refused_in_a_sentence(tmp_path: Path, header: str) -> None:
    put(tmp_path / "a.safetensors", header, 3)
    with pytest.raises(CannotRunError, match="safetensors"):
        read_contents(tmp_path / "a.safetensors")


@pytest.mark.parametrize("dtype", ["F99", "I4"])
def test_an_unknown_dtype_is_not_damage(tmp_path: Path, dtype: str) -> None:
    put(
        tmp_path / "a.safetensors",
        json.dumps({"x": {"dtype": dtype, "shape": [2], "data_offsets": [0, 1]}}),
        1,
    )
    with pytest.raises(CannotRunError, match=f"cannot be read: the dtype '{dtype}'"):
        read_contents(tmp_path / "a.safetensors")


def test_many_tensors(tmp_path: Path) -> None:
    n = 120_000  # some 14 MB
    header = {
        f"model.layers.{at}.self_attention.query_key_value.weight": {
            "dtype": "U8",
            "shape": [1],
            "data_offsets": [at, at + 1],
        }
        for at in range(n)
    }
    put(tmp_path / "a.safetensors", json.dumps(header, separators=(",", ":")), n)
    assert len(read_contents(tmp_path / "a.safetensors").tensors) == n


def test_a_hostile_header_takes_little_memory(tmp_path: Path) -> None:
    hostile = [
        '{"__metadata__":' + "[]," * 10_000_000,
        '{"a":{"b":[' + "[]," * 10_000_000 + "]}}",
        '{"a":{' * 5_000_000,
    ]
    for header in hostile:
        put(tmp_path / "a.safetensors", header, 0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(CannotRunError):
            read_contents(tmp_path / "a.safetensors")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # kilobytes


def test_a_link_is_followed_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0:0:root")
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(CannotRunError) as caught:
        read_contents(tmp_path / "a.safetensors")
    assert "root:x" not in caught.value.message
    assert "it is text" in caught.value.message
    index = {"weight_map": {"x": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CannotRunError) as caught:
        read_contents(tmp_path)
    assert "root:x" not in caught.value.message
