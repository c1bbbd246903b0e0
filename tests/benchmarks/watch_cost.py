"""What `watch` adds to a training script, in time and memory, and how large its report gets."""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from figure import Figure
from paired import PYTHON, compare_commands, cpu_seconds

STEPS, LONG = 300, 100_000
SHORT = 200, 2000  # steps of the small net
_PEERS = Path(__file__).parent / "peers"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare whole commands, imports and report included."""
    script = str(_PEERS / "resnet18_training.py")
    bare = [PYTHON, script, str(STEPS)]
    what = f"a resnet18, {STEPS} steps of 16 images"
    with tempfile.TemporaryDirectory() as folder:
        watch = [PYTHON, "-m", "modelscope_cli", "watch", "--force", "--out", folder, "-q"]
        seconds, peak = compare_commands([*watch, script, str(STEPS)], bare, pairs or 3)
        yield seconds.at_most(f"time of `watch` / bare ({what})", 1.10)
        yield peak.at_most(f"peak memory of `watch` / bare ({what})", 1.05)
        seconds, _ = compare_commands([*watch, "--every", "1", script, str(STEPS)], bare, pairs or 3)
        yield seconds.at_most(f"time of `watch --every 1` / bare ({what})", 1.6)

        for steps in SHORT:
            small = [str(_PEERS / "small_training.py"), str(steps)]
            rounds = cpu_seconds([*watch, *small], [PYTHON, *small], pairs or 3)
            extra = [watched - 1.05 * alone for watched, alone in rounds]
            bare_s = median(alone for _, alone in rounds)
            what = f"12 small layers, {steps:,} steps, {bare_s:.1f} s bare"
            measured = f"{median(extra):.2f} s ({min(extra):.2f} .. {max(extra):.2f})"
            what = f"CPU time of `watch` beyond 1.05x of bare ({what})"
            yield Figure(what, measured, "<= 0.50 s", median(extra) <= 0.5)

        long = [*watch, str(_PEERS / "tiny_training.py"), str(LONG)]
        subprocess.run(long, check=True, capture_output=True)
        report = Path(folder, "report.json")
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        begin = time.perf_counter()
        json.loads(report.read_text(encoding="utf-8"))
        opened = time.perf_counter() - begin
        what = f"the report of {LONG:,} steps of a tiny model"
        yield Figure(f"{what}, with its figures", f"{size:.1f} MB", "<= 20 MB", size <= 20)
        yield Figure(f"{what}: time to open", f"{opened:.2f} s", "<= 2 s", opened <= 2)
