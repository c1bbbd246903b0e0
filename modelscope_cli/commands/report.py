"""`modelscope report`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.named_model import refuse_model
from modelscope_cli.shell.output import emit

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
    from modelscope_cli.report.listings import pages_sheet

    where = call.begin()
    refuse_model(str(call["result"]), "--html", "report.html")
    record = ms.make_report(call["result"], html=where.html, **call.keywords())
    emit(where.without_page(), pages_sheet(record), record)
