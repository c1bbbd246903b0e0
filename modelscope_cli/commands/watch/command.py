"""`modelscope watch`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import Destination, destination, emit
from modelscope_cli.shell.run import set_up, tell
from modelscope_cli.shell.verdict import FailOn, FailOnOpt, is_failed

if TYPE_CHECKING:
    from modelscope_cli.watching.ranks import Ranks
    from modelscope_cli.watching.runner import Script

_WAIT_FOR_RANKS_S = 20.0  # torchrun gives half a minute to those it ends


class AbortOn(StrEnum):
    """What stops the script."""

    nan = "nan"
    findings = "findings"


def watch(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="The training script; with -m a module.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Its own arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module's name, as in python -m.")
    ] = False,
    every: Annotated[
        int | None,
        typer.Option(
            "--every",
            min=1,
            metavar="K",
            help="Look at every K-th step.",
            show_default="every one at first, then ever fewer",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="Stop the script after N steps.")
    ] = None,
    abort_on: Annotated[
        AbortOn | None,
        typer.Option("--abort-on", help="Stop the script, with exit code 1, once this is seen."),
    ] = None,
    fail_on: FailOnOpt = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="DIR", help="Run nothing: report on the log of a run that was killed."
        ),
    ] = None,
    layer: opt.LayersOpt = None,
    out: opt.OutDirOpt = None,
    force: opt.ForceOpt = False,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> int:
    """Run your own training script, unchanged, and see what happens inside the models it trains.

    The script's output, exit code and traceback are its own; so are its weights, to the last bit. At the end
    comes a verdict with the layer and the step since when, a table, and a folder of figures. It is written also
    after an exception, an interrupt or SIGTERM; after anything worse --report makes it from the log.

    Examples:

      modelscope watch samples/train.py

      modelscope watch --fail-on error samples/train.py --variant sick

      modelscope watch --layer relu --steps 20 --every 1 samples/train.py
    """
    from modelscope_cli.commands.watch.table import check_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    check_columns(columns)
    if report is not None:
        if script is not None:
            raise UsageError(
                f"--report '{report}' runs no script, '{script}' is one too many", "leave it out"
            )
        return _finish(report, where, columns, fail_on, 0, None)
    if script is None:
        raise UsageError("no script to watch", "modelscope watch samples/train.py")

    from modelscope_cli.hooks.patterns import parse_pattern
    from modelscope_cli.watching.runner import Script

    for pattern in layer or ():
        if parse_pattern(pattern).is_positional:
            message = f"layer pattern '{pattern}' speaks of calls; every call of a layer is watched"
            raise UsageError(message, f"--layer '{parse_pattern(pattern).body}'")
    found = Script(script, arguments or [], module)
    return _watch(found, where, every, steps, abort_on, fail_on, tuple(layer or ()), out, force, columns)


def _watch(
    script: "Script",
    where: Destination,
    every: int | None,
    steps: int | None,
    abort_on: AbortOn | None,
    fail_on: FailOn | None,
    patterns: tuple[str, ...],
    out: Path | None,
    force: bool,
    columns: str | None,
) -> int:
    import os

    from modelscope_cli.watching.log import Log, log_file
    from modelscope_cli.watching.ranks import find_ranks, forget_folder, wait_for_others
    from modelscope_cli.watching.read_record import read_outcome
    from modelscope_cli.watching.runner import gentle_sigterm
    from modelscope_cli.watching.watcher import StopScript, Watcher

    ranks = find_ranks()
    folder = _open_folder(ranks, out, force, script.name)
    log = Log(log_file(folder, ranks.rank))
    argv = [*_console.settings.argv]
    log.write("begin", script=script.name, argv=argv, rank=ranks.rank, world=ranks.world)

    def judge() -> str | None:
        findings = read_outcome(folder, world=1).findings
        return f"{findings[0].code} {findings[0].message}" if findings else None

    process = os.getpid()
    refusal = None
    with gentle_sigterm() as hold_off:
        with _console.live_line() as show, _without_compile_warning():
            watcher = Watcher(
                log,
                every,
                patterns,
                steps=steps,
                is_stopped_by_nan=abort_on == AbortOn.nan,
                judge=judge if abort_on == AbortOn.findings else None,
                show=show if ranks.is_first else None,
                warn=_console.warn,
            )
            try:
                with watcher.recorder.installed():
                    code = script.run(_console.write_error)
            except StopScript as stop:
                code, refusal = stop.exit_code, stop.refusal
                if stop.reason and ranks.is_first:
                    _console.note(stop.reason)
        if os.getpid() != process:  # forked off by the script, and come back here
            return code
        hold_off()
        elapsed = round((time.monotonic() - _console.settings.started) * 1000, 1)
        n_backward = watcher.recorder.losses.n_backward
        log.write("end", code=code, steps=watcher.recorder.n_steps, backward=n_backward, elapsed_ms=elapsed)
        log.close()
        if not ranks.is_first:
            return code
        late = wait_for_others(folder, ranks, _WAIT_FOR_RANKS_S)
        for rank in late:
            _console.warn(f"rank {rank} has not finished; what it wrote so far is in the report")
        forget_folder(ranks)
        if refusal is not None:
            raise refusal
        return _finish(folder, where, columns, fail_on, code, elapsed)


@contextmanager
def _without_compile_warning() -> Iterator[None]:
    """Torch warns that global hooks count a compiled model's wrapper as well; ours count it once."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"Using `torch.compile\(module\)` when there are global hooks"
        )
        yield


def _open_folder(ranks: "Ranks", out: Path | None, force: bool, name: str) -> Path:
    from modelscope_cli.report.folder import OutputFolder, free_folder, make_folder
    from modelscope_cli.watching.ranks import check_ranks, share_folder, wait_for_first

    check_ranks(ranks, out is not None)
    if ranks.is_first:
        folder = out or free_folder("watch", Path(name).stem if name.endswith(".py") else name)
        OutputFolder(folder, force).check()
        make_folder(folder)
        share_folder(ranks, folder)
        return folder
    if out is None:
        return share_folder(ranks, None)
    wait_for_first(out, ranks, force)
    return out


def _finish(
    folder: Path,
    where: Destination,
    columns: str | None,
    fail_on: FailOn | None,
    code: int,
    elapsed_ms: float | None,
) -> int:
    """Write the report from the log and say what was found; return the exit code."""
    from modelscope_cli.commands.watch.folder import save_watch_report
    from modelscope_cli.commands.watch.table import watch_sheet
    from modelscope_cli.report.folder import OutputFolder
    from modelscope_cli.watching.read_record import read_outcome

    record = read_outcome(folder, elapsed_ms=elapsed_ms or 0.0)
    document = record.to_dict()
    with OutputFolder(folder, is_forced=True).open() as stage:
        save_watch_report(record, document, stage)
    tell((), record.run.warnings)
    _console.note(f"wrote {folder}")
    emit(where, watch_sheet(record, columns), document)
    return code or int(is_failed(record.findings, fail_on))
