"""`modelscope watch`."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import modelscope_cli as ms
from modelscope_cli.errors import afterwards
from modelscope_cli.records.check import is_failed
from modelscope_cli.records.options import CI_FORMATS
from modelscope_cli.shell import console
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.live import open_closed
from modelscope_cli.shell.output import emit

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


PLACE = 21  # in `modelscope --help`


@command
def watch(call: CommandCall) -> int:
    """Run your own training script, unchanged, and see what happens inside its models.

    The script's output, exit code, traceback and weights stay exactly the same. At the end come a verdict that
    names the cause, its layer and its first step, a table, and a folder with a page. They are also written after an
    exception, Ctrl-C or SIGTERM; if the process was killed, --report makes them from the log.

    Examples:

      modelscope watch demo/train.py

      modelscope watch --fail-on error demo/train.py --variant sick

      modelscope watch --layer relu --steps 20 --every 1 demo/train.py
    """
    from modelscope_cli.output_files import free_folder
    from modelscope_cli.ranks import find_ranks
    from modelscope_cli.records.watch import UNKNOWN
    from modelscope_cli.report.watch.table import every_column, review, watch_sheet
    from modelscope_cli.shell.hints import misplaced, refuse_launcher
    from modelscope_cli.watching.ranks import agreed_folder, read_together

    where = call.begin(CI_FORMATS)
    where.view.check(every_column())
    argv, script, arguments = console.settings.argv, call["script"], call["arguments"]
    report, fail_on = call["report"], call["fail_on"]
    refuse_launcher(argv, script or "", arguments)
    ranks = find_ranks()
    name = script or "" if call["module"] else Path(script or "").name.removesuffix(".py")
    folder = call["out"] or report
    with nullcontext(folder) if folder else agreed_folder(ranks, lambda: free_folder("watch", name)) as out:
        keywords = {
            **call.keywords(),
            "out": out,
            "progress": _WatchProgress(where.html and where.html.absolute()),
        }
        record = ms.watch(script, arguments=arguments, **keywords)
    open_closed()
    exit_code = 0 if report else record.exit_code or 0
    is_first = ranks.is_first or report is not None
    if not is_first and fail_on is not None and not exit_code:
        record = read_together(record, out, ranks)  # every rank exits as the first does
    is_unknown = call["strict"] and record.verdict == UNKNOWN
    judged_code = exit_code or int(is_unknown or is_failed(record.findings, fail_on))
    if not is_first:
        return judged_code
    if exit_code == _MISUSED and (correction := misplaced(argv, arguments)):
        console.warn(f"'{correction[0]}' was passed to the script: options for modelscope go before it")
        console.hint(correction[1])
    if not record.came_to_nothing or where.is_asked_for:
        with afterwards(console.warn, "the report was not shown") if not report else nullcontext():
            emit(
                where, watch_sheet(record), record, lambda: review(record, ms.list_rules("MS7").rules, script)
            )
    return judged_code
