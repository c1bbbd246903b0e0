"""How the result of `stats` is shown."""

from collections.abc import Mapping

from modelscope_cli.records.stats import StatsRecord
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.stats.figures import draw_distributions
from modelscope_cli.report.stats.table import answer, stats_columns, stats_sheet
from modelscope_cli.report.view import Draw, View


class StatsView(View[StatsRecord]):
    """The table, figures and page of `stats`."""

    sheet = staticmethod(stats_sheet)
    columns = stats_columns(True, True)
    figures: Mapping[str, Draw[StatsRecord]] = {"distributions": draw_distributions}
    answer = staticmethod(answer)

    def tables(self, record: StatsRecord) -> Mapping[str, tuple[str, Sheet]]:
        return {"layers": ("Layers", stats_sheet(record))}
