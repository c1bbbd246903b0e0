"""What `watch` adds to any training script: its steps, its start and end, its memory.

    python tests/benchmarks/watch_split.py [--pairs N] SCRIPT [ARGUMENTS]...

Runs the script bare and watched at once on one core, in the current folder, and prints CPU seconds, never wall
time. Both wait for each other after 20 steps, so that whatever else the machine does slows down both alike: two
bare runs differ by half a per cent on a busy machine. A step is a call of an optimizer of `torch.optim`. The first
20, which are all recorded, are told apart (`opening`).
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_CLOCK = Path(__file__).with_name("cost_clock")


@dataclass(frozen=True, slots=True)
class Split:
    """One run: CPU seconds up to the first step, of the first 20, of the rest, and after the last; bytes."""

    n: int
    start: float
    opening: float
    steps: float
    end: float
    peak: float


def run(script: Sequence[str], *, is_watched: bool, meeting: str | None = None) -> Split:
    """Run a script once; what it prints is thrown away.

    Args:
        meeting: an empty folder that is also given to the other run; None for a single run.

    Raises:
        RuntimeError: it failed, or took 20 steps or fewer.
    """
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder, "clock.json")
        watch = ["-m", "modelscope_cli", "watch", "--force", "--out", f"{folder}/out", "-q"]
        path = os.pathsep.join(filter(None, (str(_CLOCK), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, *watch * is_watched, *script],
            env=os.environ
            | {"PYTHONPATH": path, "COST_CLOCK": str(clock)}
            | ({} if meeting is None else {"COST_MEETING": meeting}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not clock.exists():
            raise RuntimeError(f"{' '.join(script)} ended with {done.returncode}: {done.stderr[-2000:]}")
        seen = json.loads(clock.read_text(encoding="utf-8"))
    if "opened" not in seen:
        raise RuntimeError(f"{' '.join(script)} took only {seen['steps']} steps of torch.optim")
    times = [0.0, *(seen[name] for name in ("first", "opened", "last", "end"))]
    return Split(seen["steps"], *(b - a for a, b in itertools.pairwise(times)), seen["peak"])


def pair(script: Sequence[str], *, is_null: bool = False) -> tuple[Split, Split]:
    """Run a script bare and watched at once on one core.

    Args:
        is_null: run it bare twice.
    """
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    before = os.sched_getaffinity(0) if core is not None else set()
    with tempfile.TemporaryDirectory() as meeting, ThreadPoolExecutor(2) as pool:
        if core is not None:
            os.sched_setaffinity(0, {core})
        try:
            both = [
                pool.submit(run, script, is_watched=is_watched, meeting=meeting)
                for is_watched in (False, not is_null)
            ]
            bare, watched = (one.result() for one in both)
        finally:
            if core is not None:
                os.sched_setaffinity(0, before)
    return bare, watched


def compare(script: Sequence[str], pairs: int) -> dict[str, float]:
    """Return medians over the pairs: the ratio of the steps, extra seconds of the rest, memory, the bare run."""
    rounds = [pair(script) for _ in range(pairs)]
    return {
        "n": rounds[0][0].n,
        "bare_s": median(a.start + a.opening + a.steps + a.end for a, _ in rounds),
        "watched_s": median(b.start + b.opening + b.steps + b.end for _, b in rounds),
        "steps_bare_s": median(a.steps for a, _ in rounds),
        "steps": median(b.steps / a.steps for a, b in rounds),
        "start_s": median(b.start - a.start for a, b in rounds),
        "opening_s": median(b.opening - a.opening for a, b in rounds),
        "end_s": median(b.end - a.end for a, b in rounds),
        "memory_bare_mb": median(a.peak / 1e6 for a, _ in rounds),
        "memory_mb": median(b.peak / 1e6 for _, b in rounds),
    }


def main(arguments: list[str]) -> None:
    pairs = 1
    if arguments[:1] == ["--pairs"]:
        pairs, arguments = int(arguments[1]), arguments[2:]
    for name, value in compare(arguments, pairs).items():
        print(f"{name:16} {value:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
