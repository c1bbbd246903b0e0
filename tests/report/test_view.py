"""`--sort`, `--top`, `--columns` on a sheet."""

import math
from dataclasses import replace

import pytest

from modelscope_cli.errors import UsageError
from modelscope_cli.report.formats import render_brief, render_markdown, to_text
from modelscope_cli.report.sheet import Column, Layout, Sheet, figure, find_column

ROWS = (("layer10", 1.0), ("layer2", None), ("layer1", math.nan), ("Alpha", 30), ("beta", -4.5))
COLUMNS = (
    Column("name", "layer", lambda r: r[0], lambda r: f"  {r[0]}", is_number=False, rank=0),
    figure("near_zero", "size", lambda r: r[1]),
)
SHEET = Sheet("t", COLUMNS, ROWS, is_tree=True)


@pytest.mark.parametrize(("sort", "names"), [
    ("near_zero", "Alpha layer10 beta layer2 layer1"),
    ("near-zero:asc", "beta layer10 Alpha layer2 layer1"),
    ("NEAR_ZERO:desc", "Alpha layer10 beta layer2 layer1"),
    ("name", "Alpha beta layer1 layer2 layer10"),
    ("name:desc", "layer10 layer2 layer1 beta Alpha"),
])  # fmt: skip
def test_numbers_fall_and_names_rise_and_what_is_missing_comes_last(sort, names):
    assert " ".join(row[0] for row in Layout(sort=sort).arrange(SHEET).rows) == names


def test_a_sorted_tree_has_whole_names():
    assert Layout().arrange(SHEET).columns[0].cells(ROWS)[0] == "  layer10"
    assert Layout(sort="name").arrange(SHEET).columns[0].cells(ROWS)[0] == "layer10"


def test_the_first_rows_after_sorting_and_how_many_there_are():
    sheet = Layout(sort="name", top=2).arrange(SHEET)
    assert [row[0] for row in sheet.rows] == ["Alpha", "beta"]
    assert sheet.facts == (("shown", "2 of 5 rows"),)
    assert Layout(top=9).arrange(SHEET).facts == ()


def test_the_answer_is_last_on_a_screen_and_under_the_title_of_a_text():
    rows = tuple((f"layer{n}", float(n)) for n in range(200))
    sheet = replace(SHEET, rows=rows, facts=(("answer", "same"), ("A", "a.pt")))
    assert to_text(sheet, 80).splitlines()[-1] == "answer  same"
    assert to_text(sheet).splitlines()[:3] == ["t", "", "answer  same"]
    assert render_markdown(sheet).splitlines()[2] == "- answer: same"
    assert render_brief(sheet).splitlines()[1] == "answer: same"


def test_sorted_by_a_column_that_is_not_shown():
    sheet = Layout(columns="name", sort="near_zero", top=1).arrange(SHEET)
    assert [column.key for column in sheet.columns] == ["name"]
    assert sheet.rows == (("Alpha", 30),)
    assert [column.key for column in Layout(columns="name", sort="near_zero").check(COLUMNS)] == [
        "name",
        "near_zero",
    ]


def test_a_column_has_its_headings_in_all_tables_of_the_command_and_no_others():
    columns = (replace(COLUMNS[0], also=("the row",)), COLUMNS[1])
    for word in ("name", "Layer", "The row"):
        assert find_column(columns, word, "--columns", word) is columns[0]
    with pytest.raises(UsageError, match="unknown column 'tensor'"):
        find_column(columns, "tensor", "--columns", "tensor")


@pytest.mark.parametrize(("view", "words", "hint"), [
    (Layout(sort="nmae"), "unknown column 'nmae' in --sort 'nmae'", "--sort name"),
    (Layout(sort="name:up"), "'--sort name:up' must end in :asc or :desc", "--sort name:asc"),
    (Layout(sort=":asc"), "unknown column ''", "--sort name:asc"),
    (Layout(columns="name,am"), "unknown column 'am'", "--columns name,name"),
    (Layout(columns="nmae"), "unknown column 'nmae' in --columns 'nmae'", "--columns name"),
    (Layout(columns=" , "), "names no column", "--columns name,near_zero"),
])  # fmt: skip
def test_what_is_mistyped_is_refused_before_anything_runs(view, words, hint):
    with pytest.raises(UsageError) as caught:
        view.check(COLUMNS)
    assert words in caught.value.message
    assert (caught.value.hint or "").partition("   ")[0] == hint
