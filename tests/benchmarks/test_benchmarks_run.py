"""The benchmarks run; what they measure is for `run.py` to say, when somebody asks."""

from pathlib import Path

import warm

RUN = Path(__file__).with_name("run.py")


def test_prints_a_markdown_table_with_versions() -> None:
    finished = warm.run(RUN, "grid", "--pairs", "1")
    assert finished.returncode in (0, 1), finished.stderr  # 1: a figure is missed, as on a busy machine
    header, rule, row, *_ = finished.stdout.splitlines()
    assert header.count("|") == rule.count("|") == row.count("|") == 6
    assert "x faster" in row
    assert "torch" in finished.stdout.splitlines()[-1]


def test_names_the_benchmarks_when_one_is_unknown() -> None:
    finished = warm.run(RUN, "gird")
    assert finished.returncode == 2
    assert "'gird'" in finished.stderr
    assert "grid" in finished.stderr
