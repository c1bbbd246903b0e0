"""Columns as properties of fields: `mean: Annotated[float, figure(rank=2)]`. Standard library only.

`field_columns` of `report/sheet.py` makes the columns of tables, pages, tsv and completion from them.
"""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """How a table shows a field.

    Attributes:
        title: heading for people; None for the key.
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
