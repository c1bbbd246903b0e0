"""A few of the random command lines of `fuzz.py`, which runs any number of them."""

import random

import fuzz
import pytest


@pytest.mark.parametrize("seed", range(3))
def test_no_command_line_finds_a_bug_of_ours(monkeypatch, tmp_path, seed):
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    draw = random.Random(1000 + seed)
    with fuzz.playground():
        for line in [fuzz.draw_line(draw, with_all=True) for _ in range(30)]:
            code, err = fuzz.run_line(line)
            assert code in (0, 1, 2, 4), (line, err)
            assert "Traceback" not in err or "--debug" in line, (line, err)
