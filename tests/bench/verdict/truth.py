"""What the programs themselves do, with no tool: is a healthy one healthy, and a sick one sick?"""

import contextlib
import io
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

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
        """A healthy one learns; a sick one does not or ends in ruins, unless its loop alone shows the fault."""
        learns = self.score >= LEARNS and self.last <= 2 * abs(self.first) < float("inf")
        if self.program.answer == HEALTHY:
            return learns
        return self.program.answer != SICK or self.program.is_certain or not learns

    def row(self) -> str:
        mark = "" if self.is_labelled_right else "  <- labelled wrong"
        figures = f"{self.steps:5} {self.first:9.3g} {self.last:9.3g} {self.score:7.2f} {self.seconds:5.1f} s"
        return f"{self.program.kind:34} {self.program.name:34}{figures}{mark}"


def find_truth(program: Program, shift: int = 0) -> Truth:
    """Run a program of one rank; `shift` is added to its seed."""
    began = time.perf_counter()
    torch.manual_seed(program.seed + shift)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), _losses() as losses:
        warnings.simplefilter("ignore")
        score = find(*program.run[1:])().measure()
    last = torch.tensor(losses[-10:]).median().item()
    return Truth(program, len(losses), losses[0], last, score, time.perf_counter() - began)


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
