"""How the result of `stats` is shown."""

from collections.abc import Mapping, Sequence

from modelscope_cli.records.stats import StatsRecord
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.stats.table import answer, every_column, stats_sheet
from modelscope_cli.report.view import Draw, View


class StatsView(View[StatsRecord]):
    """The table, figures and page of `stats`."""

    def sheet(self, record: StatsRecord) -> Sheet:
        return stats_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: StatsRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[StatsRecord]]:
        from modelscope_cli.report.stats.figures import draw_distributions

        return {"distributions": draw_distributions}

    def tables(self, record: StatsRecord) -> Mapping[str, tuple[str, Sheet]]:
        tables = {"layers": ("Layers", stats_sheet(record))}
        if record.batch_norm:
            tables["batch-norm"] = ("Batch norm", stats_sheet(record, "batch-norm"))
        return tables
