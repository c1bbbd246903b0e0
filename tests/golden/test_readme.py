"""Every output in the README is what the tool prints: its words to the letter, its numbers as close as CPUs are."""

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest

from modelscope_cli.shell.app import run

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```console\n\$ (.*)\n([^`]*)```", (ROOT / "README.md").read_text(encoding="utf-8"))
# What is trained goes another way on another CPU: the line above the table and its columns are what stays.
TRAINED = ("watch", "train", "lrfind")
# Options that make a command quicker and leave the lines above its table.
QUICKER = {"train": " --steps 4"}
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def on_terminal(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a command prints on a terminal of 100 columns, without colour."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(reader, 1 << 16)
            except OSError:  # the other end of the terminal is closed
                return
            if not part:
                return
            parts.append(part)

    listener = threading.Thread(target=read)
    listener.start()
    with open(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert run(shlex.split(line)[1:]) <= 1  # 1: something was found, as it should be
        monkeypatch.undo()
    listener.join()
    os.close(reader)
    return b"".join(parts).decode().replace("\r\n", "\n")


def above_the_figures(text: str) -> str:
    head, table = text.split("\n\n")[:2]
    return f"{head}\n{table.partition(chr(10))[0]}"


def numbers_of(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "shown"), BLOCKS, ids=[line for line, _ in BLOCKS])
def test_the_readme_shows_what_is_printed(line, shown, tmp_path, monkeypatch):
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    for name, value in {"NO_COLOR": "1", "MSCOPE_OFFLINE": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = line.split()[1]
    printed = on_terminal(line + QUICKER.get(command, ""), monkeypatch)
    if command in TRAINED:
        printed, shown = map(above_the_figures, (printed, shown))
    words, known = ("".join(NUMBER.sub("0", text).split()) for text in (printed, shown))
    assert words == known
    if command not in TRAINED:
        assert numbers_of(printed) == pytest.approx(numbers_of(shown), rel=2e-2, abs=2e-3)


def test_there_are_outputs_to_check():
    assert len(BLOCKS) >= 20
