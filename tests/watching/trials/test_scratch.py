"""Copies of the files of a script: the same to read, and nothing of the original is ever changed."""

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelscope_cli.watching.trials import scratch
from modelscope_cli.watching.trials.scratch import Snapshot


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "runs" / "a b").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "runs" / "a b" / "ü\n.csv").write_text("1,2")
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def lay(project, tmp_path, cwd=None, name="laid", **how):
    snapshot = Snapshot.take(project / "train.py", cwd or project, tmp_path / f"{name}-snapshot", **how)
    return snapshot.lay(tmp_path / name)


def test_a_copy_has_the_same_files_and_can_be_deleted(project, tmp_path):
    before = contents(project)
    laid = lay(project, tmp_path)
    assert contents(laid.cwd) == before
    assert laid.script == laid.cwd / "train.py"
    (laid.cwd / "train.py").write_text("other")
    (laid.cwd / "new").touch()
    shutil.rmtree(tmp_path / "laid")
    assert contents(project) == before


def test_trials_do_not_see_each_other(project, tmp_path):
    snapshot = Snapshot.take(project / "train.py", project, tmp_path / "snapshot")
    first, second = snapshot.lay(tmp_path / "1"), snapshot.lay(tmp_path / "2")
    (first.cwd / "ck.pt").touch()
    assert not (second.cwd / "ck.pt").exists()


def test_the_working_directory_inside_and_outside_of_the_project(project, tmp_path):
    inside = lay(project, tmp_path, project / "runs", "inside")
    assert inside.cwd == inside.script.parent / "runs"
    other = tmp_path / "other"
    other.mkdir()
    (other / "data.txt").write_text("1")
    outside = lay(project, tmp_path, other, "outside")
    assert (outside.cwd / "data.txt").read_text() == "1"
    assert outside.script.read_text() == "print(1)"
    above = lay(project, tmp_path, tmp_path, "above", without=[tmp_path / "above-snapshot"])
    assert above.script == above.cwd / "project" / "train.py"


def test_a_home_folder_is_linked_and_not_copied(project, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    monkeypatch.setenv("HOME", str(home))
    laid = lay(project, tmp_path, home)
    assert (laid.cwd / "photos").is_symlink()
    assert (laid.cwd / "notes.txt").is_symlink()
    assert laid.script.read_text() == "print(1)"
    shutil.rmtree(laid.cwd)
    assert (home / "notes.txt").read_text() == "mine"


def test_large_files_and_what_is_beyond_the_limit_are_links(project, tmp_path, monkeypatch):
    with (project / "weights.bin").open("wb") as file:
        file.truncate(5 << 20)
    laid = lay(project, tmp_path)
    assert (laid.cwd / "weights.bin").is_symlink()
    assert (laid.cwd / "weights.bin").stat().st_size == 5 << 20
    monkeypatch.setattr(scratch, "_MOST_FILES", 1)
    few = lay(project, tmp_path, name="few")
    assert contents(few.cwd).keys() >= {"train.py", "runs"}
    assert sum(not path.is_symlink() for path in few.cwd.rglob("*") if path.is_file()) <= 1


def test_what_is_left_out(project, tmp_path):
    for name in (".git", "__pycache__", "out"):
        (project / name).mkdir()
        (project / name / "file").touch()
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    laid = lay(project, tmp_path, without=[project / "out"])
    assert sorted(path.name for path in laid.cwd.iterdir()) == ["env", "runs", "train.py"]
    assert (laid.cwd / "env").is_symlink()


def test_files_of_the_run_itself_are_left_out_if_it_has_ended(project, tmp_path):
    began = time.time() - 60
    for path in [*project.rglob("*")][::-1]:
        os.utime(path, (began - 60, began - 60))
    (project / "ck.pt").touch()
    laid = lay(project, tmp_path, before=began)
    assert sorted(path.name for path in laid.cwd.iterdir()) == ["runs", "train.py"]


def test_links_pipes_and_what_cannot_be_read(project, tmp_path):
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "x.txt").write_text("x")
    os.symlink("../data", project / "data")
    os.symlink("train.py", project / "same")
    os.symlink("loop", project / "loop")
    os.mkfifo(project / "pipe")
    laid = lay(project, tmp_path)
    assert (laid.cwd / "data" / "x.txt").read_text() == "x"
    assert os.readlink(laid.cwd / "same") == "train.py"
    assert os.path.lexists(laid.cwd / "loop")
    assert not (laid.cwd / "pipe").exists()


def test_read_only_files_and_folders_can_be_deleted(project, tmp_path):
    (project / "runs").chmod(0o555)
    (project / "train.py").chmod(0o444)
    lay(project, tmp_path)
    shutil.rmtree(tmp_path / "laid")
    (project / "runs").chmod(0o755)


def test_paths_in_arguments_and_messages(project, tmp_path):
    laid = lay(project, tmp_path)
    assert laid.moved(f"--out={project}/runs") == f"--out={laid.cwd}/runs"
    assert laid.moved(f"{project}s/other") == f"{project}s/other"
    assert laid.moved("train.py") == "train.py"
    assert laid.original(laid.moved(f"open '{project}': no")) == f"open '{project}': no"


NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=8
).filter(
    lambda name: (
        name not in (".", "..", "train.py") and len(name.encode()) < 100 and name not in scratch._LEFT_OUT
    )
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(NAMES, st.binary(max_size=20), max_size=4),
    st.dictionaries(NAMES, st.binary(), max_size=3),
)
def test_any_tree_is_laid_as_it_is(tmp_path, files, inner):
    root = tmp_path / f"tree-{time.monotonic_ns()}"
    (root / "project" / "_inner").mkdir(parents=True)
    for name, value in files.items():
        (root / "project" / f"f{name}").write_bytes(value)
    for name, value in inner.items():
        (root / "project" / "_inner" / f"f{name}").write_bytes(value)
    (root / "project" / "train.py").touch()
    before = contents(root / "project")
    laid = lay(root / "project", root)
    assert contents(laid.cwd) == contents(root / "project") == before
