"""Run programs under `watch` and compare what it says with their labels."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs.kinds import HEALTHY, SHORT, SICK
from programs.registry import Program

SCRIPT = Path(__file__).with_name("train.py")
ROOT = Path(__file__).parents[2]
CANNOT_TELL = "cannot tell"
ALARMS = ("warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """What the bench needs of a finding."""

    code: str
    severity: str
    layer: str | None
    since_step: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What `watch` said of a program.

    Attributes:
        findings: warnings and errors, in the order in which they are told.
        verdict: None where the record has none.
        trouble: why there is no answer; None where there is one.
    """

    program: Program
    findings: tuple[Finding, ...] = ()
    verdict: str | None = None
    trouble: str | None = None
    seconds: float = 0.0

    @property
    def is_found(self) -> bool:
        return bool(self.findings)

    @property
    def is_named_first(self) -> bool:
        return self.is_found and self.findings[0].code in self.program.label.causes

    @property
    def is_right(self) -> bool:
        answer = self.program.label.answer
        if self.trouble is not None:
            return False
        if answer == SICK:
            return self.is_named_first
        return not self.is_found and (answer == HEALTHY or self.verdict == CANNOT_TELL)

    def line(self) -> str:
        """Say what was expected and what was said, for a reader who looks for the difference."""
        label = self.program.label
        expected = (
            " or ".join(sorted(label.causes)) or {HEALTHY: "quiet", SHORT: "'cannot tell'"}[label.answer]
        )
        said = self.trouble or "; ".join(
            f"{one.code} {one.layer or ''} @{one.since_step}: {one.message}" for one in self.findings[:2]
        )
        return (
            f"{self.program.name} ({self.program.kind}): {expected}, but: {said or self.verdict or 'quiet'}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.program.name,
            "half": self.program.half,
            "kind": self.program.kind,
            "answer": self.program.label.answer,
            "causes": sorted(self.program.label.causes),
            "verdict": self.verdict,
            "trouble": self.trouble,
            "is_right": self.is_right,
            "is_found": self.is_found,
            "is_named_first": self.is_named_first,
            "findings": [{name: getattr(one, name) for name in Finding.__slots__} for one in self.findings],
            "seconds": round(self.seconds, 2),
        }


def run_all(programs: Iterable[Program], jobs: int, shift: int = 0) -> Iterator[Answer]:
    """Yield the answers as they come.

    Each of `jobs` threads feeds a process of its own, which runs one program after the other; one that a program
    kills is replaced.
    """
    own = threading.local()

    def answer(program: Program) -> Answer:
        if program.ranks > 1:
            return _by_torchrun(program, shift)
        if not hasattr(own, "pool"):
            own.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare)
        began = time.perf_counter()
        try:
            said = own.pool.submit(_watch, program.half, program.name, shift).result()
        except BrokenProcessPool:
            del own.pool
            said = {"trouble": "its process died"}
        return _answer(program, said, time.perf_counter() - began)

    with ThreadPoolExecutor(jobs) as threads:
        for done in as_completed([threads.submit(answer, program) for program in programs]):
            yield done.result()


def _prepare() -> None:
    """Make a process fit to watch many scripts: no output of theirs, one thread."""
    sys.path.insert(0, str(ROOT))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
    warnings.simplefilter("ignore")


def _watch(half: str, name: str, shift: int) -> dict[str, Any]:
    import modelscope_cli

    for module in [name for name in sys.modules if name.partition(".")[0] == "programs"]:
        del sys.modules[module]  # a script of its own would import them anew, under this watch
    try:
        record = modelscope_cli.watch(str(SCRIPT), arguments=[half, name, str(shift)])
    except Exception as error:  # an answer too: the rest of the bench goes on
        return {"trouble": f"watch failed: {type(error).__name__}: {error}"}
    return json.loads(json.dumps(record.to_dict()))


def _by_torchrun(program: Program, shift: int) -> Answer:
    """Run a program of several ranks as its user would."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        watch = ["-m", "modelscope_cli", "watch", "--quiet", "--out", folder, "--format", "json"]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(program.ranks), *watch, str(SCRIPT), program.half, program.name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, str(shift)], env=environment, capture_output=True, text=True, check=False
        )
        report = Path(folder) / "report.json"
        said = json.loads(report.read_text()) if report.exists() else {"trouble": done.stderr[-300:]}
    return _answer(program, said, time.perf_counter() - began)


def _answer(program: Program, said: dict[str, Any], seconds: float) -> Answer:
    """Read the document of a record, or the trouble that there was instead."""
    if "trouble" in said:
        return Answer(program, trouble=said["trouble"], seconds=seconds)
    findings = tuple(
        Finding(**{name: one[name] for name in Finding.__slots__})
        for one in said["findings"]
        if one["severity"] in ALARMS
    )
    failed = said["exit_code"]
    trouble = f"the script ended with exit code {failed}" if failed else None
    return Answer(program, findings, said.get("verdict"), trouble, seconds)
