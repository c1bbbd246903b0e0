"""Ctrl-C during long commands, in a terminal and in a log: what runs is said before, what was lost after."""

import itertools
import os
import pty
import re
import select
import signal
import time

import pytest
import warm

MODEL = """
import time
from torch import nn

class Slow(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4, num_classes)
    def forward(self, x):
        time.sleep(0.05)
        return self.fc(self.pool(self.bn(self.conv(x)).relu()).flatten(1))
"""
# In a log the first line comes early; a terminal is opened by its name.
RUN = """
import os, sys
from modelscope_cli import __main__
from modelscope_cli.shell import live

terminal = sys.argv.pop(1)
if terminal:
    for number in (1, 2):
        os.dup2(os.open(terminal, os.O_RDWR | os.O_NOCTTY), number)
live.Pace.FIRST_S = 0.1
live.Pace.LONG_S = 0.1
sys.argv[0] = "modelscope"
__main__.main()
"""
SLOW = "slow.py:Slow -w none"
ALL, PART = "to start from the beginning", "again for all of it"
STORE, STORED = "--out DIR   # can be continued with --resume", "--out o --resume"
# The command line, the last line after Ctrl-C, and what stays.
COMMANDS = {
    "explain": (f"explain {SLOW} star.png --size 32", ALL, []),
    "explain of a folder": (f"explain {SLOW} many --size 32", STORE, []),
    "lrfind": (f"lrfind {SLOW} --pictures 20 --size 8 --batch 4", PART, ["runs"]),
    "ablate": (f"ablate {SLOW} many --size 32 --batch 1 --by-channel -l conv", PART, ["runs"]),
    "check of a folder": ("check @list.txt", PART, []),
    "check": (f"check {SLOW} many --size 32 --batch 1", ALL, []),
    "train": (f"train {SLOW} --pictures 20 --size 8 --batch 4 --steps 1000", PART, ["runs"]),
    "summary": ("summary deep.py:Deep", ALL, []),
    "stats": (f"stats {SLOW} many --size 32 --batch 1", STORE, []),
    "stats with blocks": (f"stats {SLOW} many --size 32 --batch 1 --out o", STORED, ["o"]),
    "predict": (f"predict {SLOW} many --size 32 --batch 1 -o p.json", STORE, []),
    "predict with other preprocessing": (f"predict --doctor {SLOW} many --size 32 --batch 1", ALL, []),
    "grads": (f"grads {SLOW} many --size 32 --batch 1", ALL, []),
    "diff": (f"diff {SLOW} many --size 32 --batch 1 --b-dtype bfloat16", ALL, []),
}
DEEP = """
import time
from torch import nn

class Wait(nn.Module):
    def forward(self, x):
        time.sleep(0.05)
        return x

class Deep(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), *(Wait() for _ in range(200)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, samples):
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "slow.py").write_text(MODEL)
    (folder / "deep.py").write_text(DEEP)
    (folder / "star.png").write_bytes((samples / "star.png").read_bytes())
    (folder / "many").mkdir()
    for n in range(200):
        (folder / "many" / f"{n}.png").symlink_to(folder / "star.png")
    (folder / "list.txt").write_text(f"{folder}/star.png\n" * 100_000)
    return folder


class Started:
    """A command whose output is read as it comes."""

    def __init__(self, line, cwd, terminal):
        self._pair = pty.openpty() if terminal else ()
        name = os.ttyname(self._pair[1]) if terminal else ""
        self.process = warm.start("-c", RUN, name, *line.split(), cwd=cwd)
        self._stream = self._pair[0] if terminal else self.process.stderr.fileno()
        self.text = ""

    def read(self):
        """Read what there is; False at the end."""
        has_ended = self.process.poll() is not None
        if not select.select([self._stream], [], [], 0.1)[0]:
            return not has_ended
        part = os.read(self._stream, 1 << 16)
        self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part.decode(errors="replace"))
        return bool(part)

    def close(self):
        self.process.kill()
        self.process.communicate()
        for descriptor in self._pair:
            os.close(descriptor)


# What is said where is decided in one place for all commands: each is stopped in one of the two, in turn.
@pytest.mark.parametrize(("name", "terminal"), [*zip(COMMANDS, itertools.cycle((True, False)), strict=False)])
def test_ctrl_c_in_a_long_command(folder, tmp_path, name, terminal):
    line, last, kept = COMMANDS[name]
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    before = {path.name for path in tmp_path.iterdir()}
    started = Started(line, tmp_path, terminal)
    # A loop says how far it is, and soon how long it takes.
    progress = r"\d+/\d+ .*left" if terminal else r": [\d,]+ of [\d,]+"
    end = time.monotonic() + 60
    try:
        while not re.search(progress, started.text):
            assert started.read(), started.text
            assert time.monotonic() < end, started.text
        started.process.send_signal(signal.SIGINT)
        while started.read():
            assert time.monotonic() < end, started.text
        assert started.process.wait(30) == 130
    finally:
        started.close()
    assert "Traceback" not in started.text
    assert "error" not in started.text
    lines = [words for words in re.split(r"[\r\n]+", started.text) if words.strip()]
    assert last in lines[-1]
    assert any(words.startswith("interrupted") for words in lines[-2:])
    assert sorted({path.name for path in tmp_path.iterdir()} - before - {"__pycache__"}) == kept
    assert not list(tmp_path.rglob("*.part"))
