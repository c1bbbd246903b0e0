"""Which rows of a long table a terminal shows, and what it says of the others."""

import dataclasses
import random
import re

import pytest

from modelscope_cli.report.fold import fold
from modelscope_cli.report.sheet import MOST_ROWS, Column, Sheet, figure


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    type: str = "Conv2d"
    size: float = 1.0
    is_bad: bool = False


def sheet_of(rows, **traits):
    columns = (
        Column("name", "layer", lambda r: r.name, is_number=False, rank=0),
        Column("type", "type", lambda r: r.type, is_number=False, rank=0),
        figure("size", "size", lambda r: r.size),
    )
    return Sheet("t", columns, tuple(rows), is_bad=lambda row: row.is_bad, **{"is_by_layer": True, **traits})


def shown(sheet):
    folded = fold(sheet)
    return [sheet.rows[place].name for place in folded.kept], list(folded.lines.values())


@pytest.mark.parametrize("n", [1, 2, MOST_ROWS])
def test_a_short_table_is_shown_whole(n):
    assert fold(sheet_of(Row(f"layer{i}") for i in range(n))) is None


def test_rows_with_the_extremes_of_a_column_and_marked_rows_are_shown():
    rows = [Row(f"l{n}", size=1.0) for n in range(200)]
    rows[120] = Row("l120", size=9.0)
    rows[150] = Row("l150", size=1.0, is_bad=True)
    names, lines = shown(sheet_of(rows))
    assert {"l120", "l150"} <= set(names)
    assert all(re.fullmatch(r"\d+ rows hidden", line) for line in lines)
    assert fold(sheet_of(rows)).extremes == {(120, "size")}


def test_a_table_full_of_findings_is_not_a_wall_and_says_how_many_there_are():
    sheet = sheet_of(Row(f"f{n}", is_bad=True, size=float(n)) for n in range(500))
    folded = fold(sheet)
    assert len(folded.kept) <= MOST_ROWS
    assert folded.n_bad == 500 - len(folded.kept)


def test_a_sorted_table_shows_its_head():
    sheet = sheet_of((Row(f"l{n}", size=float(-n)) for n in range(200)), is_sorted=True)
    assert fold(sheet).kept[: MOST_ROWS - 5] == tuple(range(MOST_ROWS - 5))


def test_a_table_of_as_many_rows_as_are_shown_is_not_folded():
    assert fold(sheet_of((Row(f"l{n}") for n in range(200)), most_rows=200)) is None


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_shown_or_told_of_whatever_the_table(seed):
    """Random names: kept rows in order, lines only where rows are missing, both ends and all findings there."""
    rng = random.Random(seed)
    parts = ["conv", "bn", "relu", "0", "1", "2", "block3", "mlp.0", "mlp.1", "attn", "a.b.c"]
    rows = []
    for n in range(rng.randrange(61, 400)):
        name = ".".join([f"stage{n // rng.randrange(20, 90)}", str(n // 7), rng.choice(parts)])
        rows.append(Row(name, rng.choice(["Conv2d", "ReLU"]), rng.random(), rng.random() < 0.02))
    sheet = sheet_of(rows)
    folded = fold(sheet)
    assert list(folded.kept) == sorted(set(folded.kept))
    assert folded.kept[0] == 0
    assert folded.kept[-1] == len(rows) - 1
    assert len(folded.kept) <= MOST_ROWS
    assert all(place in folded.kept for place, row in list(enumerate(rows)) if row.is_bad)
    gaps = {after for before, after in zip(folded.kept, folded.kept[1:], strict=False) if after - before > 1}
    assert set(folded.lines) == gaps
    hidden = [int(line.split()[0]) for line in folded.lines.values()]
    assert sum(hidden) == len(rows) - len(folded.kept)


def test_rows_alike_are_one_line_also_in_a_short_table():
    keys = [None, 1, 1, 1, 1, 2, 2, None]
    sheet = sheet_of((Row(f"l{n}") for n in range(8)), alike=lambda row: keys[int(row.name[1:])])
    assert shown(sheet) == (["l0", "l1", "l4", "l5", "l6", "l7"], ["2 rows like these"])
    assert (
        fold(sheet_of((Row(f"l{n}") for n in range(3)), alike=lambda row: 1)) is None
    )  # as long as the line


def test_the_largest_rows_are_shown():
    rows = [Row(f"l{n}", size=float(n % 97)) for n in range(200)]
    sheet = sheet_of(rows, is_by_layer=False, most_rows=20, size=lambda row: row.size)
    names = {sheet.rows[place].name for place in fold(sheet).kept}
    assert len(names) == 20
    assert {f"l{n}" for n in range(200) if n % 97 >= 91} <= names
