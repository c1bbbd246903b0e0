"""The kernel refuses writes outside of some places, by whatever way."""

import subprocess
import sys

import pytest

from modelscope_cli.watching.trials import landlock

pytestmark = pytest.mark.skipif(not landlock.is_available(), reason="this kernel has no Landlock")

BEGIN = """
import ctypes, os, pathlib, shutil, subprocess, sys, threading
from modelscope_cli.watching.trials.landlock import forbid_writes
inside, outside = map(pathlib.Path, sys.argv[1:])
forbid_writes([inside])
def refused(act):
    try:
        act()
    except OSError as error:
        assert error.errno in (13, 18), error
    else:
        raise AssertionError("written")
"""
REFUSED = {
    "open": "refused(lambda: open(outside / 'new', 'w'))",
    "append": "refused(lambda: open(outside / 'old', 'a'))",
    "truncate": "refused(lambda: os.truncate(outside / 'old', 0))",
    "remove": "refused(lambda: os.remove(outside / 'old'))",
    "folder": "refused(lambda: os.makedirs(outside / 'a' / 'b'))",
    "remove folder": "refused(lambda: os.rmdir(outside / 'folder'))",
    "rename away": "refused(lambda: os.rename(outside / 'old', inside / 'old'))",
    "rename into": "(inside / 'new').touch(); refused(lambda: os.rename(inside / 'new', outside / 'new'))",
    "link": "refused(lambda: os.link(outside / 'old', inside / 'old'))",
    "symbolic link": "refused(lambda: os.symlink('old', outside / 'new'))",
    "through a link": "os.symlink(outside / 'old', inside / 'l'); refused(lambda: open(inside / 'l', 'w'))",
    "pipe": "refused(lambda: os.mkfifo(outside / 'new'))",
    "shell": "assert os.system(f'echo x > {outside}/new 2> /dev/null') != 0",
    "C": "assert not ctypes.CDLL(None).fopen(bytes(outside / 'new'), b'w')",
    "fork": "pid = os.fork()\nif not pid: os._exit(os.system(f'touch {outside}/new 2> /dev/null') != 0)\n"
    "assert os.waitpid(pid, 0)[1] != 0",
    "another program": "assert subprocess.run([sys.executable, '-c', 'open(\"new\", \"w\")'], cwd=outside, "
    "stderr=subprocess.DEVNULL).returncode",
    "thread": "thread = threading.Thread(target=refused, args=[lambda: open(outside / 'old', 'w')])\n"
    "thread.start(); thread.join()",
    "other folder": "refused(lambda: os.chdir(outside) or open('new', 'w'))",
    "by way of /proc": "refused(lambda: open(f'/proc/self/root{outside}/new', 'w'))",
    "hard link out": "(inside / 'new').touch(); refused(lambda: os.link(inside / 'new', outside / 'new'))",
    "socket": "import socket; refused(lambda: socket.socket(socket.AF_UNIX).bind(str(outside / 'new')))",
    "a device itself": "refused(lambda: os.remove('/dev/full')); refused(lambda: open('/dev/new', 'w'))",
}
ALLOWED = {
    "inside": "(inside / 'a').mkdir(); (inside / 'a' / 'b').touch(); os.rename(inside / 'a', inside / 'c'); "
    "shutil.rmtree(inside / 'c')",
    "read": "assert (outside / 'old').read_text() == 'kept'",
    "devices": "open('/dev/null', 'w').write('x'); open('/dev/shm/modelscope-test', 'w').close(); "
    "os.remove('/dev/shm/modelscope-test')",
    "links": "(inside / 'a').touch(); os.link(inside / 'a', inside / 'b'); os.symlink(outside, inside / 'c'); "
    "os.truncate(inside / 'b', 3); [path.unlink() for path in inside.iterdir()]",
    "between folders": "(inside / 'a').mkdir(); (inside / 'b').touch(); "
    "os.rename(inside / 'b', inside / 'a' / 'b')",
    "terminal": "os.write(os.openpty()[0], b'x')",
    "other programs": "assert os.system(f'echo x > {inside}/new') == 0; "
    "assert ctypes.CDLL(None).fopen(bytes(inside / 'c'), b'w')",
    "twice": "forbid_writes([inside]); (inside / 'new').touch()",
}


@pytest.mark.parametrize("what", [*REFUSED, *ALLOWED])
def test_writes(tmp_path, what):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside, outside / "folder"):
        folder.mkdir()
    (outside / "old").write_text("kept")
    code = BEGIN + {**REFUSED, **ALLOWED}[what]
    done = subprocess.run(
        [sys.executable, "-c", code, inside, outside], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in outside.iterdir()) == ["folder", "old"]
    assert (outside / "old").read_text() == "kept"


@pytest.mark.parametrize("version", [1, 2])
def test_a_kernel_of_an_older_version_is_not_asked_for_more(tmp_path, version):
    code = BEGIN.replace(
        "forbid_writes([inside])", f"landlock._version = lambda: {version}\nforbid_writes([inside])"
    )
    run = "from modelscope_cli.watching.trials import landlock" + code + "\nrefused((outside / 'new').touch)"
    (tmp_path / "inside").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", run, tmp_path / "inside", tmp_path], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("gpu", "is_allowed"), [("null", True), ("none", False)])
def test_cuda_may_name_its_threads(tmp_path, gpu, is_allowed):
    code = f"""
import sys, threading
from pathlib import Path
from modelscope_cli.watching.trials import landlock
landlock._NVIDIA = {gpu!r}
landlock.forbid_writes([Path(sys.argv[1])])
def name():
    Path(f"/proc/self/task/{{threading.get_native_id()}}/comm").write_text("cuda")
    print("named")
threading.excepthook = lambda _: None
threading.Thread(target=name).start()
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == ("named\n" if is_allowed else "")


def test_a_file_can_be_a_place(tmp_path):
    (tmp_path / "log").touch()
    code = BEGIN + "inside.write_text('x'); refused((outside / 'new').touch); refused(inside.unlink)"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "log", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_other_systems_and_kernels_without_it(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not landlock.is_available()
    monkeypatch.undo()
    monkeypatch.setattr(landlock, "_CREATE", 9999)
    assert not landlock.is_available()
    with pytest.raises(OSError, match="not implemented"):
        landlock.forbid_writes([])


def test_a_place_that_does_not_exist_is_an_error(tmp_path):
    code = f"{BEGIN}\nrefused(lambda: None)"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "none", tmp_path], capture_output=True, text=True, check=False
    )
    assert "FileNotFoundError" in done.stderr
