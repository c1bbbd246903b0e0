"""The display of a record in Python: rows by label, plain dicts, a figure, text, and a table in a notebook."""

from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

from modelscope_cli.errors import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def renderer() -> Any:
    """Return `report/notebook.py`, which the package supplies, so that records do not depend on reports."""
    import modelscope_cli

    return modelscope_cli.renderer


class Shown:
    """What every record can do with the table of its command.

    A row's label is the first column: a layer, `relu` for a first call and `relu#1` for a second, a
    parameter, a rule. `record[label]` is that one row, `record[0]` the first, `record[:3]` the first three; going
    through a record goes through its rows.
    """

    __slots__ = ()

    @property
    def command(self) -> str:
        """The command that returns such a record."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        raise NotImplementedError

    def labelled(self) -> list[tuple[str, Any]]:
        """Return the label of every row, and the row."""
        sheet = renderer().whole_sheet_of(self)
        return [(str(sheet.columns[0].value(row)), row) for row in sheet.rows]

    def __iter__(self) -> Iterator[Any]:
        return iter([row for _, row in self.labelled()])

    def __len__(self) -> int:
        return len(self.labelled())

    def __bool__(self) -> bool:
        return True  # true even without rows

    def __getitem__(self, key: str | int | slice) -> Any:
        """Return the row with this label, or the rows at these places."""
        labelled = self.labelled()
        if not isinstance(key, str):
            return [row for _, row in labelled][key]
        matches = [row for label, row in labelled if label == key] or [
            row for _, row in labelled if getattr(row, "name", None) == key
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise KeyError(f"'{key}' matches {len(matches)} rows; iterate over the record to find yours")
        near = nearest(key, [label for label, _ in labelled])
        raise KeyError(f"no row '{key}'" + (f": {near}" if near else ""))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the whole table as plain dicts, `pandas.DataFrame(record.to_rows())`: the keys and bare values of
        `--format tsv`, those columns too that a terminal has no room for."""
        sheet = renderer().whole_sheet_of(self)
        return [{column.key: column.value(row) for column in sheet.columns} for row in sheet.rows]

    def plot(self, file: str | PathLike[str] | None = None, *, picture: str | None = None) -> "Figure":
        """Draw the figure of the command, and save it where a `file` is given (`.png`, `.svg`, `.pdf`).

        Args:
            picture: which one, where the command draws several; the first of them otherwise.
        """
        figure: Figure = renderer().plot(self, file, picture)
        return figure

    def to_html(self, file: "str | PathLike[str] | None" = None) -> str:
        """Return the result as a page for the browser, one file that needs nothing else; `ms.read` takes it back.

        Args:
            file: where it is saved as well.
        """
        return str(renderer().to_page(self, file))

    def __str__(self) -> str:
        return str(renderer().to_text(renderer().sheet_of(self)))

    def _repr_html_(self) -> str:
        return str(renderer().to_html(renderer().sheet_of(self)))
