"""What everybody waits for: `--help`, `--version` and shell completion."""

import os
import subprocess
from collections.abc import Iterator

from figure import Figure
from paired import PYTHON, compare_commands

_OURS = [PYTHON, "-m", "modelscope_cli"]
_PEER = [PYTHON, "-c", "import typer, rich.console, rich.table"]
_HEAVY = {"torch", "torchvision", "PIL", "numpy", "matplotlib"}
_COMPLETION = {
    "_MODELSCOPE_COMPLETE": "complete_bash",
    "COMP_WORDS": "modelscope summary resnet3",
    "COMP_CWORD": "2",
}
_CASES: dict[str, tuple[list[str], dict[str, str]]] = {
    "--help": (["--help"], {}),
    "stats --help": (["stats", "--help"], {}),
    "--version": (["--version"], {}),
    "completion of a model name": ([], _COMPLETION),
}


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare with the import of typer and rich, and look for what should not have been imported."""
    for what, (arguments, variables) in _CASES.items():
        environment = os.environ | variables
        heavy = _imported([*_OURS, *arguments], environment) & _HEAVY
        names = ", ".join(sorted(_HEAVY))
        measured = f"imports {', '.join(sorted(heavy))}" if heavy else "imports none"
        yield Figure(f"{what}: {names}", measured, "none", not heavy)
        seconds, _ = compare_commands([*_OURS, *arguments], _PEER, pairs or 11, environment)
        yield seconds.at_most(f"time of {what} / importing typer and rich", 2.0)


def _imported(command: list[str], environment: dict[str, str]) -> set[str]:
    """Return the top-level packages that a command imports, as Python itself reports them."""
    environment = environment | {"PYTHONPROFILEIMPORTTIME": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    if not finished.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} printed nothing: {finished.stderr[-500:]}")
    lines = [line for line in finished.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
