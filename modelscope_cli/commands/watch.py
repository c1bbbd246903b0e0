"""`modelscope watch`."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.errors import UsageError, afterwards
from modelscope_cli.ranks import find_ranks
from modelscope_cli.records.findings import is_failed
from modelscope_cli.records.naming import LONGEST_RUN
from modelscope_cli.records.refusals import refuse_without
from modelscope_cli.records.watch import UNKNOWN
from modelscope_cli.report.ci import CI_FORMATS
from modelscope_cli.shell import completion, console
from modelscope_cli.shell.live import open_closed
from modelscope_cli.shell.options import FailOn
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import Out, OutputOptions, format_option
from modelscope_cli.shell.parameters import command

_MISUSED = 2  # exit code of argparse and Click for an unknown option


class _WatchProgress:
    """The console, with the live line."""

    track, note = staticmethod(console.PROGRESS.track), staticmethod(console.note)
    warn, say, live = staticmethod(console.warn), staticmethod(console.say), staticmethod(console.live_line)
    relay = staticmethod(console.write_error)

    def __init__(self, page: Path | None) -> None:
        self.redraw = None if page is None else partial(_renew, page)


def _renew(page: Path, record: Any) -> None:
    from modelscope_cli.report.page.results import save_running

    save_running(record, page)


def _seconds(text: str) -> float:
    """Return the seconds of `90`, `90s`, `5m` or `1h`."""
    number, unit = (text[:-1], text[-1]) if text.endswith(("s", "m", "h")) else (text, "s")
    try:
        return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        raise UsageError(f"'--fix-time {text}' is not a time", "--fix-time 5m") from None


@command
def watch(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="The training script or, with -m, a module.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The script's own arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module, as with python -m.")
    ] = False,
    every: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=LONGEST_RUN,
            help="Record every K-th step.",
            show_default="every step at first, then progressively fewer",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=LONGEST_RUN, help="Stop the script after N steps.")
    ] = None,
    abort_on: Annotated[
        Literal["nan", "findings"] | None,
        typer.Option(help="Stop the script with exit code 1 at the first NaN or finding."),
    ] = None,
    fail_on: FailOn = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="With --fail-on: also exit with 1 if the verdict is `cannot tell yet`."
        ),
    ] = False,
    try_fixes: Annotated[
        bool,
        typer.Option(
            "--try-fixes",
            rich_help_panel="Trials",
            help="If the verdict is a fault or `cannot tell yet`, run the script again with one change at a time, "
            "to prove what makes it learn. With --report, do so for a run that has ended.",
        ),
    ] = False,
    fix_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel="Trials",
            help="The time limit for all trials, such as 90s or 5m.",
            show_default="12 times the run, at most 10m",
        ),
    ] = None,
    fix_writes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            rich_help_panel="Trials",
            help="A folder that trials may write to, besides their own copy of the files (repeatable).",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Build the report from the log of a run that was killed or has ended, in its folder or in --out, "
            "without running anything.",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="PATTERN",
            rich_help_panel="Layers",
            help="Layers to select (repeatable); see `modelscope help layers`: conv, 'layer1.*', relu@-1.",
            autocompletion=completion.layers,
        ),
    ] = None,
    out: Out = None,
    format: Annotated[str, format_option(*CI_FORMATS)] = "auto",
    *,
    show: OutputOptions,
) -> int:
    """Run your training script, unchanged, and see inside its models.

    The script's output (on stderr with --json and the like), exit code, traceback and weights stay exactly the
    same. The run ends with a verdict (the cause, its layer and its first step), a table and a folder with a page,
    even after an exception, Ctrl-C or SIGTERM. After a kill, --report rebuilds them from the log.

    Examples:

      modelscope watch demo/train.py

      modelscope watch --fail-on error demo/train.py --variant sick

      modelscope watch --try-fixes demo/train.py --variant sick

      modelscope watch --layer relu --steps 20 --every 1 demo/train.py
    """
    from modelscope_cli.output_files import free_folder
    from modelscope_cli.report.watch.table import every_column, review, verdict_facts, watch_sheet
    from modelscope_cli.shell.hints import misplaced, refuse_launcher
    from modelscope_cli.watching.ranks import agreed_folder, read_together

    where = show.begin(format, CI_FORMATS)
    where.layout.check(every_column())
    if strict and fail_on is None:
        refuse_without("strict", True, "fail_on", "error")
    argv, words = console.settings.argv, arguments or []
    refuse_launcher(argv, script or "", words)
    ranks = find_ranks()
    name = script or "" if module else Path(script or "").name
    folder = out or report
    correction = misplaced(argv, words) if ranks.is_first else None
    if correction is not None:
        console.note(f"passed to {name}: {correction[0]} (options of modelscope come before the script)")
    with (
        nullcontext(folder)
        if folder
        else agreed_folder(ranks, lambda: free_folder("watch", name.removesuffix(".py"))) as place
    ):
        record = ms.watch(
            script,
            arguments=words,
            module=module,
            every=every,
            steps=steps,
            layer=layer or (),
            abort_on=abort_on,
            report=report,
            out=place,
            force=show.force,
            try_fixes=try_fixes,
            fix_time=None if fix_time is None else _seconds(fix_time),
            fix_writes=fix_writes or (),
            progress=_WatchProgress(where.html and where.html.absolute()),
        )
    open_closed()
    exit_code = 0 if report else record.exit_code or 0
    is_first = ranks.is_first or report is not None
    if not is_first and fail_on is not None and not exit_code:
        record = read_together(record, place, ranks)  # every rank exits as the first does
    is_unknown = strict and record.verdict == UNKNOWN
    judged_code = exit_code or int(is_unknown or is_failed(record.findings, fail_on))
    if not is_first:
        return judged_code
    if exit_code == _MISUSED and correction is not None:
        console.hint(correction[1])
    if not record.came_to_nothing or where.is_asked_for:
        with afterwards(console.warn, "the report was not shown") if not report else nullcontext():
            # Listing rules imports those of `check` too
            emit(
                where,
                watch_sheet(record),
                record,
                lambda: review(record, ms.list_rules("MS7").rules, script),
                verdict=verdict_facts(record),
            )
    return judged_code
