"""How the result of `weights` is shown."""

from collections.abc import Sequence

from modelscope_cli.records.weights import ScanRecord, WeightsRecord
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import View
from modelscope_cli.report.weights.table import answer, every_column, weights_sheet


class WeightsView(View[WeightsRecord | ScanRecord]):
    """The table of `weights`."""

    def sheet(self, record: WeightsRecord | ScanRecord) -> Sheet:
        return weights_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: WeightsRecord | ScanRecord) -> str:
        return answer(record)
