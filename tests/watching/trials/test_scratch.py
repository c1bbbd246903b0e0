"""Copies of the files of a script: the same to read, and nothing of the original is ever changed."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelscope_cli.watching.trials import landlock, scratch
from modelscope_cli.watching.trials.scratch import FileSnapshot


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


def traces(folder: Path) -> dict[str, tuple]:
    """Return what any change of a tree would show, but for the times at which it was read."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = status.st_mode, status.st_mtime_ns, status.st_nlink, status.st_ino, held
    return found


def lay(project, tmp_path, cwd=None, name="laid", **how):
    snapshot = FileSnapshot.take(project / "train.py", cwd or project, tmp_path / f"{name}-snapshot", **how)
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
    snapshot = FileSnapshot.take(project / "train.py", project, tmp_path / "snapshot")
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
    assert (outside.cwd / "../project/train.py").samefile(outside.script)
    above = lay(project, tmp_path, tmp_path, "above", without=[tmp_path / "above-snapshot"])
    assert above.script == above.cwd / "project" / "train.py"


def test_files_beside_the_project_are_found_from_the_script_and_from_the_working_directory(project, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("1")
    laid = lay(project, tmp_path, project / "runs")
    assert (laid.cwd / "../../data/x.csv").read_text() == "1"
    assert (laid.script.parent / "../data/x.csv").read_text() == "1"
    (laid.cwd / "../../new").touch()
    assert not (tmp_path / "new").exists()


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


def test_a_script_in_a_home_folder_and_projects_below_it(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(project))
    (project / "notes.txt").touch()
    (project / "deep" / "src").mkdir(parents=True)
    (project / "deep" / "src" / "train.py").touch()
    own = lay(project, tmp_path)
    assert not own.script.is_symlink()
    assert (own.cwd / "notes.txt").is_symlink()
    inside = lay(project, tmp_path, project / "deep", "inside")
    assert inside.script == inside.cwd.parent / "train.py"
    assert not inside.script.is_symlink()
    assert not (inside.cwd / "src" / "train.py").is_symlink()
    above = lay(project / "deep" / "src", tmp_path, project, "above")
    assert above.script == above.cwd / "deep" / "src" / "train.py"
    assert not above.script.is_symlink()
    assert (above.cwd / "notes.txt").is_symlink()


def test_a_large_working_directory_is_linked_and_the_folder_of_the_script_copied(
    project, tmp_path, monkeypatch
):
    for n in range(8):
        (tmp_path / f"{n}.txt").touch()
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(scratch, "_MOST_FILES", 7)
    laid = lay(project, tmp_path, tmp_path)
    assert laid.script == laid.cwd / "project" / "train.py"
    assert not laid.script.is_symlink()
    assert not (laid.cwd / "project" / "runs").is_symlink()
    assert all((laid.cwd / name).is_symlink() for name in ("data", "0.txt", "7.txt"))
    (laid.cwd / "new").touch()
    assert not (tmp_path / "new").exists()


def test_a_folder_with_too_many_files_is_one_link_and_leaves_room_for_others(project, tmp_path, monkeypatch):
    (project / "data").mkdir()
    for n in range(20):
        (project / "data" / f"{n}.jpg").touch()
    monkeypatch.setattr(scratch, "_MOST_FILES", 10)
    laid = lay(project, tmp_path)
    assert (laid.cwd / "data").is_symlink()
    assert contents(laid.cwd / "runs") == contents(project / "runs")
    assert not any(path.is_symlink() for path in (laid.cwd / "runs").rglob("*"))


def test_large_files_and_what_is_beyond_the_limit_are_links(project, tmp_path, monkeypatch):
    with (project / "weights.bin").open("wb") as file:
        file.truncate(5 << 20)
    laid = lay(project, tmp_path)
    assert (laid.cwd / "weights.bin").is_symlink()
    assert (laid.cwd / "weights.bin").stat().st_size == 5 << 20
    monkeypatch.setattr(scratch, "_MOST_BYTES", 9)
    full = lay(project, tmp_path, name="full")
    assert not full.script.is_symlink()
    assert (full.cwd / "runs" / "a b" / "ü\n.csv").is_symlink()
    monkeypatch.setattr(scratch, "_MOST_FILES", 1)
    few = lay(project, tmp_path, name="few")
    assert contents(few.cwd).keys() >= {"train.py", "runs"}
    assert sum(not path.is_symlink() for path in few.cwd.rglob("*") if path.is_file()) <= 1


def test_what_is_left_out(project, tmp_path):
    for name in (".git", "__pycache__", "node_modules", "out"):
        (project / name).mkdir()
        (project / name / "file").touch()
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    laid = lay(project, tmp_path, without=[project / "out"])
    assert sorted(path.name for path in laid.cwd.iterdir()) == ["env", "runs", "train.py"]
    assert (laid.cwd / "env").is_symlink()


def test_the_copies_may_lie_in_the_project(project):
    laid = lay(project, project)
    assert sorted(path.name for path in laid.cwd.iterdir()) == ["runs", "train.py"]


def test_a_script_of_an_installed_package_is_found(project):
    place = project / ".venv" / "lib" / "site-packages" / "tool"
    place.mkdir(parents=True)
    (place / "train.py").write_text("tool")
    (place.parent / "other").mkdir()
    snapshot = FileSnapshot.take(place / "train.py", project, project / "s")
    laid = snapshot.lay(project / "l")
    assert laid.script.read_text() == "tool"
    assert (laid.script.parent.parent / "other").is_symlink()
    assert not (laid.cwd / "runs").is_symlink()


def test_files_of_the_run_itself_are_left_out_if_it_has_ended(project, tmp_path):
    began = time.time() - 60
    for path in [*project.rglob("*")][::-1]:
        os.utime(path, (began - 60, began - 60))
    (project / "ck.pt").touch()
    (project / "latest").symlink_to("runs")
    (project / "train.py").touch()
    laid = lay(project, tmp_path, before=began)
    assert sorted(path.name for path in laid.cwd.iterdir()) == ["runs", "train.py"]


def test_links_pipes_and_what_cannot_be_read(project, tmp_path):
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "x.txt").write_text("x")
    os.symlink("../data", project / "data")
    os.symlink("train.py", project / "same")
    os.symlink("loop", project / "loop")
    os.symlink(".", project / "runs" / "here")
    os.symlink("..", project / "runs" / "up")
    os.symlink(outside, project / "absolute")
    os.symlink("none", project / "dangling")
    os.mkfifo(project / "pipe")
    laid = lay(project, tmp_path)
    assert (laid.cwd / "data" / "x.txt").read_text() == "x"
    assert os.readlink(laid.cwd / "same") == "train.py"
    assert os.path.lexists(laid.cwd / "loop")
    assert (laid.cwd / "runs" / "here" / "up").samefile(laid.cwd)
    assert os.readlink(laid.cwd / "data") == os.readlink(laid.cwd / "absolute") == str(outside)
    assert os.readlink(laid.cwd / "dangling") == "none"
    shutil.rmtree(tmp_path / "laid")
    shutil.rmtree(tmp_path / "laid-snapshot")
    assert (outside / "x.txt").read_text() == "x"
    assert not (laid.cwd / "pipe").exists()


def test_a_script_that_is_a_link_stays_one(project, tmp_path):
    (tmp_path / "shared.py").write_text("shared")
    (project / "linked.py").symlink_to("../shared.py")
    laid = FileSnapshot.take(project / "linked.py", project, tmp_path / "s").lay(tmp_path / "l")
    assert laid.script == laid.cwd / "linked.py"
    assert laid.script.resolve() == tmp_path / "shared.py"


def test_a_file_that_cannot_be_read_is_skipped_and_a_full_disk_is_an_error(project, tmp_path, monkeypatch):
    number, copy = errno.EACCES, shutil.copy2

    def fail(source, target, **how):
        if Path(source).suffix == ".csv":
            Path(target).touch()
            raise OSError(number, "no")
        return copy(source, target, **how)

    monkeypatch.setattr(shutil, "copy2", fail)
    laid = FileSnapshot.take(project / "train.py", project, tmp_path / "s")
    assert [path.name for path in (tmp_path / "s").rglob("*.csv")] == []
    assert laid.script.exists()
    number = errno.ENOSPC
    with pytest.raises(OSError, match="no"):
        FileSnapshot.take(project / "train.py", project, tmp_path / "t")


def test_read_only_files_and_folders_can_be_deleted(project, tmp_path):
    (project / "runs").chmod(0o555)
    (project / "train.py").chmod(0o444)
    laid = lay(project, tmp_path)
    assert laid.script.stat().st_mode == (project / "train.py").stat().st_mode
    assert laid.script.stat().st_mtime_ns == (project / "train.py").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "laid")
    (project / "runs").chmod(0o755)


def test_paths_in_arguments_and_messages(project, tmp_path):
    laid = lay(project, tmp_path)
    assert laid.moved(f"--out={project}/runs") == f"--out={laid.cwd}/runs"
    assert laid.moved(f"{project}s/other") == f"{project}s/other"
    assert laid.moved("train.py") == "train.py"
    assert laid.original(laid.moved(f"open '{project}': no")) == f"open '{project}': no"


TEXTS = {  # P: the project; whether it is moved
    "P": True,
    "P/": True,
    "--out=P/runs": True,
    "-IP/include": True,
    "@P/arguments": True,
    "file://P/runs": True,
    "sqlite:///P/x.db": True,
    "data.dir=[P/a,b]": True,
    "open('P') failed": True,
    "P: no such file": True,
    "it is in P.": True,
    "in\nP\n": True,
    "Ps/other": False,
    "P-2/other": False,
    "P.old": False,
    "/mntP/runs": False,
    "dataP/runs": False,
    "s3://bucketP/runs": False,
    "..P": False,
    "": False,
}


@pytest.mark.parametrize("text", TEXTS)
def test_where_a_path_in_a_text_begins_and_ends(tmp_path_factory, text):
    project = tmp_path_factory.getbasetemp() / "place" / "project"
    laid = scratch.Laid(project, project, ((str(project), "/copy/project"),))
    moved = text.replace("P", "/copy/project") if TEXTS[text] else text.replace("P", str(project))
    assert laid.moved(text.replace("P", str(project))) == moved
    assert laid.original(moved) == text.replace("P", str(project))


def test_paths_through_a_link_and_in_two_folders(project, tmp_path):
    (tmp_path / "short").symlink_to(project)
    other = tmp_path / "project" / "runs"
    laid = FileSnapshot.take(tmp_path / "short" / "train.py", other, tmp_path / "s").lay(tmp_path / "l")
    assert (
        laid.moved(f"{tmp_path}/short/a {project}/a {other}/a")
        == f"{laid.cwd.parent}/a " * 2 + f"{laid.cwd}/a"
    )
    assert laid.original(f"{laid.cwd.parent}/a") == f"{project}/a"


def test_the_root_as_working_directory(project, tmp_path):
    laid = lay(project, tmp_path, Path("/"))
    assert laid.script == laid.cwd / str(project / "train.py")[1:]
    assert laid.script.read_text() == "print(1)"
    assert (laid.cwd / "usr").is_symlink()
    assert laid.moved("/usr / a/b") == "/usr / a/b"


@pytest.mark.skipif(not landlock.is_available(), reason="this kernel has no Landlock")
def test_a_script_that_writes_wherever_it_can_changes_nothing(project, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("1")
    with (project / "weights.bin").open("wb") as file:
        file.truncate(5 << 20)
    (project / "linked").symlink_to("../data")
    snapshot = FileSnapshot.take(project / "train.py", project, tmp_path / "s")
    laid = snapshot.lay(tmp_path / "l")
    before = traces(project) | traces(tmp_path / "data")
    code = f"""
import os, shutil, sys
from contextlib import suppress
from pathlib import Path
from modelscope_cli.watching.trials.landlock import forbid_writes
forbid_writes([Path({str(tmp_path / "l")!r})])
os.chdir({str(laid.cwd)!r})
n = 0
for base in (".", "..", "linked", {str(project)!r}, {str(tmp_path / "data")!r}):
    for path in [Path(base, "new"), *Path(base).rglob("*")]:
        for act in (lambda: path.open("a").write("x"), lambda: os.truncate(path, 0), lambda: path.rename("moved"),
                    lambda: os.replace("train.py", path), path.unlink, lambda: shutil.rmtree(path), path.mkdir):
            with suppress(OSError):
                act()
                n += 1
assert n
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert traces(project) | traces(tmp_path / "data") == before
    assert contents(snapshot.lay(tmp_path / "l2").cwd) == contents(project)


NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and name not in scratch._LEFT_OUT | scratch._LINKED)
TREES = st.recursive(
    st.binary(max_size=20), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
).filter(lambda tree: isinstance(tree, dict))


def write(tree: dict, place: Path) -> None:
    place.mkdir()
    for name, held in tree.items():
        if isinstance(held, dict):
            write(held, place / name)
        else:
            (place / name).write_bytes(held)


@settings(max_examples=15, deadline=None)
@given(TREES)
def test_any_tree_is_laid_as_it_is(tree):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        write(
            {"train.py": b"", **tree} if not isinstance(tree.get("train.py"), dict) else {}, root / "project"
        )
        (root / "project" / "train.py").touch()
        before = traces(root / "project")
        snapshot = FileSnapshot.take(root / "project" / "train.py", root / "project", root / "s")
        first = snapshot.lay(root / "1")
        assert contents(first.cwd) == contents(root / "project")
        shutil.rmtree(first.cwd)
        assert contents(snapshot.lay(root / "2").cwd) == contents(root / "project")
        assert traces(root / "project") == before


@given(NAMES, st.sampled_from(["", "--out=", "open '", "a, "]))
def test_a_path_that_is_moved_is_found_again(name, lead):
    laid = scratch.Laid(Path(), Path(), (("/home/u/project", "/scratch/1/home/u/project"),))
    text = f"{lead}/home/u/project/{name}"
    assert laid.moved(text).startswith(f"{lead}/scratch/1/home/u/project/")
    assert laid.original(laid.moved(text)) == text
