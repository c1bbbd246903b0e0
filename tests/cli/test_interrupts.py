"""Ctrl-C, a reader that leaves early, a disk that fills up: a clean end and nothing half-written."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import warm

resource = pytest.importorskip("resource", reason="limits of the file size are a thing of POSIX")


# A signal that comes just before a long sleep does not end it: both sleep in short pieces.
# Stops in the middle of the second picture, which by then is half on disk.
SLOW_DISK = """
import pathlib, sys, time
from modelscope_cli.shell.app import run
from modelscope_cli.report import image_tiles
save_png = image_tiles.save_png

def save_half(image, path):
    save_png(image, path)
    if path.name != "002_conv.png":
        path.write_bytes(path.read_bytes()[:100])
        pathlib.Path("../reached").touch()
        for _ in range(3000): time.sleep(0.01)

image_tiles.save_png = save_half
sys.exit(run(sys.argv[1:]))
"""

# Stops when the tables of a report are written and its picture is not.
SLOW_REPORT = """
import pathlib, sys, time
from modelscope_cli.shell.app import run
from modelscope_cli.report import view

def draw(figure, path):
    assert (path.parent / "parameters.csv").exists()
    pathlib.Path("../reached").touch()
    for _ in range(3000): time.sleep(0.01)

view.save_figure = draw
sys.exit(run(sys.argv[1:]))
"""


@contextlib.contextmanager
def started(*command, cwd):
    process = warm.start(*command, cwd=cwd)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt_when_reached(process, mark):
    process.wait_for(mark)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "error" not in err


def listing(folder):
    """Return what is there but for the byte code that Python leaves beside a script."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(path for path in found if not path.startswith("__pycache__"))


@pytest.mark.parametrize("out", ["new", "old"])
@pytest.mark.parametrize(("script", "command", "written"), [
    (SLOW_DISK, "featuremaps -l type:Conv2d", "002_conv.png"),
    (SLOW_REPORT, "grads", "parameters.csv"),
])  # fmt: skip
def test_ctrl_c_while_files_are_written(cwd, samples, script, command, written, out):
    (cwd / "old").mkdir()
    (cwd / "old" / written).write_text("mine")
    argv = f"{command} -m {samples}/tiny_resnet.py:TinyResNet -w none --force --out {out}"
    with started("-c", script, *argv.split(), cwd=cwd) as process:
        interrupt_when_reached(process, cwd.parent / "reached")
    assert listing(cwd) == ["old", f"old/{written}"]
    assert (cwd / "old" / written).read_text() == "mine"


def test_head_takes_one_line(cwd):
    argv = [sys.executable, "-m", "modelscope_cli", "rules", "--format", "json"]
    with subprocess.Popen(
        argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_is_written_to_and_not_replaced(run):
    outcome = run("models resnet18 -o /dev/full --format csv", expect=4)
    assert (
        "error: cannot write '/dev/full': No space left on device\n\nhint: df -h /dev/full\n" in outcome.err
    )
    run("models resnet18 -o /dev/null --format csv")
    assert os.path.exists("/dev/full")
    assert not os.path.isfile("/dev/full")
    assert not os.path.isfile("/dev/null")


@contextlib.contextmanager
def disk_that_holds(n_bytes):
    """Let no file of this process grow above `n_bytes`; a real failure of a real write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.drawn
@pytest.mark.parametrize("command", [
    "summary {TINY} -o old.csv --force",
    "stats {star} {tiny} --plot old.png --force",
    "stats {star} {tiny} --plot new.svg",
    "featuremaps {star} {tiny} -l bn --out a/b/c",
    "featuremaps {star} {tiny} -l bn --out old --force",
    "featuremaps {star} {tiny} -l head --save-tensors old.safetensors --out c --force",
    "grads {star} {tiny} --out old --force",
])  # fmt: skip
def test_a_disk_that_fills_up_while_writing(run, cwd, command):
    (cwd / "old").mkdir()
    for name in ["old.csv", "old.md", "old.png", "old.safetensors", "old/003_bn.png"]:
        (cwd / name).write_text("mine")
    before = listing(cwd)
    with disk_that_holds(60 if "safetensors" in command else 500):
        outcome = run(command, expect=4)
    assert "error: cannot write" in outcome.err
    assert "\n\nhint: " in outcome.err
    assert outcome.out == ""
    assert listing(cwd) == before
    assert {path.read_text() for path in cwd.rglob("*") if path.is_file()} == {"mine"}
