"""What the safetensors library opens is read, and what it refuses is refused."""

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import read_values
from modelscope_cli.errors import CannotRunError

ENTRY = '{"dtype":"U8","shape":[3],"data_offsets":[0,3]}'
N_GENERATED = 400


def put(path: Path, header: str | bytes, n_data: int) -> None:
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_data))


def library(path: Path) -> Any:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name).get_dtype() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError:
        return None


def ours(path: Path) -> Any:
    try:
        contents = read_contents(path)
    except CannotRunError:
        return None
    return {tensor.name for tensor in contents.tensors}, contents.metadata


def assert_alike(path: Path) -> None:
    expected, found = library(path), ours(path)
    if expected is None:
        assert found is None
    else:
        assert found == (set(expected[0]), expected[1])


@pytest.mark.parametrize("header", [
    "{%s}",
    ' {"x":%s} \n',
    '\t{ "x" : %s\n}',
    '{"x":%s}\0',
    '{"x":%s,}',
    '{"x":%s}{',
    '{"":%s}',
    '{"a\\"b\\\\c":%s}',
    '{"\\u0041\\ud83d\\ude00":%s}',
    '{"\\ud800":%s}',
    '{"x\\udc00y":%s}',
    '{"x\n":%s}',
    '{"x":%s,"y":null}',
    '{"x":%s,"y":1}',
    "[%s]",
    '{"x":[%s]}',
    '{"__metadata__":null,"x":%s}',
    '{"__metadata__":{},"x":%s}',
    '{"__metadata__":{"{}":"}\\"{"},"x":%s}',
    '{"__metadata__":{"a":"\\ud800"},"x":%s}',
    '{"__metadata__":{"a":null},"x":%s}',
    '{"__metadata__":{"a":{"b":"c"}},"x":%s}',
    '{"__metadata__":{"a":"b",},"x":%s}',
    '{"__metadata__":[],"x":%s}',
    '{"x":%s,"__metadata__":{"a":"b"}}',
])  # fmt: skip
def test_the_grammar(tmp_path: Path, header: str) -> None:
    put(tmp_path / "a.safetensors", header.replace("%s", ENTRY), 3)
    assert_alike(tmp_path / "a.safetensors")


@pytest.mark.parametrize("entry", ['{"x":%s,"x":%s}', '{"__metadata__":{"a":"1","a":"2"},"x":%s}'])
def test_a_name_that_is_there_twice(tmp_path: Path, entry: str) -> None:
    put(tmp_path / "a.safetensors", entry.replace("%s", ENTRY), 3)
    assert ours(tmp_path / "a.safetensors") is None  # of which the library takes the last


def test_generated_entries(tmp_path: Path) -> None:
    chance = random.Random(0)
    dtypes = [
        "F64", "F32", "F16", "BF16", "BOOL", "I64", "I8", "U8", "U16", "C64", "F8_E4M3", "F8_E8M0", "F4",
    ]  # fmt: skip
    dtypes += ["F6_E2M3", "F6_E3M2", "F8_E5M2FNUZ", "F99", "f32", None, 3]
    n_read = 0
    for _ in range(N_GENERATED):
        dtype = chance.choice(dtypes)
        shape = [
            chance.choice((0, 1, 2, 3, 4, 8, 3.0, -1, True))
            if chance.random() < 0.1
            else chance.choice((1, 2, 4))
            for _ in range(chance.randrange(4))
        ]
        bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F64": 64, "I64": 64, "C64": 64, "F32": 32}.get(
            str(dtype), 16 if str(dtype) in ("F16", "BF16", "U16") else 8
        )
        count = 1
        for size in shape:
            count *= int(size)
        n = max(0, count * bits // 8) + (chance.random() < 0.1)
        value: dict[str, Any] = {"dtype": dtype, "shape": shape, "data_offsets": [0, n]}
        odd = {"more": 1, "shape": None, "data_offsets": [0], "dtype": "U8"}
        value |= {name: odd[name] for name in odd if chance.random() < 0.03}
        put(tmp_path / "a.safetensors", json.dumps({"x": value}), n)
        assert_alike(tmp_path / "a.safetensors")
        n_read += ours(tmp_path / "a.safetensors") is not None
    assert N_GENERATED / 4 < n_read < N_GENERATED


def test_four_bits(tmp_path: Path) -> None:
    tensor = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    save_file({"x": tensor}, tmp_path / "a.safetensors")
    (entry,) = read_contents(tmp_path / "a.safetensors").tensors
    assert (entry.dtype, entry.shape, entry.nbytes) == ("float4_e2m1fn_x2", (3, 4), 12)
    assert read_values(entry).view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@pytest.mark.parametrize(
    ("dtype", "shape", "n"), [("F6_E2M3", [4], 3), ("F6_E3M2", [2, 4], 6), ("F4", [2, 3], 3)]
)
def test_dtypes_that_torch_does_not_have(tmp_path: Path, dtype: str, shape: list[int], n: int) -> None:
    put(
        tmp_path / "a.safetensors",
        json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, n]}}),
        n,
    )
    (entry,) = read_contents(tmp_path / "a.safetensors").tensors
    assert (entry.shape, entry.nbytes) == (tuple(shape), n)
    assert entry.special == "of a dtype that torch does not have"
    with pytest.raises(TypeError):
        read_values(entry)


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
        assert ours(tmp_path / "a.safetensors") is None
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
