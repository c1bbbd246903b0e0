"""`modelscope report`."""

import modelscope_cli as ms
from modelscope_cli.records.listings import Page, ReportRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Sheet, field_columns
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.named_model import refuse_model
from modelscope_cli.shell.output import emit

COLUMNS = (
    *field_columns(Page, "file"),
    *field_columns(Page, "bytes", text=lambda r: numbers.memory(r.bytes)),
    *field_columns(Page, "command model verdict"),
)


def report_sheet(record: ReportRecord) -> Sheet:
    return Sheet(title=counted(len(record.pages), "page"), columns=COLUMNS, rows=record.pages)


PLACE = 51  # in `modelscope --help`


@command
def report(call: CommandCall) -> None:
    """Make one self-contained page of a result, to view in a browser and to share.

    The page needs no network and no other file. It holds tables to sort and filter, curves, images, and the whole
    result as data, which modelscope can read. Without --html the page is written into the folder of the result.

    Examples:

      modelscope watch --out sick demo/train.py --variant sick

      modelscope report sick
    """
    where = call.begin()
    refuse_model(str(call["result"]), "--html", "report.html")
    record = ms.make_report(call["result"], html=where.html, **call.keywords())
    emit(where.without_page(), report_sheet(record), record)
