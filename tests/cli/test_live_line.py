"""The one line that `watch` shows while a script runs."""

import io
import sys

import pytest

from modelscope_cli.cli import _console


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Stand-ins for stdout and stderr, both on a terminal."""
    monkeypatch.setattr(_console.settings, "is_quiet", False)

    def set_up():
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stdout, sys.stderr

    return set_up


def test_other_output_clears_the_line_and_the_stream_is_left_as_it_was(terminal):
    out, err = terminal()
    with _console.live_line() as draw:
        assert sys.stdout is out
        draw("step 1  loss 2.3")
        draw("too soon after the first")
        out.write("epoch 1\n")
    assert "write" not in vars(out)
    assert out.getvalue() == "epoch 1\n"
    assert err.getvalue() == "\r\x1b[2Kstep 1  loss 2.3\r" + "\r\x1b[2K"


@pytest.mark.parametrize(("is_quiet", "is_terminal"), [(True, True), (False, False)])
def test_no_line_under_quiet_or_without_a_terminal(terminal, monkeypatch, is_quiet, is_terminal):
    _, err = terminal()
    monkeypatch.setattr(_console.settings, "is_quiet", is_quiet)
    monkeypatch.setattr(err, "isatty", lambda: is_terminal)
    with _console.live_line() as draw:
        assert draw is None
