"""How a record is shown: the base of the views in `report/<command>/`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from modelscope_cli.output_files import write_text
from modelscope_cli.records.display import Shown
from modelscope_cli.records.naming import counted
from modelscope_cli.records.reading import RESULT_FILES
from modelscope_cli.records.run import DEGENERATE
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.formats import render_csv
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet

R = TypeVar("R", bound=Shown)
Draw = Callable[[R], Any]  # returns a figure of matplotlib


class View(Generic[R]):
    """The table, the figures, the page and the files of one kind of record. Without state."""

    columns: Sequence[Column] = ()  # of all tables of the command
    # The figures that need only the record, by name; the first is that of `record.plot()`
    figures: Mapping[str, Draw[R]] = {}

    def sheet(self, record: R) -> Sheet:
        """Return the table as the command prints it."""
        raise NotImplementedError

    def whole_sheet(self, record: R) -> Sheet:
        """Return the table with the rows that the command shows only on request."""
        return self.sheet(record)

    def answer(self, record: R) -> str:
        """Return the result in one sentence; without rows to judge, the title of its table."""
        return self.sheet(record).title

    def contents(self, record: R) -> str:
        """Return what the record has, for its `repr`: how many rows, named after the first column of the table."""
        sheet = self.whole_sheet(record)
        title = sheet.columns[0].title
        is_noun = title.isalpha() and title != "name" and not title.endswith("s")
        return counted(len(sheet.rows), title if is_noun else "row")

    def headline(self, record: R) -> str:
        """Return the answer; of scores that say nothing that they do, in its place."""
        is_measured = getattr(record, "truth", None) is not None  # an accuracy needs no probabilities
        warnings = () if is_measured else getattr(getattr(record, "run", None), "warnings", ())
        return next((one.message for one in warnings if one.code in DEGENERATE), self.answer(record))

    def verdict(self, record: R) -> str:
        """Return what an assertion about the record says where it fails."""
        return self.answer(record)

    def sections(self, record: R, embedded: EmbeddedImages) -> list[Section]:
        """Return the sections of the page: the figures and the table, unless a command has others."""
        from modelscope_cli.report.page.common import anchors, images_section, table_section

        tables = (
            table_section(sheet, anchors(sheet, "row" if name == "rows" else name), name, title)
            for name, (title, sheet) in self.tables(record).items()
        )
        return [*images_section(record, embedded, self.figures), *tables]

    def tables(self, record: R) -> Mapping[str, tuple[str, Sheet]]:
        """Return the tables of the page with their titles, by their names in its address."""
        return {"rows": ("Table", self.whole_sheet(record))}

    def save_files(self, record: R, folder: Path) -> R:
        """Write the figures and tables of the record's folder; return the record with the names of its files.

        Its document and its page are written by `report.page.results.save_folder`.
        """
        return record

    @staticmethod
    def write(record: R, folder: Path, figures: Mapping[str, Any], tables: Mapping[str, Sheet]) -> R:
        """Write figures and csv tables under their names; return the record with the names of its files."""
        for name, sheet in tables.items():
            write_text(folder / name, render_csv(sheet))
        for name, figure in figures.items():
            save_figure(figure, folder / name)
        return record.with_changes(files=(*figures, *tables, *RESULT_FILES))

    def tensors(self, record: R) -> Mapping[str, Any] | None:
        """Return the tensors of the run by name, from what the record keeps of it; None if it has none to save."""
        return None

    def kept(self, record: R) -> Any:
        """Return what the record keeps of its run; None if it was read back."""
        return getattr(record, "kept", None)

    # The file of its folder that a notebook shows below the table, of results that are looked at
    shown_below = ""

    def preview(self, record: R) -> bytes | None:
        """Return the figure of `shown_below` as a PNG, from what the record keeps of its run; None without it."""
        return None
