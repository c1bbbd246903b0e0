"""How the result of `prune` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.prune.figures import draw_pruning
from modelscope_cli.report.prune.table import answer, prune_columns, prune_sheet
from modelscope_cli.report.view import Draw, View


class PruneView(View[PruneRecord]):
    """The table, figures of `prune`."""

    sheet = staticmethod(prune_sheet)
    columns = (*prune_columns("drift"), *prune_columns("layers"))
    figures: Mapping[str, Draw[PruneRecord]] = {"pruning": draw_pruning}
    answer = staticmethod(answer)

    def save_files(self, record: PruneRecord, folder: Path) -> PruneRecord:
        tables = {f"{table}.csv": prune_sheet(record, table) for table in ("drift", "layers")}
        return self.write(record, folder, {"drift.png": self.figures["pruning"](record)}, tables)
