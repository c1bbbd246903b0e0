"""One trial: the script with one thing changed, measured, and kept from writing anywhere else."""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.runner import Script
from modelscope_cli.watching.trials import landlock
from modelscope_cli.watching.trials.catalogue import CHANGES
from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.meter import NOTE, Meter, Results
from modelscope_cli.watching.trials.survey import Surveyor

_SILENT = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_OWN_FOLDERS = "TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a process runs.

    Attributes:
        target, arguments, is_module: of the script, in the scratch copy; cwd: its working directory there.
        trial: name of the change, empty for none; seed: added to the seeds that the script sets.
        most: steps after which it ends; is_surveyed: whether it notes what the script uses.
        results: file for what is measured; output: for what the script prints.
        writable: folders in which it may write; None where the kernel cannot refuse it the others.
    """

    target: str
    arguments: list[str]
    is_module: bool
    cwd: str
    trial: str
    seed: int
    most: int
    is_surveyed: bool
    results: str
    output: str
    writable: list[str] | None


def run(spec: Spec) -> NoReturn:
    """Run a trial, and end this process."""
    output = os.open(spec.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, place)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    results = Results(os.open(spec.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    code = 1
    try:
        code = _run(spec, results)
    except BaseException as error:
        results(NOTE, error=f"{type(error).__name__}: {error}")
    results.flush()
    os._exit(code)


def _run(spec: Spec, results: Results) -> int:
    os.chdir(spec.cwd)
    own = Path(spec.results).parent / "tmp"
    own.mkdir(exist_ok=True)
    os.environ |= _SILENT | {name: str(own) for name in _OWN_FOLDERS}
    os.environ["MLFLOW_TRACKING_URI"] = own.as_uri()
    if spec.writable is not None:
        landlock.forbid_writes([Path(place) for place in spec.writable])

    def stop() -> None:
        if surveyor is not None:
            surveyor.tell()
        results.flush()
        os._exit(0)

    meter = Meter(results, spec.most, stop)
    surveyor = Surveyor(lambda seen: results(NOTE, survey=seen)) if spec.is_surveyed else None
    act = Act(lambda **found: results(NOTE, **found), meter.leave_out)
    with ExitStack() as stack:
        script = Script(spec.target, spec.arguments, spec.is_module)
        stack.enter_context(meter.installed())
        if spec.seed:
            stack.enter_context(_other_seeds(spec.seed))
        if surveyor is not None:
            stack.enter_context(surveyor.installed())
        if spec.trial:
            stack.enter_context(CHANGES[spec.trial](act))
        code = script.run(lambda text: _report(text, results))
        if surveyor is not None:
            surveyor.tell()
        results(NOTE, code=code)
    return code


def _report(text: str, results: Results) -> None:
    os.write(2, text.encode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    results(NOTE, error=lines[-1] if lines else "")


@contextmanager
def _other_seeds(shift: int) -> Iterator[None]:
    """Add a number to every seed that the script sets for the generators of a whole process."""
    seeded = [(torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed")]
    with suppress(ImportError):
        import numpy

        seeded.append((numpy.random, "seed"))
    with replaced(*[(place, name, _shifted(getattr(place, name), shift)) for place, name in seeded]):
        torch.default_generator.manual_seed(torch.initial_seed() + shift)
        yield


def _shifted(seed: Any, shift: int) -> Any:
    return lambda value=None, *more, **named: seed(
        value + shift if isinstance(value, int) else value, *more, **named
    )
