"""The kernel refuses writes outside of some places, by whatever way."""

import subprocess
import sys

import pytest

from modelscope_cli.watching.trials import landlock

pytestmark = pytest.mark.skipif(not landlock.is_available(), reason="this kernel has no Landlock")

BEGIN = """
import ctypes, os, pathlib, shutil, subprocess, sys, tempfile
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
    "other folder": "refused(lambda: os.chdir(outside) or open('new', 'w'))",
}
ALLOWED = {
    "inside": "(inside / 'a').mkdir(); (inside / 'a' / 'b').touch(); os.rename(inside / 'a', inside / 'c'); "
    "shutil.rmtree(inside / 'c')",
    "read": "assert (outside / 'old').read_text() == 'kept'",
    "devices": "open('/dev/null', 'w').write('x'); open('/dev/shm/modelscope-test', 'w').close(); "
    "os.remove('/dev/shm/modelscope-test')",
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


def test_a_place_that_does_not_exist_is_an_error(tmp_path):
    code = f"{BEGIN}\nrefused(lambda: None)"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "none", tmp_path], capture_output=True, text=True, check=False
    )
    assert "FileNotFoundError" in done.stderr
