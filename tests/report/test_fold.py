"""Which rows of a long table a terminal shows, and what it says of the others."""

import dataclasses
import random

import pytest

from modelscope_cli.report.fold import MOST_ROWS, find_repeats, fold
from modelscope_cli.report.sheet import Column, Sheet, figure


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


def block(name, parts="conv1 bn1 relu conv2 bn2 relu#1", extra=""):
    return [f"{name}.{part}" for part in f"{parts} {extra}".split()]


def deep(*depths, same=False):
    """A residual network: the first block of each part has a shortcut of its own; `same`: all rows but two have the
    same size, else each its own."""
    names = ["conv1", "bn1"]
    for n, depth in enumerate(depths, 1):
        names += block(f"layer{n}.0", extra="downsample.0 downsample.1")
        names += [name for m in range(1, depth) for name in block(f"layer{n}.{m}")]
    return [
        Row(name, size=1.5 if same and name not in ("conv1", "fc") else 1 + 1 / (n + 3))
        for n, name in enumerate([*names, "fc"])
    ]


def shown(sheet):
    folded = fold(sheet)
    return [sheet.rows[place].name for place in folded.kept], [t for ts in folded.lines.values() for t in ts]


def folded_extremes(rows):
    return {rows[place].name for place, _ in fold(sheet_of(rows)).extremes}


@pytest.mark.parametrize("n", [1, 2, MOST_ROWS])
def test_a_short_table_is_shown_whole(n):
    assert fold(sheet_of(Row(f"layer{i}") for i in range(n))) is None


def test_blocks_of_the_same_layers_are_one_line_behind_the_first():
    names, lines = shown(sheet_of(deep(3, 24, same=True)))
    assert lines == ["layer1.2: like layer1.1", "layer2.2 .. layer2.23: 22 blocks like layer2.1"]
    assert set(block("layer2.1")) <= set(names)
    assert not set(block("layer2.2")) & set(names)


def test_blocks_of_other_parts_are_reported_where_one_part_alone_is_too_long():
    _, lines = shown(sheet_of(deep(5, 5, 5, 5, 5, 5, same=True)))
    assert lines[0] == "layer1.2 .. layer1.4: 3 blocks like layer1.1"
    assert lines[1:] == [f"layer{n}: like layer1" for n in range(2, 7)] or lines[1] == (
        "layer2 .. layer6: 5 blocks like layer1"
    )


def test_blocks_of_other_figures_are_not_alike_and_have_their_range():
    rows = deep(3, 24)
    _, lines = shown(sheet_of(rows))
    sizes = [
        row.size for row in rows if row.name.startswith("layer2.") and row.name[7:].split(".")[0] not in "01"
    ]
    low, high = (f"{end(sizes):.3f}" for end in (min, max))
    assert lines[1] == f"layer2.2 .. layer2.23: 22 blocks with the layers of layer2.1, size {low} .. {high}"
    assert not any(" like " in line for line in lines)


@pytest.mark.parametrize("same", [True, False])
def test_a_row_inside_folded_blocks_says_why_it_is_shown(same):
    rows = deep(3, 24, same=same)
    place = next(n for n, row in enumerate(rows) if row.name == "layer2.17.relu")
    rows[place] = dataclasses.replace(rows[place], is_bad=True)
    rows[place + 1] = dataclasses.replace(rows[place + 1], size=99.0)
    names, lines = shown(sheet_of(rows))
    assert {"layer2.17.relu", "layer2.17.conv2"} <= set(names)
    assert "layer2.17.relu (marked), layer2.17.conv2 (largest size" in lines[-1]
    assert "layer2.17.conv2" in folded_extremes(rows)
    assert same or "fc" in folded_extremes(rows)


def test_rows_that_are_only_counted_say_why_the_next_is_shown():
    rows = [Row(f"l{n}", size=1.0) for n in range(200)]
    rows[120] = Row("l120", size=9.0)
    _, lines = shown(sheet_of(rows))
    assert any(line.endswith("; next: largest size") for line in lines)


def test_folded_modules_of_a_tree_tell_their_shape_and_size():
    columns = (
        Column("name", "layer", lambda r: r.name, is_number=False),
        Column("output", "output", lambda r: "1x8x8x8", is_number=False),
        Column("params", "params", lambda r: r.size, lambda r: f"{r.size:,.0f}"),
    )
    names = [f"b.{n}{part}" for n in range(20) for part in ("", ".conv1", ".bn1", ".relu", ".conv2", ".bn2")]
    for growth, words in (
        (0, "like b.0, 1x8x8x8, 1,200 params each"),
        (100, "with the layers of b.0, 1x8x8x8, params 1,300 .. 3,100"),
    ):
        rows = tuple(Row(name, size=1200.0 + growth * int(name.split(".")[1])) for name in names)
        (line,) = (
            text
            for texts in fold(Sheet("t", columns, rows, is_by_layer=True)).lines.values()
            for text in texts
        )
        assert line.partition("; ")[0] == f"b.1 .. b.19: 19 blocks {words}"


def test_a_block_of_other_types_is_not_like_the_one_before():
    rows = [
        Row(f"{name}", "ReLU" if name.startswith("b.1.relu") else "Conv2d")
        for n in range(20)
        for name in block(f"b.{n}")
    ]
    _, lines = shown(sheet_of(rows))
    assert lines == ["b.2 .. b.19: 18 blocks like b.0"]


def test_a_table_full_of_findings_is_not_a_wall_and_says_how_many_there_are():
    sheet = sheet_of(Row(f"f{n}", is_bad=True, size=float(n)) for n in range(500))
    folded = fold(sheet)
    assert len(folded.kept) <= MOST_ROWS
    assert folded.n_bad == 500 - len(folded.kept)


def test_a_sorted_table_shows_its_head():
    sheet = sheet_of((Row(f"l{n}", size=float(-n)) for n in range(200)), is_sorted=True)
    assert fold(sheet).kept[: MOST_ROWS - 5] == tuple(range(MOST_ROWS - 5))


def test_a_catalogue_is_never_folded():
    assert fold(sheet_of((Row(f"l{n}") for n in range(200)), is_catalogue=True)) is None


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
    assert set(folded.lines) <= gaps
    counted = [
        int(text.split()[0])
        for texts in folded.lines.values()
        for text in texts
        if text.partition(";")[0].endswith((" row", " rows"))
    ]
    repeats = find_repeats([r.name for r in rows], [r.type for r in rows], is_anywhere=True)
    if not repeats:
        assert sum(counted) == len(rows) - len(folded.kept)


def test_repeats_name_places_that_hold_the_same_layers():
    rows = deep(4, 6, 3)
    labels = [row.name for row in rows]
    for one in find_repeats(labels, [row.type for row in rows], is_anywhere=False):
        assert one.start > max(n for n, name in enumerate(labels) if name.startswith(f"{one.like}."))
