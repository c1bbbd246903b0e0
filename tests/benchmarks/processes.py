"""Two processes of one thread, which share out the blocks of a folder, against one process of two threads.

A block is one forward and its statistics in one process, and nothing is waited for but the last block of a phase: n
processes on n cores are n times one process, less that block and what they share, the memory's bandwidth. Threads
share every layer instead, and wait for one another at its end.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, run

from figure import Figure
from paired import Ratio
from photos import write_photos

N_PHOTOS, BATCH = 320, 8
_STATS = (
    "-m",
    "modelscope_cli",
    "stats",
    "photos",
    "-m",
    "resnet18",
    "-w",
    "none",
    "-q",
    "--batch",
    str(BATCH),
)
_COLUMNS = ("--columns", "mean,std,min,max", "--workers", "0")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def measure(pairs: int | None) -> Iterator[Figure]:
    """Take the time of a block from the first that is finished to the last, as starting is not what is compared."""
    with tempfile.TemporaryDirectory() as place:
        write_photos(Path(place) / "photos", N_PHOTOS, (500, 375))
        rounds = [
            (_seconds(place, _TORCHRUN, 1, f"two{n}"), _seconds(place, (), 2, f"one{n}"))
            for n in range(pairs or 3)
        ]
    ratio = Ratio(tuple(two / one for two, one in rounds))
    what = f"time of `stats` (resnet18 at 224, {N_PHOTOS} photos) with two processes / one with two threads"
    yield ratio.at_most(what, 1.0)


def _seconds(place: str, launcher: tuple[str, ...], threads: int, out: str) -> float:
    command = [sys.executable, *launcher, *_STATS, *_COLUMNS, "--out", out]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    run(command, cwd=place, env=env, check=True, stdout=DEVNULL, stderr=DEVNULL)
    written = [file.stat().st_mtime for file in (Path(place) / out / "blocks").iterdir()]
    # Of several processes each has finished one by the time the clock starts.
    return (max(written) - min(written)) / (len(written) - (2 if launcher else 1))
