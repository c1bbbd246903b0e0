"""How often do trials prove the cause? Runs `watch --try-fixes` on trainings with one known fault.

    python tests/bench/trials/run.py --half worked      the half that the trials were made with
    python tests/bench/trials/run.py --half apart       the other half: its programs are not shown
    python tests/bench/trials/run.py --half apart --show --json answers.json

A program is a family of `train.py` with one fault, or with none. One whose fault does no harm (its metric is within
a tenth of that of its twin without the fault) is counted, and not judged.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ALL = "table images sequences sentences prices tags"
CLASSES = "table images sequences sentences"
RECIPE = ("fresh AdamW",)  # it names the optimizer, its rate and its line
LOW = ("rate x 10", "rate x 100", "rate x 10000", *RECIPE)
HIGH = ("rate / 10", "rate / 100", "rate / 10000", *RECIPE)
# By fault: its families, the trials that undo it, and the codes of rules that name it
FAULTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "clip": (ALL, ("no clipping",), "MS741"),
    "eps": ("table sequences sentences prices", ("usual settings",), ""),
    "betas": ("table sequences sentences prices", ("usual settings",), ""),
    "momentum": ("images tags", ("usual settings",), ""),
    "rate far too low": (ALL, LOW, "MS710"),
    "rate far too high": (ALL, HIGH, "MS701 MS704 MS709"),
    "decay": (ALL, ("no weight decay",), "MS744"),
    "raw pixels": ("images", ("standardised inputs",), "MS726"),
    "far from zero": ("table images prices tags", ("standardised inputs",), "MS726"),
    "one feature is huge": ("table prices tags", ("standardised inputs",), "MS726"),
    "a hole": ("table images sequences prices tags", ("finite batches",), "MS728"),
    "sorted": ("table images sequences", ("random order",), "MS725"),
    "initialisation": ("table images sequences prices tags", ("default initialisation",), "MS739"),
    "frozen": ("table images sequences sentences prices tags", ("unfreeze",), "MS717"),
    "head only": (ALL, ("missing parameters",), "MS712"),
    "schedule": (ALL, ("constant rate",), "MS719"),
    "smoothing": (CLASSES, ("no label smoothing",), ""),
    "scaled": (ALL, ("no scaler",), "MS745"),
    "softmax": (CLASSES, ("no double softmax",), "MS720"),
    "sigmoid": ("tags", ("no double softmax",), "MS720"),
    "sign": ("table images sequences sentences tags", ("sign",), "MS722"),
    "no zero_grad": (ALL, ("clear gradients",), "MS713"),
    "dropout": ("table images prices tags", ("no dropout",), "MS764"),
    # What no trial undoes
    "labels of others": (ALL, (), "MS792 MS756"),
    "rows": (ALL, (), "MS792 MS756"),
    "own backward": ("table images prices tags", (), "MS791"),
    "detached": ("table images prices tags", (), "MS715 MS791"),
    "scale of the output": (ALL, (), "MS793"),
}
NONE = "none"
_HARMLESS = 0.1  # share of the metric of the twin


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said of one program.

    Attributes:
        twin, alone, advised: the metric without the fault, with it, and with it and the change that was proved.
        first: code of the first finding, or the verdict; trial: that was proved, None without one.
        run_s, trials_s: time of the script alone, and what the trials added.
    """

    family: str
    fault: str
    twin: float
    alone: float
    advised: float | None
    is_higher: bool
    first: str
    trial: str | None
    tried: str
    run_s: float
    trials_s: float
    left_behind: int

    @property
    def is_sick(self) -> bool:
        return self.fault != NONE

    @property
    def is_harmless(self) -> bool:
        return self.is_sick and self._is_near(self.alone)

    @property
    def is_right(self) -> bool:
        """Whether the change that was proved undoes the fault."""
        return self.is_sick and self.trial in FAULTS[self.fault][1]

    @property
    def is_named_first(self) -> bool:
        return self.is_sick and (self.first in FAULTS[self.fault][2].split() or self.is_right)

    @property
    def has_good_advice(self) -> bool:
        return self.advised is not None and self._is_near(self.advised)

    def _is_near(self, metric: float) -> bool:
        worse = self.twin - metric if self.is_higher else metric - self.twin
        # A mean squared error is compared with that of guessing, about 3.
        return worse <= _HARMLESS * (self.twin if self.is_higher else max(self.twin, 1.0))


def programs(half: str) -> list[tuple[str, str, int]]:
    """Return family, fault and seed of the programs of one half."""
    every = [(family, fault) for fault, (families, *_) in FAULTS.items() for family in families.split()]
    every += [(family, NONE) for family in ALL.split()]
    chosen = [one for one in every if (zlib.crc32(" ".join(one).encode()) % 2 == 0) == (half == "worked")]
    return [(family, fault, zlib.crc32(f"{fault} {family}".encode()) % 1000) for family, fault in chosen]


def judge(family: str, fault: str, seed: int) -> Answer:
    """Run a program alone, its twin, `watch --try-fixes`, and the change that was proved to the end."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_bytes((HERE / "train.py").read_bytes())
        twin, is_higher, _ = metric_of(script, family, NONE, seed)
        alone, _, run_s = metric_of(script, family, fault, seed)
        before = sorted(Path(folder).rglob("*"))
        began = time.perf_counter()
        words = ["-m", "modelscope_cli", "watch", "--quiet", "--json", "--try-fixes", "--out", "out"]
        subprocess.run(
            [sys.executable, *words, str(script), family, fault, str(seed)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
        )
        took = time.perf_counter() - began
        record = json.loads((Path(folder) / "out" / "report.json").read_text())
        left = {one for one in Path(folder).rglob("*") if "out" not in one.parts} - {*before}
        fix = record["fix"]
        return Answer(
            family,
            fault,
            twin,
            alone,
            _advised(script, family, fault, seed, fix["trial"]) if fix else None,
            is_higher,
            record["findings"][0]["code"] if record["findings"] else record["verdict"],
            fix["trial"] if fix else None,
            record["tried"],
            run_s,
            took - record["elapsed_ms"] / 1000,
            len(left),
        )


def metric_of(script: Path, family: str, fault: str, seed: int) -> tuple[float, bool, float]:
    """Return the metric, whether higher is better, and the seconds that it took."""
    began = time.perf_counter()
    line = [sys.executable, str(script), family, fault, str(seed)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return *_metric(done.stdout), time.perf_counter() - began


def _metric(text: str) -> tuple[float, bool]:
    value, direction = text.split("METRIC ")[1].split()
    return (float("inf") if value == "nan" and direction == "lower" else float(value)), direction == "higher"


def _advised(script: Path, family: str, fault: str, seed: int, trial: str) -> float:
    """Return the metric of the whole training with a change."""
    code = (
        "import sys; from contextlib import ExitStack; from modelscope_cli.watching.runner import Script\n"
        "from modelscope_cli.watching.trials.catalogue import CHANGES\n"
        "from modelscope_cli.watching.trials.change import Act\n"
        "with CHANGES[sys.argv[1]](Act(lambda **_: None, lambda: None)):\n"
        "    Script(sys.argv[2], sys.argv[3:], False).run(sys.stderr.write)\n"
    )
    line = [sys.executable, "-c", code, trial, str(script), family, fault, str(seed)]
    done = subprocess.run(
        line, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    return _metric(done.stdout)[0]


def table(answers: list[Answer]) -> str:
    sick = [one for one in answers if one.is_sick and not one.is_harmless]
    fixable = [one for one in sick if FAULTS[one.fault][1]]
    proved = [one for one in sick if one.trial is not None]
    healthy = [one for one in answers if not one.is_sick]
    ratios = [one.trials_s / one.run_s for one in answers if one.trial is not None or one.is_sick]
    lines = [
        _share("faults that a trial can change: proved, and right", [one.is_right for one in fixable]),
        _share("all faults: named first", [one.is_named_first for one in sick]),
        _share("proved: the metric reaches that of the twin", [one.has_good_advice for one in proved]),
        _share("proved, but another cause", [not one.is_right for one in proved]),
        _share("healthy, given a fix", [one.trial is not None for one in healthy]),
        f"{'time of the trials / of the script':52} {statistics.median(ratios):.1f}x, most {max(ratios):.1f}x",
        f"{'files left behind':52} {sum(one.left_behind for one in answers)}",
        f"{'faults that do no harm, not judged':52} {sum(one.is_harmless for one in answers)}",
    ]
    return "\n".join(lines)


def _share(what: str, found: list[bool]) -> str:
    return f"{what:52} {sum(found):3} of {len(found):3}" + (
        f"  {sum(found) / len(found):6.1%}" if found else ""
    )


def main() -> int:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--half", choices=["worked", "apart"], default="worked")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="in the fault or the family"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="programs at a time")
    parser.add_argument("--show", action="store_true", help="show what was said of each program")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer to a file")
    options = parser.parse_args()
    chosen = [
        one
        for one in programs(options.half)
        if not options.only or any(text in one[:2] for text in options.only)
    ]
    answers: list[Answer] = []

    def ask(program: tuple[str, str, int]) -> None:
        try:
            answers.append(judge(*program))
        except (FileNotFoundError, subprocess.CalledProcessError) as error:  # no report; the script fails
            print(f"{program[1]} {program[0]}: {error}", file=sys.stderr)
            return
        if options.show or options.half == "worked":
            print(_line(answers[-1]), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(ask, chosen))
    answers.sort(key=lambda one: (one.fault, one.family))
    print(f"\n{table(answers)}\n\n{len(answers)} of {len(chosen)} programs were judged")
    if options.json is not None:
        documents: list[dict[str, Any]] = [asdict(one) for one in answers]
        options.json.write_text(json.dumps(documents, indent=1))
    return 0


def _line(one: Answer) -> str:
    mark = "harmless" if one.is_harmless else "ok" if one.is_named_first or not one.is_sick else "WRONG"
    return (
        f"{mark:8} {one.fault:20} {one.family:9} {one.alone:8.3f} (twin {one.twin:.3f}, advised "
        f"{'-' if one.advised is None else f'{one.advised:.3f}'}) {one.first:6} {one.trial or '-':22} "
        f"{one.trials_s / one.run_s:4.1f}x  {one.tried[:90]}"
    )


if __name__ == "__main__":
    sys.exit(main())
