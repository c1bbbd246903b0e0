"""However a command ends, the processes that decode for it end, too."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import warm
from PIL import Image

SAMPLES = Path(__file__).parents[2] / "samples"
IN_A_SESSION_OF_ITS_OWN = (
    "import os, sys; from modelscope_cli.__main__ import main; os.setsid(); sys.exit(main())"
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def in_session(leader):
    """Return the processes of a session that are not dead."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(name))
    return found


def wait_until(condition, seconds=60):
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "is_group", "code"), [
    (signal.SIGINT, True, 130),
    (signal.SIGTERM, False, 143),
    (signal.SIGKILL, False, -9),
])  # fmt: skip
def test_no_worker_process_is_left(tmp_path, number, is_group, code):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.jpg")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/0.jpg\n" * 100_000)
    command = ["predict", f"@{tmp_path}/list.txt", "--format", "tsv", "--output", os.devnull]
    command += ["-m", f"{SAMPLES}/tiny_resnet.py:TinyResNet", "-w", "none", "--size", "32", "--workers", "2"]
    process = warm.start("-c", IN_A_SESSION_OF_ITS_OWN, *command)
    try:
        wait_until(lambda: len(in_session(process.pid)) == 3)
        time.sleep(0.2)
        (os.killpg if is_group else os.kill)(process.pid, number)
        assert process.wait(60) == code
        wait_until(lambda: not in_session(process.pid), 10)
        assert "Traceback" not in process.stderr.read()
    finally:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.stdout.close()
        process.stderr.close()
