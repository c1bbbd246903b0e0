"""Programs and their labels, tools and their answers."""

import importlib.util
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ADAPTERS = HERE / "adapters"
HEALTHY, SHORT, SICK = "healthy", "too short", "sick"
CANNOT_TELL = "cannot tell"
LATE = 10  # steps by which a tool may miss the first step of a fault that begins late
PATIENCE = 600  # seconds for one program


@dataclass(frozen=True, slots=True)
class Program:
    """A training as people write it, and what is right to say of it.

    Attributes:
        kind: what is wrong with it, or what is unusual about it though healthy.
        answer: HEALTHY: nothing is wrong. SHORT: too short to tell. SICK: a finding is due.
        is_certain: the loop itself shows the fault, whether or not the model learns something nevertheless.
        run: the script, relative to this folder, and its arguments.
        ranks: processes that train together.
        first_step: from which step on the fault is at work; None where that is gradual, or there is none.
    """

    name: str
    part: str
    kind: str
    answer: str
    is_certain: bool
    run: tuple[str, ...]
    ranks: int = 1
    first_step: int | None = None

    @property
    def seed(self) -> int:
        """Every program has data and weights of its own."""
        return zlib.crc32(f"{self.part} {self.name}".encode()) % 10_000

    def command(self, shift: int = 0) -> list[str]:
        """Return the script and its arguments; `shift` is added to the seed of a program of `train.py`."""
        script, *arguments = self.run
        seed = [str(self.seed + shift)] if script == "train.py" else []
        return [str(HERE / script), *arguments, *seed]


@cache
def load() -> tuple[Program, ...]:
    """Read the manifest."""
    manifest = json.loads((HERE / "manifest.json").read_text())
    programs = []
    for name, row in manifest["programs"].items():
        kind = manifest["kinds"][row["kind"]]
        label = {"answer": kind["answer"], "is_certain": kind.get("certain", False), "run": tuple(row["run"])}
        programs.append(Program(name, **{**row, **label}))
    return tuple(programs)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said of a program.

    Attributes:
        findings: of the adapter protocol: `kinds`, `step`, `says`; in the order in which they are told.
        verdict: None where the tool has none.
        trouble: why there is no answer; None where there is one.
    """

    program: Program
    findings: tuple[dict[str, Any], ...] = ()
    verdict: str | None = None
    trouble: str | None = None

    @property
    def is_found(self) -> bool:
        return self.trouble is None and bool(self.findings)

    @property
    def is_named_first(self) -> bool:
        return self.is_found and self.program.kind in self.findings[0]["kinds"]

    @property
    def is_dated(self) -> bool:
        step, first = self.findings[0].get("step") if self.is_named_first else None, self.program.first_step
        return step is not None and first is not None and abs(step - first) <= LATE

    @property
    def is_right(self) -> bool:
        if self.trouble is not None or self.program.answer == SICK:
            return self.is_named_first
        return not self.findings and (self.program.answer == HEALTHY or self.verdict == CANNOT_TELL)

    def line(self) -> str:
        """Say what was expected and what was said, for a reader who looks for the difference."""
        said = self.trouble or "; ".join(f"{one['says']} @{one.get('step')}" for one in self.findings[:2])
        program = self.program
        return f"{program.name} ({program.kind}, {program.answer}): {said or self.verdict or 'quiet'}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "program": self.program.name}


def judge_all(programs: Iterable[Program], tool: str, jobs: int, shift: int = 0) -> Iterator[Answer]:
    """Yield the answers as they come, `jobs` programs at a time, each in a process of its own."""
    with ThreadPoolExecutor(jobs) as threads:
        for done in as_completed([threads.submit(judge, program, tool, shift) for program in programs]):
            yield done.result()


def judge(program: Program, tool: str, shift: int = 0) -> Answer:
    """Have one program judged.

    Args:
        tool: the name of a file in `adapters/`, whose `judge` is called in a fork of a warm process; or a command
            line.
    """
    by = _by_adapter if (ADAPTERS / f"{tool}.py").exists() else _by_command
    said = by(program, tool, shift)
    findings = tuple(said.get("findings", ()))
    return Answer(program, findings, said.get("verdict"), said.get("trouble"))


def _by_command(program: Program, tool: str, shift: int) -> dict[str, Any]:
    """Run `TOOL SCRIPT ARGUMENTS...`, and read what it writes into the file named by VERDICT_JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verdict.json"
        environment = {**os.environ, "VERDICT_JSON": str(file), "VERDICT_RANKS": str(program.ranks)}
        command = [*shlex.split(tool), *program.command(shift)]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"trouble": str(error)}
        return (
            json.loads(file.read_text()) if file.exists() else {"trouble": done.stderr[-300:] or "no verdict"}
        )


@cache
def _warm() -> multiprocessing.context.ForkServerContext:
    """Return a context whose processes are forked from one that has imported what they all need."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE.parents[2]), str(HERE), os.environ.get("PYTHONPATH", "")]
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torch.optim", "torch.utils.data", "modelscope_cli.watching.watcher"]
    )
    return context


def _by_adapter(program: Program, tool: str, shift: int) -> dict[str, Any]:
    ours, theirs = _warm().Pipe()
    process = _warm().Process(target=_call, args=(theirs, tool, program.command(shift), program.ranks))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(PATIENCE) else {"trouble": f"no answer in {PATIENCE} s"}
    except EOFError:
        return {"trouble": "its process died"}
    finally:
        process.kill()
        process.join()


def _call(pipe: Connection, tool: str, command: list[str], ranks: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(command[0]).parent))  # as Python does for a script
    try:
        said = load_adapter(tool).judge(command, ranks)
    except (Exception, SystemExit) as error:  # an answer too: the rest of the bench goes on
        said = {"trouble": f"{type(error).__name__}: {error}"}
    pipe.send(json.loads(json.dumps(said)))


def load_adapter(tool: str) -> Any:
    """Import a file of `adapters/`."""
    sys.path[:0] = [str(HERE), str(ADAPTERS)]
    spec = importlib.util.spec_from_file_location(f"adapter_{tool}", ADAPTERS / f"{tool}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
