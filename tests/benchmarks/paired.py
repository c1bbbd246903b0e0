"""Measure two things in turn, so that whatever else the machine does falls on both alike."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from figure import Figure

PYTHON = sys.executable
_USAGE = Path(__file__).with_name("usage.py")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours divided by the peer's, a value for each pair."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def at_most(self, what: str, target: float | None) -> Figure:
        """Make a figure of it; less is better, and None is no target."""
        measured = f"{self.median:.2f}x ({min(self.values):.2f} .. {max(self.values):.2f})"
        if target is None:
            return Figure(what, measured)
        return Figure(what, measured, f"<= {target:.2f}x", self.median <= target)

    def times_faster(self, what: str, target: float) -> Figure:
        """Make a figure of how many times quicker than the peer it is."""
        quicker = Ratio(tuple(1 / value for value in self.values))
        measured = f"{quicker.median:.1f}x faster ({min(quicker.values):.1f} .. {max(quicker.values):.1f})"
        return Figure(what, measured, f">= {target:.1f}x", quicker.median >= target)


def compare_calls(
    ours: Callable[[], object],
    peer: Callable[[], object],
    pairs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Compare the seconds of two calls in this process, each made once before for nothing.

    Args:
        clock: gives seconds, of the wall clock by default.
    """

    def seconds(call: Callable[[], object]) -> float:
        begin = clock()
        call()
        return clock() - begin

    ours(), peer()
    return Ratio(tuple(a / b for a, b in _in_turn(lambda: seconds(ours), lambda: seconds(peer), pairs)))


def compare_commands(
    ours: Sequence[str], peer: Sequence[str], pairs: int, environment: Mapping[str, str] | None = None
) -> tuple[Ratio, Ratio]:
    """Compare the wall time and the peak memory of two commands, each a whole process.

    Args:
        environment: of our command; None for this process's own.
    """
    rounds = list(_in_turn(lambda: _run(ours, environment), lambda: _run(peer), pairs))
    time_ratio, memory_ratio = (
        Ratio(tuple(a[figure] / b[figure] for a, b in rounds)) for figure in ("seconds", "peak")
    )
    return time_ratio, memory_ratio


def compare_cpu(ours: Sequence[str], peer: Sequence[str], pairs: int) -> Ratio:
    """Compare the CPU time of two commands on one thread."""
    return Ratio(tuple(a / b for a, b in cpu_seconds(ours, peer, pairs)))


def cpu_seconds(ours: Sequence[str], peer: Sequence[str], pairs: int) -> list[tuple[float, float]]:
    """Return the CPU seconds of two commands on one thread, in turn, each run once before for nothing."""
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    _run(ours, alone), _run(peer, alone)
    rounds = _in_turn(lambda: _run(ours, alone), lambda: _run(peer, alone), pairs)
    return [(a["cpu"], b["cpu"]) for a, b in rounds]


def _in_turn(ours: Callable[[], T], peer: Callable[[], T], pairs: int) -> Iterator[tuple[T, T]]:
    """Measure A B, B A, A B ..."""
    for pair in range(pairs):
        if pair % 2:
            second = peer()
            yield ours(), second
        else:
            first = ours()
            yield first, peer()


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    launcher = [PYTHON, "-I", "-S", str(_USAGE), *command]
    finished = subprocess.run(launcher, capture_output=True, text=True, env=environment, check=True)
    usage = json.loads(finished.stdout)
    if usage["code"] != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {usage['code']}: {finished.stderr}")
    return usage
