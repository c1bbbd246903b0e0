"""The one line that `watch` shows while a script runs."""

import sys

import pytest

from modelscope_cli.cli import _console


@pytest.fixture
def terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(_console.settings, "is_quiet", False)
    return capsys


def test_other_output_clears_the_line_and_the_stream_is_left_as_it_was(terminal):
    stream = sys.stdout
    with _console.live_line() as draw:
        assert sys.stdout is stream
        draw("step 1  loss 2.3")
        draw("too soon after the first")
        sys.stdout.write("epoch 1\n")
    assert "write" not in vars(stream)
    out, err = terminal.readouterr()
    assert out == "epoch 1\n"
    assert err == "\r\x1b[2Kstep 1  loss 2.3\r" + "\r\x1b[2K"


def test_no_line_under_quiet_or_without_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr(_console.settings, "is_quiet", True)
    with _console.live_line() as draw:
        assert draw is None
    monkeypatch.setattr(_console.settings, "is_quiet", False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with _console.live_line() as draw:
        assert draw is None
