"""How the result of `weights` is shown."""

from modelscope_cli.records.weights import ScanRecord, WeightsRecord
from modelscope_cli.report.view import View
from modelscope_cli.report.weights.table import EVERY_COLUMN, answer, weights_sheet


class WeightsView(View[WeightsRecord | ScanRecord]):
    """The table of `weights`."""

    sheet = staticmethod(weights_sheet)
    columns = EVERY_COLUMN
    answer = staticmethod(answer)
