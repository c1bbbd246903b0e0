"""The benchmarks run; what they measure is for `run.py` to say, when somebody asks."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")


def test_prints_a_markdown_table_with_versions() -> None:
    finished = subprocess.run(
        [sys.executable, str(RUN), "grid", "--pairs", "1"], capture_output=True, text=True, check=False
    )
    assert finished.returncode in (0, 1), finished.stderr  # 1: a figure is missed, as on a busy machine
    header, rule, row, *_ = finished.stdout.splitlines()
    assert header.count("|") == rule.count("|") == row.count("|") == 6
    assert "x faster" in row
    assert "torch" in finished.stdout.splitlines()[-1]


def test_names_the_benchmarks_when_one_is_unknown() -> None:
    finished = subprocess.run([sys.executable, str(RUN), "gird"], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "'gird'" in finished.stderr
    assert "grid" in finished.stderr
