"""What the programs themselves do, with no tool: is a healthy one healthy, and a sick one sick?"""

import contextlib
import io
import runpy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from bench import HEALTHY, SICK, Program
from programs import find

LEARNS = 0.5  # of what can be reached above a guess


@dataclass(frozen=True, slots=True)
class Truth:
    """How one program went: its first loss and the median of its last ten, its score, its time."""

    program: Program
    steps: int
    first: float
    last: float
    score: float
    seconds: float

    @property
    def is_labelled_right(self) -> bool:
        """A healthy one learns; a sick one does not or ends in ruins, unless its loop alone shows the fault.

        Losses are only compared for programs of `train.py`: a script may have several, or none.
        """
        is_ruined = self.program.run[0] == "train.py" and not self.last <= 2 * abs(self.first) < float("inf")
        learns = self.score >= LEARNS and not is_ruined
        if self.program.answer == HEALTHY:
            return learns
        return self.program.answer != SICK or self.program.is_certain or not learns

    def row(self) -> str:
        mark = "" if self.is_labelled_right else "  <- labelled wrong"
        figures = f"{self.steps:5} {self.first:9.3g} {self.last:9.3g} {self.score:7.2f} {self.seconds:5.1f} s"
        return f"{self.program.kind:34} {self.program.name:34}{figures}{mark}"


def can_be_measured(program: Program) -> bool:
    """Tell whether a program runs in one process and says how good its model became."""
    script = Path(program.command()[0])
    return program.ranks == 1 and (script.name == "train.py" or "def measure()" in script.read_text())


def find_truth(program: Program, shift: int = 0) -> Truth:
    """Run a program of one rank; `shift` is added to its seed, unless it is a script, which has its own."""
    began = time.perf_counter()
    torch.manual_seed(program.seed + shift)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), _losses() as losses:
        warnings.simplefilter("ignore")
        from_train = program.run[0] == "train.py"
        measure = find(*program.run[1:])().measure if from_train else _run_script(program)
        seconds = time.perf_counter() - began
        score = measure()
    first = losses[0] if losses else float("nan")
    last = torch.tensor(losses[-10:]).median().item()
    return Truth(program, len(losses), first, last, score, seconds)


def _run_script(program: Program) -> Callable[[], float]:
    """Run a script as Python does, and return its `measure`."""
    script, *arguments = program.command()
    folder, before = str(Path(script).parent), sys.argv
    sys.modules.pop("small", None)  # reads the arguments, and seeds, when it is imported
    sys.argv, sys.path[:0] = [script, *arguments], [folder]
    try:
        return runpy.run_path(script, run_name="__main__")["measure"]
    finally:
        sys.argv = before
        sys.path.remove(folder)


@contextlib.contextmanager
def _losses() -> Iterator[list[float]]:
    """Collect what `backward` is called on."""
    backward, losses = torch.Tensor.backward, []

    def noted(self, *args, **kwargs):
        losses.append(self.detach().float().sum().item())
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = noted
    try:
        yield losses
    finally:
        torch.Tensor.backward = backward
