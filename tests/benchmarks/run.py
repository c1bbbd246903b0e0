"""Print how this checkout does against its peers, as a Markdown table.

    pip install -e '.[bench]'
    python tests/benchmarks/run.py              every benchmark, 30 to 60 minutes
    python tests/benchmarks/run.py grid startup only these
    python tests/benchmarks/run.py --pairs 1    a quick look

Times and memory are ratios to a peer measured in turn with us, the median over all pairs (lowest .. highest).
Exits with 1 where a figure is missed.
"""

import argparse
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from figure import HEADER, Figure

ROOT = Path(__file__).parents[2]
# Modules of this folder, each with a `measure(pairs)` that yields figures.
BENCHMARKS = (
    "published", "every_model", "summary_cost", "training_memory", "startup", "first_answers", "stats_time",
    "stats_memory", "stats_accuracy", "feed_throughput", "processes", "gradients", "diff_memory", "grid",
    "early_stop", "ablation", "weights_cost", "watch_cost",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--pairs", type=int, metavar="N", help="measure each pair N times")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark '{min(unknown)}', only {', '.join(BENCHMARKS)}")
    # This checkout is measured, whether or not some version is installed, here and in child processes.
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)
    # Like an installed package, ours may keep its bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(HEADER, flush=True)
    figures: list[Figure] = []
    for name in options.names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr)
        for figure in import_module(name).measure(options.pairs):
            figures.append(figure)
            print(figure.row(), flush=True)
    print(f"\ntorch {version('torch')}, torchvision {version('torchvision')}, {os.cpu_count()} cores")
    return 1 if any(figure.is_reached is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
