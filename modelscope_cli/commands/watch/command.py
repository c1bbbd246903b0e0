"""`modelscope watch`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.watch import options
from modelscope_cli.errors import UsageError, afterwards
from modelscope_cli.shell import console
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.verdict import FailOnOpt, is_failed

_MISUSED = 2  # with which argparse, and Click, end a script that does not know an option


class _Telling:
    """The console, with the live line."""

    track, note = staticmethod(console.PROGRESS.track), staticmethod(console.note)
    warn, say, live = staticmethod(console.warn), staticmethod(console.say), staticmethod(console.live_line)
    relay = staticmethod(console.write_error)


@spread
def watch(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="The training script, or with -m a module.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The script's own arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module's name, as in python -m.")
    ] = False,
    every: options.EveryOpt = None,
    steps: options.StepsOpt = None,
    abort_on: options.AbortOnOpt = None,
    like: options.LikeOpt = None,
    fail_on: FailOnOpt = None,
    strict: options.StrictOpt = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="DIR", help="Run nothing: report on the log in DIR, and draw its figures."
        ),
    ] = None,
    layer: opt.LayersOpt = None,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> int:
    """Run your own training script, unchanged, and see what happens inside its models.

    The script's output, exit code and traceback are its own; so are its weights, to the last bit. At the end come a
    verdict with the layer and the step at which it began, a table, and a folder with a page. They are also written
    after an exception, Ctrl-C or SIGTERM; if the process was killed outright, --report makes them from the log,
    and draws the figures of any run.

    Examples:

      modelscope watch demo/train.py

      modelscope watch --fail-on error demo/train.py --variant sick

      modelscope watch --layer relu --steps 20 --every 1 demo/train.py
    """
    from modelscope_cli.commands.watch.misplaced import refuse_launcher, what_was_meant
    from modelscope_cli.commands.watch.table import check_columns, watch_sheet
    from modelscope_cli.ranks import find_ranks
    from modelscope_cli.records.watch import UNKNOWN
    from modelscope_cli.report.folder import free_folder
    from modelscope_cli.watching.ranks import agreed_folder, read_together

    if strict and fail_on is None:
        message = "--strict says what else --fail-on fails on, but --fail-on is missing"
        raise UsageError(message, "--fail-on error")
    where = output.begin()
    check_columns(where.view)
    refuse_launcher(console.settings.argv, script or "", arguments or ())
    ranks = find_ranks()
    name = script or "" if module else Path(script or "").name.removesuffix(".py")
    given = report or folder.out
    with nullcontext(given) if given else agreed_folder(ranks, lambda: free_folder("watch", name)) as out:
        record = ms.watch(
            script,
            arguments=arguments or (),
            module=module,
            every=every,
            steps=steps,
            abort_on=abort_on,
            like=like,
            report=report,
            layer=layer or (),
            out=out,
            force=output.force,
            progress=_Telling(),
        )
    exit_code = 0 if report else record.exit_code or 0
    is_first = ranks.is_first or report is not None
    if not is_first and fail_on is not None and not exit_code:
        record = read_together(record, out, ranks)  # every rank ends as the first one does
    is_unknown = strict and fail_on is not None and record.verdict == UNKNOWN
    judged_code = exit_code or int(is_unknown or is_failed(record.findings, fail_on))
    if not is_first:
        return judged_code
    if exit_code == _MISUSED and (meant := what_was_meant(watch, console.settings.argv, arguments or ())):
        console.warn(f"'{meant[0]}' was passed to the script: options for modelscope go before it")
        console.hint(meant[1])
    if not record.came_to_nothing or where.is_asked_for:
        with afterwards(console.warn, "the report was not shown") if not report else nullcontext():
            emit(where, watch_sheet(record), record)
    return judged_code
