"""A whole result on disk, or none."""

import os

import pytest

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.report.folder import OutputFolder, free_folder, write_text, write_with


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


def test_text_is_written_whole(tmp_path):
    write_text(tmp_path / "a.txt", "größer\n")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "größer\n"


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


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(CannotRunError, match="is a file"):
        OutputFolder(tmp_path / "out", True).check()


def test_default_folders_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    for _ in range(3):
        folder = free_folder("featuremaps", "samples/tiny_resnet.py:TinyResNet")
        folder.mkdir(parents=True)
        seen.append(folder.name)
    assert seen == [f"featuremaps-tiny_resnet.py-TinyResNet{end}" for end in ("", "-2", "-3")]
