"""Columns as properties of fields: what a record says of them is what every table of it has."""

from dataclasses import dataclass
from typing import Annotated

from modelscope_cli.records.display import (
    change,
    column,
    counter,
    figure,
    hidden,
    shape,
    share,
    signed,
    words,
)
from modelscope_cli.records.stats import ActivationStats
from modelscope_cli.report.registry import view_for
from modelscope_cli.report.sheet import Sheet, field_columns, inner_columns, other_columns


@dataclass(frozen=True)
class Inner:
    ratio: Annotated[float | None, signed("ratio of both", rank=3)] = None


@dataclass(frozen=True)
class Row:
    name: Annotated[str, words(rank=0)]
    size: Annotated[tuple[int, ...], shape(key="extent")]
    mean: Annotated[float | None, figure(rank=2)] = None
    drift: Annotated[float | None, change()] = None
    zeros: Annotated[float | None, share("zero")] = None
    nan_count: Annotated[int, counter("NaN", key="nan")] = 0
    order: Annotated[int, hidden()] = 0
    secret: int = 0
    inner: Inner = Inner()


ROWS = (Row("conv", (2, 3), 1.5, 0.25, 0.5, 2), Row("relu", ()))


def test_a_column_is_as_its_field_says():
    name, extent, mean, drift, zeros, nan, order = field_columns(
        Row, "name extent mean drift zeros nan order"
    )
    assert (name.title, name.rank, name.is_number) == ("name", 0, False)
    assert extent.cells(ROWS) == ["2x3", "scalar"]
    assert mean.cells(ROWS) == ["1.500", ""]
    assert mean.value(ROWS[0]) == 1.5
    assert drift.cells(ROWS)[0].startswith("+0.25")
    assert (zeros.title, zeros.cells(ROWS)) == ("zero", ["50.0 %", ""])
    assert (nan.title, nan.rank, [nan.is_bad(row) for row in ROWS]) == ("NaN", 0, [True, False])
    assert not order.is_shown


def test_a_new_field_needs_no_table():
    listed = field_columns(Row, "name mean zeros")
    assert [one.key for one in other_columns(Row, listed)] == ["extent", "drift", "nan", "order"]


def test_columns_of_a_record_inside_and_those_without_values():
    (ratio,) = inner_columns("inner", field_columns(Inner, "ratio"))
    rows = (Row("a", (), inner=Inner(0.314)), Row("b", ()))
    assert (ratio.title, ratio.cells(rows)) == ("ratio of both", ["+0.31", ""])
    name = field_columns(Row, "name")
    for shown, columns in ((rows, (*name, ratio)), (rows[1:], name), ((), (*name, ratio))):
        assert Sheet("", (*name, ratio), shown).without_empty_columns().columns == columns


def test_every_annotated_field_of_stats_is_a_column_of_its_tables():
    keys = {one.key for one in other_columns(ActivationStats, ())}
    assert keys <= {one.key for one in view_for("stats").columns}
    assert column(rank=3).rank == 3
