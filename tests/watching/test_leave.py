"""The end of a rank: all that an exit does, but Python is not taken apart under the threads of gloo."""

import os
import subprocess
import sys

import pytest

ENDING = """
import atexit, pathlib, sys, threading, time, types

def write(name):
    pathlib.Path(name).write_text("done")

class Last:
    def __del__(self, open=open):  # called while Python is being taken apart, where it is
        open("taken apart", "w").close()

sys.modules["kept"] = types.ModuleType("kept")
sys.modules["kept"].last, sys.modules["kept"].file = Last(), open("kept.txt", "w")
sys.modules["kept"].file.write("of a module")
own = open("own.txt", "w")
own.write("of the script")
atexit.register(write, "exit handler")
threading.Thread(target=lambda: (time.sleep(0.2), write("thread"))).start()
print("said")
sys.exit(7)
"""


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, id="rank"),
        pytest.param({}, id="alone", marks=pytest.mark.slow),
    ],
)
def test_an_exit_is_complete_and_only_a_rank_leaves_python_whole(tmp_path, environment):
    (tmp_path / "ending.py").write_text(ENDING)
    watch = [sys.executable, "-m", "modelscope_cli", "watch", "-o", "table.tsv", "ending.py"]
    with subprocess.Popen(
        watch, cwd=tmp_path, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read() == "said\n"
    assert process.returncode == 7
    assert (tmp_path / "kept.txt").read_text() == "of a module"
    assert (tmp_path / "own.txt").read_text() == "of the script"
    assert (tmp_path / "exit handler").exists()
    assert (tmp_path / "thread").exists()
    assert (tmp_path / "taken apart").exists() == (not environment)
