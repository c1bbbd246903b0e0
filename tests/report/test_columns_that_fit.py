"""What a narrow terminal shows of a table: as many columns as it has room for, the most needed first."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.table import render_table

GAP = 2
columns_of_a_table = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 9)),  # width and rank
    min_size=1,
    max_size=12,
)


def shown_at(width, traits):
    """Return the places of the columns that are shown, and what is printed."""
    columns = tuple(
        Column(f"k{n}", f"{n:x}", lambda row, wide=wide: "x" * wide, is_number=False, rank=rank)
        for n, (wide, rank) in enumerate(traits)
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(render_table(Sheet("t", columns, ((),)), width))
    lines = console.file.getvalue().splitlines()
    header = next((line for line in lines[1:] if line.strip()), "").split()
    return [int(title, 16) for title in header if len(title) == 1], lines


@given(columns_of_a_table, st.integers(41, 160))
def test_no_column_that_would_fit_is_left_out(traits, width):
    shown, lines = shown_at(width, traits)
    spare = width + GAP - sum(traits[n][0] + GAP for n in shown)
    assert shown == sorted(shown)
    assert spare >= 0
    assert all(len(line) <= width for line in lines)
    assert all(wide + GAP > spare for n, (wide, _) in enumerate(traits) if n not in shown)


def test_a_wide_column_that_leaves_makes_room_for_narrow_ones():
    wide, dear, small = (40, 3), (20, 1), (5, 5)
    assert shown_at(50, [dear, wide, small])[0] == [0, 2]


@pytest.mark.parametrize(("width", "n_letters"), [(60, 39), (45, 31), (40, 39)])
def test_a_name_is_cut_no_shorter_than_needed(width, n_letters):
    """It is cut before a dear column leaves, and has room back where one had to leave all the same."""
    columns = (
        Column("name", "layer", lambda row: f"first{30 * '.'}last", is_number=False, rank=0),
        Column("type", "type", lambda row: 12 * "x", is_number=False, rank=1),
        Column("output", "output", lambda row: 30 * "x", is_number=False, rank=2),
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(render_table(Sheet("t", columns, ((),), is_by_layer=True), width))
    name = next(line for line in console.file.getvalue().splitlines() if line.startswith("first")).split()[0]
    assert name.endswith("last")
    assert len(name) == n_letters


@given(st.integers(24, 60), st.integers(1, 40), st.integers(1, 40))
def test_no_number_is_cut_where_only_names_can_be(width, long, longer):
    """Where every column that is left is one that never leaves."""
    traits = {"is_number": False, "rank": 0}
    columns = (
        Column("name", "layer", lambda row: "x" * long, **traits),
        Column("type", "type", lambda row: "y" * longer, **traits),
        Column("params", "params", lambda row: "12,345", rank=0),
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(render_table(Sheet("t", columns, ((),), is_tree=True), width))
    (row,) = (line for line in console.file.getvalue().splitlines() if line.startswith("x"))
    assert row.rstrip().endswith("  12,345")
    assert len(row) <= width


def test_a_long_type_is_cut_before_a_dear_column_leaves():
    columns = (
        Column("name", "layer", lambda row: 40 * "n", is_number=False, rank=0),
        Column("type", "type", lambda row: 30 * "t", is_number=False, rank=0),
        Column("std", "std", lambda row: 1.5, rank=2),
    )
    console = Console(file=io.StringIO(), width=60)
    console.print(render_table(Sheet("t", columns, ((),), is_by_layer=True), 60))
    assert console.file.getvalue().splitlines()[-1].endswith("1.5")
