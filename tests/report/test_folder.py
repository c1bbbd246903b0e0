"""A whole result on disk, or none."""

import os
import signal
import subprocess
import sys

import pytest

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.output_files import OutputFolder, free_folder, is_unfinished, release_claims, write_with


def names(folder):
    return sorted(os.listdir(folder))


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")

    def fail(beside):
        beside.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CannotRunError, match="No space left"):
        write_with(path, fail)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.json"]


@pytest.mark.parametrize("error", [RuntimeError("model"), KeyboardInterrupt()])
def test_a_run_that_breaks_off_leaves_no_folder(tmp_path, error):
    def break_off():
        with OutputFolder(tmp_path / "out", False).open() as stage:
            (stage / "one.png").write_text("x")
            raise error

    with pytest.raises(type(error)):
        break_off()
    assert names(tmp_path) == []


def test_force_replaces_files_of_the_same_name_and_keeps_the_others(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "one.png").write_text("old")
    with pytest.raises(UsageError, match="not empty"):
        OutputFolder(out, False).check()
    with OutputFolder(out, True).open() as stage:
        (stage / "one.png").write_text("new")
    assert (out / "one.png").read_text() == "new"
    assert names(out) == ["mine.txt", "one.png"]
    assert names(tmp_path) == ["out"]


def test_default_folders_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    for _ in range(3):
        folder = free_folder("featuremaps", "samples/tiny_resnet.py:TinyResNet")
        assert folder.is_dir()
        seen.append(folder.name)
    assert seen == [f"featuremaps-tiny_resnet.py-TinyResNet{end}" for end in ("", "-2", "-3")]


CLAIM = """
import sys
from modelscope_cli.output_files import free_folder
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    print(free_folder("grads", "net"), flush=True)
"""


def test_processes_that_look_at_once_get_a_folder_each(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    claimed = [line for process in started for line in process.communicate(timeout=60)[0].splitlines()]
    assert len(claimed) == len(set(claimed)) == 80
    assert {str(tmp_path / name) for name in claimed} == {str(path) for path in (tmp_path / "runs").iterdir()}


def test_a_claim_of_which_nothing_came_is_taken_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = free_folder("grads", "net")
    with OutputFolder(free_folder("grads", "net"), False).open() as stage:
        (stage / "one.png").write_text("x")
    release_claims()
    assert not folder.exists()
    assert names(tmp_path / "runs") == ["grads-net-2"]


def test_another_run_that_was_quicker_loses_nothing_and_costs_nothing(tmp_path):
    out = tmp_path / "out"

    def write():
        with OutputFolder(out, False).open() as stage:
            (stage / "one.png").write_text("ours")
            out.mkdir()
            (out / "one.png").write_text("theirs")

    with pytest.raises(CannotRunError, match="another run wrote to"):
        write()
    assert (out / "one.png").read_text() == "theirs"
    assert (tmp_path / "out-2" / "one.png").read_text() == "ours"
    assert names(tmp_path) == ["out", "out-2"]


def test_what_a_killed_run_left_is_not_content(tmp_path):
    out = tmp_path / "out"

    def die():
        with OutputFolder(out, False).open() as stage:
            (stage / "one.png").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    out.mkdir()
    if os.fork() == 0:
        die()
    os.wait()
    (left,) = names(out)
    assert is_unfinished(out / left)
    OutputFolder(out, False).check()
    with OutputFolder(out, False).open() as stage:
        (stage / "one.png").write_text("whole")
    assert (out / "one.png").read_text() == "whole"


def test_a_full_disk_names_what_was_asked_for(tmp_path):
    def fail(beside):
        raise OSError(28, "No space left on device")

    def write():
        with OutputFolder(tmp_path / "a" / "out", False).open() as stage:
            write_with(stage / "one.png", fail)

    with pytest.raises(CannotRunError) as raised:
        write()
    assert raised.value.message == f"cannot write '{tmp_path}/a/out/one.png': No space left on device"
    assert raised.value.hint == f"df -h {tmp_path}"
    assert names(tmp_path) == []
