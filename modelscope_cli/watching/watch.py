"""`watch`: look inside a training while it runs, a script's or the caller's own loop, without disturbing it."""

import shlex
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.patterns import parse_pattern
from modelscope_cli.library_types import Module, Optimizer
from modelscope_cli.records.keywords import spelled_out
from modelscope_cli.records.naming import LONGEST_RUN
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.refusals import check_range, check_word, refuse_without
from modelscope_cli.records.run import invocation
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.request import WatchRequest

if TYPE_CHECKING:
    from modelscope_cli.watching.own_loop import WatchedLoop
Models: TypeAlias = Module | Sequence[Module]
Optimizers: TypeAlias = Optimizer | Sequence[Optimizer]


@overload
def watch(
    what: str | PathLike[str] | None = None,
    optimizer: None = None,
    *,
    arguments: Sequence[str] = (),
    module: bool = False,
    every: int | None = None,
    steps: int | None = None,
    abort_on: str | None = None,
    report: str | PathLike[str] | None = None,
    layer: str | Sequence[str] = (),
    out: str | PathLike[str] | None = None,
    force: bool = False,
    try_fixes: bool = False,
    fix_time: float | None = None,
    fix_writes: Sequence[str | PathLike[str]] = (),
    progress: Progress | None = None,
) -> WatchRecord: ...


@overload
def watch(
    what: "Models",
    optimizer: "Optimizers | None" = None,
    *,
    every: int | None = None,
    steps: int | None = None,
    abort_on: str | None = None,
    layer: str | Sequence[str] = (),
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> "WatchedLoop": ...


@spelled_out
def watch(
    what: "str | PathLike[str] | Models | None" = None,
    optimizer: "Optimizers | None" = None,
    *,
    arguments: Sequence[str] = (),
    module: bool = False,
    every: int | None = None,
    steps: int | None = None,
    abort_on: str | None = None,
    report: str | PathLike[str] | None = None,
    layer: str | Sequence[str] = (),
    out: str | PathLike[str] | None = None,
    force: bool = False,
    try_fixes: bool = False,
    fix_time: float | None = None,
    fix_writes: Sequence[str | PathLike[str]] = (),
    progress: Progress | None = None,
) -> "WatchRecord | WatchedLoop":
    """Run a training script and return what happened inside its models; or watch a loop of your own.

    >>> record = watch("train.py", arguments=["--epochs", "3"])

    >>> with watch(model, optimizer) as watched:
    ...     for images, labels in loader:
    ...         ...                      # your own steps; the weights stay bit-identical
    >>> watched.findings

    The script runs as under Python: its output and tracebacks are unchanged.

    Args:
        what: the script, or with `module` the name of a module as in `python -m`; or the model of your own loop, or
            several.
        optimizer: the optimizer of the loop, or several: only their steps count. None: all that train the models.
        arguments: the script's own arguments.
        module: SCRIPT is the name of a module, as with python -m.
        every: record every K-th step.
        steps: stop the script after N steps.
        abort_on: stop the script with exit code 1 at the first NaN or finding.
        report: build the report from the log of a killed run, in its folder or in that of out, without running
            anything. Also draws the figures from the log of a run that ended.
        layer: layer patterns without positions.
        out: folder for the log, written as it goes, and the report; `force` allows one that is not empty.
        try_fixes: run the script again with one thing changed each time, if its verdict is a fault or cannot be
            told, to prove what makes it learn. With `report`, after a run that has ended.
        fix_time: seconds for all trials. None: at most twelve times the run, and ten minutes.
        fix_writes: folders in which trials may write besides their own copy of the files.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the script is not Python, a log is of another version, a file cannot be written (exit 4).
    """
    invoked = invocation()
    patterns = (layer,) if isinstance(layer, str) else tuple(layer)
    folder = Path(out) if out is not None else None
    writes = tuple(Path(place).absolute() for place in fix_writes)
    request = WatchRequest(
        every, steps, abort_on, patterns, folder, force, try_fixes, fix_time, writes, progress or SILENT
    )
    _check(request)
    if report is not None:
        if what is not None:
            raise UsageError(
                f"--report '{report}' runs no script, so '{what}' is not needed", f"leave out {what}"
            )
        from modelscope_cli.watching.conclude import conclude
        from modelscope_cli.watching.read_record import read_record

        if try_fixes:
            from modelscope_cli.watching.trials.fixes import try_afterwards

            try_afterwards(Path(report), request)
        return conclude(read_record(Path(report)), folder, request, report=Path(report))
    if what is None:
        raise UsageError("no script to watch", "modelscope demo   and then: modelscope watch demo/train.py")
    if not isinstance(what, str | PathLike):
        if arguments or module:
            raise UsageError("'arguments' and 'module' apply to a script only", "leave them out")
        if try_fixes:
            raise UsageError("'try_fixes' reruns a script; it cannot rerun your own loop", "leave it out")
        from modelscope_cli.watching.own_loop import WatchedLoop

        return WatchedLoop(what, optimizer, request)
    if optimizer is not None:
        raise UsageError(
            "'optimizer' is for a loop of your own; a script's optimizers are found", "leave it out"
        )
    from modelscope_cli.watching.runner import Script

    script = Script(fspath(what), list(arguments), module)
    from modelscope_cli.watching.run_script import run_script

    return run_script(script, request, invoked)


def _check(request: WatchRequest) -> None:
    check_range("every", request.every, least=1, most=LONGEST_RUN)
    check_range("steps", request.steps, least=1, most=LONGEST_RUN)
    check_range("fix_time", request.fix_time, least=1)
    for option in ("fix_time", "fix_writes"):
        value = getattr(request, option)
        if value and not request.try_fixes:
            refuse_without(option, value, "try_fixes", True)
    check_word("abort_on", request.abort_on, ("nan", "findings"))
    for pattern in request.patterns:
        if parse_pattern(pattern).is_positional:
            message = f"layer pattern '{pattern}' names calls; every call of a layer is watched"
            raise UsageError(message, f"try {shlex.quote(parse_pattern(pattern).body)}")
