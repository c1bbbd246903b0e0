"""How a record is shown: columns as properties of fields, and in Python rows, dicts, a figure, text and a table."""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from modelscope_cli.errors import nearest, with_nearest
from modelscope_cli.library_types import Figure
from modelscope_cli.records.naming import label, some


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """How a table shows a field.

    Attributes:
        title: heading for people; None for the key, in words. It has another name only for a symbol or a unit.
        rank: in a narrow terminal the highest rank is dropped first; 0 is never dropped.
        form: notation: `plain`, `words`, `figure` (one notation for the whole column), `change` (the same with its
            sign), `amount` and `size` (one unit), `share` (percent), `signed` (two decimals and the sign),
            `count` (with thousands), `counter` (marked unless 0), `shape`.
        key: in tsv, csv and `--columns`; None for the name of the field.
        is_shown: whether the terminal shows it; tsv and csv always have it.
        wraps: sentences that may wrap in a narrow terminal.
    """

    title: str | None = None
    rank: int = 1
    form: str = "plain"
    key: str | None = None
    is_shown: bool = True
    wraps: bool = False


column = FieldColumn
words = partial(FieldColumn, form="words")
figure = partial(FieldColumn, form="figure")
change = partial(FieldColumn, form="change")
amount = partial(FieldColumn, form="amount")
size = partial(FieldColumn, form="size")
share = partial(FieldColumn, form="share")
signed = partial(FieldColumn, form="signed")
count = partial(FieldColumn, form="count")
counter = partial(FieldColumn, form="counter", rank=0)
shape = partial(FieldColumn, form="shape")
hidden = partial(FieldColumn, is_shown=False)


def report() -> Any:
    """Return what shows records. The only import of the house that goes up: it makes `record.plot()` possible."""
    from modelscope_cli.report import notebook

    return notebook


_INSTEAD = dict.fromkeys(("df", "to_df", "to_pandas"), "pandas.DataFrame(record.to_rows())")
_INSTEAD |= {"accuracy": "record.truth.accuracy of predict(..., truth='folders')", "rows": "record.to_rows()"}
_ASKED: ContextVar[frozenset[str]] = ContextVar("asked", default=frozenset())


class Row:
    """A row of a record, shown as a short card: its label and the columns that have a value.

    A number has its name in JSON, and each value the key of its column: `row.zero_fraction` is `row.zero`.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __getattr__(self, key: str) -> Any:
            # A column of rows of another kind may read the attribute that this row lacks
            columns = {} if key.startswith("_") or key in _ASKED.get() else report().columns_of(self)
            if key not in columns:
                names = [*(one.name for one in fields(cast(Any, self))), *columns]
                message = with_nearest(f"{type(self).__name__} has no '{key}'", key, names, 1)
                raise AttributeError(message, name=key, obj=self)
            asked = _ASKED.set(_ASKED.get() | {key})
            try:
                return columns[key].value(self)
            finally:
                _ASKED.reset(asked)

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the card where a dataclass would write a `repr` of all fields."""
        super().__init_subclass__(**options)
        cls.__repr__ = Row.__repr__  # type: ignore[method-assign]

    @property
    def _label(self) -> str:
        name = label(getattr(self, "name", ""), getattr(self, "call", 0) or 0)
        output = getattr(self, "output", "")
        return f"{name} [{output}]" if output and isinstance(output, str) else name

    def __repr__(self) -> str:
        """Return one line, such as `ActivationStats(conv1, type Conv2d, shape 1x64x32x32, mean -0.012)`."""
        values = [f"{title} {text}" for title, text in report().card_of(self)]
        return f"{type(self).__name__}({', '.join(filter(None, [self._label, *values]))})"


class Shown:
    """What every record can do with the table of its command.

    A row's label is the first column: a layer, `relu` for a first call and `relu#1` for a second, a
    parameter, a rule. `record[label]` is that one row, `record[0]` the first, `record[:3]` the first three; going
    through a record goes through its rows.
    """

    __slots__ = ("kept",)  # images and tensors of the run for the figures; in no document

    document: ClassVar[str]
    """The name of its JSON document: that of the command, with `-` and the mode if it has several."""

    @property
    def command(self) -> str:
        """The command that returns such a record."""
        return self.document.partition("-")[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        raise NotImplementedError

    def labelled(self) -> list[tuple[str, Any]]:
        """Return the label of every row, and the row."""
        sheet = report().view_of(self).whole_sheet(self)
        return [(str(sheet.columns[0].value(row)), row) for row in sheet.rows]

    if not TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any:
            names = [] if key.startswith("_") else [one.name for one in fields(cast(Any, self))]
            parts = [name for name in names if hasattr(getattr(self, name), key)]
            place = f"record.{parts[0]}.{key}" if parts else _INSTEAD.get(key, "")
            message = f"{type(self).__name__} has no '{key}'" + f": {place}" * bool(place)
            raise AttributeError(message, name=key, obj=self)

    def __iter__(self) -> Iterator[Any]:
        return iter([row for _, row in self.labelled()])

    def __len__(self) -> int:
        return len(self.labelled())

    def __contains__(self, one: object) -> bool:
        return any(one in (label, row, getattr(row, "name", None)) for label, row in self.labelled())

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
        names = [label for label, _ in labelled]
        raise KeyError(f"no row '{key}': {nearest(key, names) or f'the rows are {some(names)}'}")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the whole table as plain dicts: the keys and bare values of `--format tsv`, with the columns that
        a terminal has no room for. `pandas.DataFrame(record.to_rows())` is a data frame of them."""
        sheet = report().view_of(self).whole_sheet(self)
        return [{column.key: column.value(row) for column in sheet.columns} for row in sheet.rows]

    def plot(self, file: str | PathLike[str] | None = None, *, picture: str | None = None) -> "Figure":
        """Draw the figure of the command, and save it where a `file` is given (`.png`, `.svg`, `.pdf`).

        Args:
            picture: which one, where the command draws several; the first of them otherwise.
        """
        figure: Figure = report().plot(self, file, picture)
        return figure

    def to_html(self, file: "str | PathLike[str] | None" = None) -> str:
        """Return the result as a page for the browser, one file that needs nothing else; `ms.read` takes it back.

        Args:
            file: where it is saved as well.
        """
        return str(report().to_page(self, file))

    def save(self, path: str | PathLike[str]) -> Self:
        """Save the result in a file, or with its figures and tables in a folder.

        Args:
            path: `.html` the page, `.json` the document, which `ms.read` takes back, `.csv`, `.tsv` and `.md` the
                table, `.png`, `.svg` and `.pdf` the figure; `.safetensors` the maps of `featuremaps` and `explain`;
                without a suffix, a folder. Files that are there are replaced.

        Returns:
            The record; saved in a folder, it names the folder and its files, and likewise a file of maps.
        """
        saved: Self = report().save(self, path)
        return saved

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the short `repr` where a dataclass would write one of all fields."""
        super().__init_subclass__(**options)
        cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]

    def keep(self, kept: Any) -> Self:
        """Keep images and tensors of the run for the figures, which a record that is read back lacks; return it."""
        object.__setattr__(self, "kept", kept)
        return self

    def with_changes(self, **changes: Any) -> Self:
        """Return the record with other values of its fields that it has, and with what it keeps."""
        names = {one.name for one in fields(cast(Any, self))}
        changed = replace(
            cast(Any, self), **{name: value for name, value in changes.items() if name in names}
        )
        return cast(Self, changed.keep(getattr(self, "kept", None)))

    def __repr__(self) -> str:
        """Return one line, such as `StatsRecord(20 layers, resnet18, eval mode, 4x3x64x64)`."""
        run = getattr(self, "run", None)
        about = [report().view_of(self).contents(self)]
        about += [run.model.short_name] if run is not None else []
        about += [f"{mode} mode" for mode in ("eval", "train") if getattr(self, "mode", None) == mode]
        if run is not None and run.input is not None:
            about += ["x".join(map(str, shape)) for shape in run.input.shape]
        return f"{type(self).__name__}({', '.join(about)})"

    def __str__(self) -> str:
        return str(report().to_text(report().sheet_of(self).without_definitions()))

    def _repr_html_(self) -> str:
        """Return the table for a notebook, with the figure below it where the figure is the result."""
        return str(report().to_html(report().sheet_of(self))) + str(report().figure_below(self))
