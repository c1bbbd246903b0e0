"""Every benchmark is there to be run; what they measure is for `run.py` to say, when somebody asks."""

from pathlib import Path

import warm

FOLDER = Path(__file__).parent
IMPORTS = (
    "from importlib import import_module; import run; [import_module(one).measure for one in run.BENCHMARKS]"
)


def test_every_benchmark_finds_what_it_imports() -> None:
    finished = warm.run("-c", f"import sys; sys.path.insert(0, '.'); {IMPORTS}", cwd=FOLDER)
    assert finished.returncode == 0, finished.stderr


def test_names_the_benchmarks_when_one_is_unknown() -> None:
    finished = warm.run(FOLDER / "run.py", "gird")
    assert finished.returncode == 2
    assert "'gird'" in finished.stderr
    assert "grid" in finished.stderr
