"""Processes in which torch has an accelerator, each forked from one.

It is the device `stand` of `stand_in.cpp`, unless `pytest --accelerator cuda` names one of the machine.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from outcome import Outcome
from stand_in_runs import ELSEWHERE, OF_KERNELS, OTHER_KERNELS, Compare, Python, differences

HERE = Path(__file__).parent
STAND_IN = "stand"
OF_THE_STAND_IN = ("test_failures.py", "test_stand_in.py")  # another device does not fail at will

# Begin every program; `settings` is what makes the stand-in fail.
IMPORTS = "import json, os, sys, torch\n"
SETTINGS = """
from devices.stand_in import stand
for name, value in json.loads(os.environ["STAND_IN_SETTINGS"]).items():
    setattr(stand.settings, name, set(value) if isinstance(value, list) else value)
"""
COMMAND = """
from modelscope_cli.__main__ import main
main()
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(HERE)]
    for item in here:
        item.add_marker("device")
        if config.option.accelerator == STAND_IN:
            item.add_marker("slow")  # it is compiled first
    if config.option.accelerator != STAND_IN:
        left_out = [item for item in here if item.path.name in OF_THE_STAND_IN]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def accelerator(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of the device, and build the stand-in once; where it cannot be built, say why and skip."""
    if (name := str(pytestconfig.option.accelerator)) != STAND_IN:
        return name
    if not sys.platform.startswith("linux") or not shutil.which("c++"):
        pytest.skip("the stand-in for an accelerator needs Linux and a C++ compiler, named c++")
    kept = getattr(pytestconfig, "cache", None)  # None with `-p no:cacheprovider`
    cache = kept.mkdir("stand_in") if kept else tmp_path_factory.mktemp("stand_in")
    os.environ["STAND_IN_CACHE"] = str(cache)
    # pip puts ninja beside Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    built = subprocess.run(
        [sys.executable, HERE / "stand_in.py"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return name


@pytest.fixture
def python(accelerator: str, tmp_path: Path) -> Python:
    """Return a function that runs a program, to which `torch` and, where it is the device, `stand` are given."""
    is_stand_in = accelerator == STAND_IN
    preamble = IMPORTS + (SETTINGS if is_stand_in else "")
    imported = (*(["devices.stand_in"] if is_stand_in else []), *warm.EVERYTHING)

    def run_it(program: str, *argv: object, cwd: Path = tmp_path, **settings: object) -> Outcome:
        words = {"STAND_IN_SETTINGS": json.dumps(settings), "MSCOPE_OFFLINE": "1", "COLUMNS": "160"}
        # CUDA rounds the inputs of convolutions to 10 bits, unless told not to.
        env = os.environ | words | {"TORCH_HOME": str(tmp_path / "torch_home"), "NVIDIA_TF32_OVERRIDE": "0"}
        done = warm.run("-c", preamble + program, *argv, cwd=cwd, env=env, imported=imported)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run_it


@pytest.fixture
def command(python: Python) -> Python:
    """Return a function that runs `modelscope ...`, given as words."""

    def run_it(*argv: object, **how: Any) -> Outcome:
        outcome = python(COMMAND, *argv, **how)
        assert "Traceback" not in outcome.err, outcome.err
        return outcome

    return run_it


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run(
        [sys.executable, "-m", "modelscope_cli", "demo"], cwd=folder, check=True, capture_output=True
    )
    return folder / "demo"


@pytest.fixture
def compare(command: Python, accelerator: str, demo: Path, tmp_path: Path) -> Compare:
    """Return a function that runs a command on both devices and compares its documents, which it returns."""

    def compare_it(*words: str, rounding: float) -> tuple[Any, Any]:
        results = []
        for device in ("cpu", accelerator):
            folder = tmp_path / device
            folder.mkdir()
            (folder / "demo").symlink_to(demo)
            results.append(command(*words, device, cwd=folder))
        here, there = results
        assert there.code == here.code, there.err
        more = (
            (rounding,) if accelerator == STAND_IN else (OTHER_KERNELS * rounding, "", ELSEWHERE | OF_KERNELS)
        )
        typed = json.loads(
            json.dumps(there.json).replace(f"--device {accelerator}", "--device cpu")
        )  # in hints
        assert list(differences(here.json, typed, *more)) == []
        return here.json, there.json

    return compare_it
