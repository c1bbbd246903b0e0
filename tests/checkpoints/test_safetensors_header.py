"""Headers of safetensors files: where values are, dtypes that torch does not have, and hostile files."""

import json
import resource
from pathlib import Path

import pytest

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.errors import CannotRunError


def put(path: Path, header: str | bytes, n_data: int) -> None:
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_data))


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


def test_a_hostile_header_takes_memory_in_proportion_to_its_size(tmp_path: Path) -> None:
    """The library makes 32 bytes of the three of each `[],` below, and refuses the header then."""
    hostile = [
        '{"__metadata__":' + "[]," * 10_000_000,
        '{"a":{"b":[' + "[]," * 10_000_000 + "]}}",
        '{"a":{' * 5_000_000,
    ]
    file = tmp_path / "a.safetensors"
    for header in hostile:
        put(file, header, 0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(CannotRunError):
            read_contents(file)
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert kilobytes << 10 < 16 * file.stat().st_size


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
