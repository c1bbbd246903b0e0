"""The live line of `watch` on a terminal: there, and never in the way of what a script writes."""

import os
import pty
import re
import subprocess
import sys

import pytest

from modelscope_cli.records.progress import spell_time
from modelscope_cli.shell import live

SCRIPT = """
import sys
from modelscope_cli.shell import console as _console
with _console.live_line() as draw:
    draw.__self__._INTERVAL_S = 0
    draw("step 1 with a long tail")
    print("out")
    draw("step 2 with a long tail")
    print("err", file=sys.stderr)
    draw("step 3")
    sys.stderr.write("\\r50 %")
    sys.stderr.flush()
    draw("hidden by the progress bar")
    print(" done", file=sys.stderr)
    draw("step 4")
print("after")
"""


def on_a_terminal(code, kind="xterm", encoding="utf-8"):
    here, there = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=there,
        stderr=there,
        env=os.environ | {"TERM": kind, "PYTHONIOENCODING": encoding},
    ) as process:
        os.close(there)
        raw = b""
        try:
            while part := os.read(here, 4096):
                raw += part
        except OSError:  # Linux says so at the end
            pass
    os.close(here)
    assert process.returncode == 0
    return raw.decode()


def screen(raw):
    """Return the lines that a terminal would show."""
    lines = []
    for line in raw.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in re.split(r"\x1b\[2K", line):
            for piece in part.split("\r"):
                shown = piece + shown[len(piece) :]
            last, shown = shown, ""
        lines.append(last)
    return lines


def test_it_is_drawn_and_gone_before_anything_else_is_written():
    raw = on_a_terminal(SCRIPT)
    assert all(f"step {i}" in raw for i in (1, 2, 3, 4))
    assert "hidden" not in raw
    assert screen(raw) == ["out", "err", "50 % done", "after", ""]


def test_a_dumb_terminal_gets_plain_lines():
    code = "from modelscope_cli.shell.console import live_line\nwith live_line() as draw:\n    print(draw)"
    assert on_a_terminal(code, "dumb") == "None\r\n"


def test_what_is_awaited_is_shown_in_the_characters_that_the_terminal_has():
    code = "import time\nfrom modelscope_cli.shell.live import Busy\nbusy = Busy()\nbusy._DELAY_S = 0\n"
    code += "busy.start('loading')\ntime.sleep(0.5)\nbusy.stop()"
    assert "| loading, 0 s" in on_a_terminal(code, encoding="latin-1")
    assert "⠋ loading, 0 s" in on_a_terminal(code)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(live.Pace):
    FIRST_S = 2.0


def lines_of(seconds_each: float, total: int) -> list[tuple[float, str]]:
    """Return what a log gets, and when, of items that take equally long."""
    clock = Clock()
    pace, lines = Slow("images", total, clock), []
    while pace.done < total:
        clock.now += seconds_each
        pace.advance()
        if (line := pace.line()) is not None:
            lines.append((clock.now - 100, line))
    return lines


def test_a_log_gets_nothing_of_short_work():
    assert lines_of(0.125, 80) == []


def test_a_log_gets_an_estimate_after_two_seconds_and_then_a_line_a_minute():
    lines = lines_of(0.5, 400)
    assert [at for at, _ in lines] == [2, 62, 122, 182]
    assert lines[0][1] == "images: 4 of 400, about 3 min left"
    assert lines[-1][1] == "images: 364 of 400, about 18 s left"


def test_a_slow_first_item_is_not_in_the_estimate():
    clock = Clock()
    pace, lines = Slow("steps", 150, clock), []
    for seconds in [6.5] + [1] * 149:
        clock.now += seconds
        pace.advance()
        lines += [line for line in [pace.line()] if line]
    assert lines[:2] == ["steps: 1 of 150", "steps: 61 of 150, about 89 s left"]


def test_a_log_gets_a_line_after_the_first_of_very_long_items():
    assert lines_of(30, 10)[:2] == [(30, "images: 1 of 10"), (90, "images: 3 of 10, about 4 min left")]


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h")])
def test_a_duration_is_rounded(seconds, words):
    assert spell_time(seconds) == words
