"""Models that are nested more deeply than Python lets anybody recurse by itself."""

import sys
import threading
from pathlib import Path

import pytest

from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.keywords import room_for_depth

NEST = """
from torch import nn

def make():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    for _ in range(300):
        model = nn.Sequential(model)
    return model
"""


@pytest.fixture(autouse=True)
def deep():
    Path("deep.py").write_text(NEST)


@pytest.mark.parametrize("line", [
    "summary deep.py:make --graph graph.svg",
    "stats deep.py:make --html page.html",
    "grads deep.py:make --out grads",
    "ablate deep.py:make --no-save",
])  # fmt: skip
def test_a_command_runs_on_a_model_of_300_levels(run, line):
    found = run(f"{line} --input-shape 2,3,8,8")
    assert found.code in (0, 1), found.err


def test_the_limit_of_python_is_put_back_and_other_threads_keep_theirs():
    before, seen = sys.getrecursionlimit(), []

    def look():
        with room_for_depth():
            seen.append(sys.getrecursionlimit())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    assert seen == [before, 10_000]
    assert sys.getrecursionlimit() == before


def test_what_recurses_without_end_is_an_error_of_one_line():
    def again():
        again()

    with pytest.raises(CannotRunError, match="nested too deeply"), room_for_depth():
        again()
