"""The live line of `watch` on a terminal: there, and never in the way of what a script writes."""

import os
import pty
import re
import subprocess
import sys

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


def on_a_terminal(code, kind="xterm"):
    here, there = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=there, stderr=there, env=os.environ | {"TERM": kind}
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
