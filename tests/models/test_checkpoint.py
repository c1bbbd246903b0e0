import argparse
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelscope_cli.checkpoints.tensors import Checkpoint, read_checkpoint
from modelscope_cli.errors import CannotRunError
from modelscope_cli.shell.app import run as run_argv

STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.ones(2)}


class Evil:
    """Runs a command when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def saved(path: Path, content: Any, **kwargs: Any) -> Path:
    torch.save(content, path, **kwargs)
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def assert_is_state(checkpoint: Checkpoint) -> None:
    torch.testing.assert_close(dict(checkpoint.state), STATE)


def rejected(path: Path) -> CannotRunError:
    with pytest.raises(CannotRunError) as caught:
        read_checkpoint(path)
    error = caught.value
    assert f"'{path}'" in error.message
    assert "\n" not in error.message + (error.hint or "")
    assert error.hint
    return error


@pytest.mark.parametrize(("content", "note"), [
    (
        {"state_dict": STATE, "epoch": 3, "optimizer": {}},
        "checkpoint: using 'state_dict'; not read: epoch, optimizer",
    ),
    ({"model": STATE}, "checkpoint: using 'model'"),
    ({"model_state_dict": STATE}, "checkpoint: using 'model_state_dict'"),
    ({"module": STATE}, "checkpoint: using 'module'"),
    ({"ema": STATE}, "checkpoint: using 'ema'"),
    ({"ema": {"module": STATE, "decay": 0.9}}, "checkpoint: using 'ema.module'; not read: decay"),
    (
        {"ema": {"x": torch.ones(1)}, "state_dict": STATE},
        "checkpoint: using 'state_dict'; not read: ema; choose another with --key ema",
    ),
    ({"net": STATE, "lr": 0.1}, "checkpoint: using 'net'; not read: lr"),
    ({**STATE, "epoch": 3}, "checkpoint: using 2 tensors; not read: epoch"),
])  # fmt: skip
def test_nested_state_dicts_are_taken_out_and_it_is_said(tmp_path: Path, content: Any, note: str) -> None:
    checkpoint = read_checkpoint(saved(tmp_path / "a.pt", content))
    assert_is_state(checkpoint)
    assert checkpoint.notes == (note,)


def test_module_versions_survive(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"state_dict": torch.nn.BatchNorm2d(2).state_dict()})
    assert read_checkpoint(path).state._metadata[""]["version"] == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("zip_format", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_code_is_never_run(tmp_path: Path, zip_format: bool, protocol: int) -> None:
    mark = tmp_path / "it-ran"
    content = {"state_dict": STATE, "extra": Evil(mark)}
    path = saved(
        tmp_path / "a.pt", content, _use_new_zipfile_serialization=zip_format, pickle_protocol=protocol
    )
    checkpoint = read_checkpoint(path)
    assert not mark.exists()
    assert_is_state(checkpoint)
    (warning,) = checkpoint.warnings
    assert (
        f"dangerous: an unrestricted torch.load would run {os.system.__module__}.system(" in warning.message
    )


@pytest.mark.parametrize(
    "content",
    [{"model": STATE, "args": argparse.Namespace(lr=0.1)}, torch.nn.Sequential()],
    ids=["arguments", "whole module"],
)
def test_what_names_classes_is_read_and_nothing_of_it_is_run(tmp_path: Path, content: Any) -> None:
    if isinstance(content, torch.nn.Module):
        content.add_module("fc", torch.nn.Linear(3, 2))
        content.load_state_dict(STATE)
    path = saved(tmp_path / "it's mine.pt", content)
    checkpoint = read_checkpoint(path)
    assert_is_state(checkpoint)
    assert checkpoint.warnings == ()  # classes that only hold values, as `weights --scan` says
    target = tmp_path / "converted.safetensors"
    assert run_argv(["weights", str(path), "--convert", str(target)]) == 0
    torch.testing.assert_close(load_file(target), STATE)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize(("content", "said"), [
    (b"", "is empty"),
    (b"hello\nworld", "it is text, 'hello'"),
    (b"\n <!DOCTYPE html><html>", "a web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-lfs pointer"),
    (b"\x00\xff" * 40, "first bytes"),
    (b"\x01\x02", "first bytes"),
])  # fmt: skip
def test_files_that_are_something_else(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    error = rejected(written(tmp_path / name, content))
    assert said in error.message
    if "lfs" in said:
        assert error.hint == f"git lfs pull --include {name}"


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no checkpoint file" in rejected(tmp_path / "no.pt").message
    assert "contains no checkpoint" in rejected(tmp_path).message
    save_file(STATE, tmp_path / "in.safetensors")
    assert_is_state(read_checkpoint(tmp_path))
    save_file(STATE, tmp_path / "another.safetensors")
    error = rejected(tmp_path)
    assert "several checkpoints: another.safetensors, in.safetensors" in error.message
    scan = f"modelscope weights --scan {tmp_path}   scans all"
    assert error.hint == f"{scan}; or give one, such as {tmp_path / 'another.safetensors'}"
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    assert list(read_checkpoint(tmp_path).state) == ["x"]


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.pt", STATE)

    def refuse(*args: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the file's mode would not keep root out
    assert "Permission" in rejected(path).message


@pytest.mark.parametrize(
    "content", [{}, {"epoch": 3}, [1, 2], torch.ones(2), {"a": {"b": {}}}, {3: torch.ones(1)}]
)
def test_no_tensors_inside(tmp_path: Path, content: Any) -> None:
    assert "contains no named tensors" in rejected(saved(tmp_path / "a.pt", content)).message


class Unknown:
    pass


def test_a_warning_tells_a_class_from_a_call(tmp_path: Path) -> None:
    (told,) = read_checkpoint(saved(tmp_path / "a.pt", {"model": STATE, "args": Unknown()})).warnings
    assert told.code == "foreign_code"
    assert told.message.startswith(f"'{tmp_path / 'a.pt'}': unknown classes, no calls: ")
    assert told.message.endswith(f"{Unknown.__module__}.Unknown")
    (told,) = read_checkpoint(saved(tmp_path / "b.pt", {"model": STATE, "x": Evil(tmp_path / "no")})).warnings
    assert told.code == "dangerous_code"
