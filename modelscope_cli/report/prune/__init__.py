"""How the result of `prune` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.prune.table import answer, every_column, prune_sheet
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View


class PruneView(View[PruneRecord]):
    """The table, figures of `prune`."""

    def sheet(self, record: PruneRecord) -> Sheet:
        return prune_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: PruneRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[PruneRecord]]:
        from modelscope_cli.report.prune.figures import draw_pruning

        return {"pruning": draw_pruning}

    def save_files(self, record: PruneRecord, folder: Path) -> PruneRecord:
        from modelscope_cli.report.prune.figures import draw_pruning

        tables = {f"{table}.csv": prune_sheet(record, table) for table in ("drift", "layers")}
        return self.write(record, folder, {"drift.png": draw_pruning(record)}, tables)
