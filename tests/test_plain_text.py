"""Other people's text: harmless in a terminal, a CI's log, a spreadsheet, a page; JSON keeps every letter."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.plain_text import markdown, plain, plain_json, plain_lines, spreadsheet_cell
from modelscope_cli.report.formats import render_csv, render_tsv
from modelscope_cli.report.sheet import Column, Sheet

JOINERS = "\u200c\u200d"  # scripts are written with them
HOSTILE = st.text(
    st.sampled_from("\x1b\n\r\t\x00\x7f\x85\x9b\u2028\u2029\u202e\u2066\ud800\udfff::#[=+-@<>&|*`]ü漢 a1")
    | st.characters(),
    max_size=20,
)


def is_seen(mark):
    return mark in JOINERS or unicodedata.category(mark) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


@given(HOSTILE)
def test_one_line_that_steers_nothing(text):
    shown = plain(text)
    assert all(map(is_seen, shown))
    assert not shown.lstrip().startswith("::")
    assert "##[" not in shown
    assert "##vso[" not in shown
    assert plain(shown) == shown
    shown.encode()


@given(HOSTILE)
def test_lines_stay_lines(text):
    shown = plain_lines(text)
    assert shown.count("\n") == text.count("\n")
    assert all(mark == "\n" or is_seen(mark) for mark in shown)
    assert not any(line.lstrip().startswith("::") for line in shown.split("\n"))


@given(st.dictionaries(HOSTILE, st.lists(HOSTILE)))
def test_json_means_the_same(document):
    written = plain_json(json.dumps(document, ensure_ascii=False))
    assert all(map(is_seen, written))
    assert "##[" not in written
    assert json.loads(written) == document


@pytest.mark.parametrize(
    "text", ["layer1.0.conv1", "größe", "漢字", "😀", "a\u00a0b", "نمی\u200cخواهم", "Net::a", "# 1"]
)
def test_what_people_write_stays_as_it_is(text):
    assert plain(text) == text


@pytest.mark.parametrize(("text", "cell"), [
    *((f"{mark}cmd|'/C calc'!A1", f"'{mark}cmd|'/C calc'!A1") for mark in "=+-@\t\r＝"),
    *((number, number) for number in ("-0.5", "+1", "-1e-05", "-inf", "-0.5 0.25 -1", "conv1", "a=b", "")),
])  # fmt: skip
def test_no_name_is_a_formula_and_numbers_are_numbers(text, cell):
    assert spreadsheet_cell(text) == cell


@pytest.mark.parametrize("render", [render_csv, render_tsv])
def test_no_cell_of_a_table_is_a_formula(render):
    columns = (Column("name", "name", lambda row: row[0]), Column("value", "value", lambda row: row[1]))
    sheet = Sheet("", columns, (("=1+1", -1.5), ("=1", 2), ("-3", None)))
    between = "," if render is render_csv else "\t"
    names, values = zip(*(line.split(between) for line in render(sheet).splitlines()), strict=True)
    assert names == ("name", "'=1+1", "'=1", "-3")
    assert values == ("value", "-1.5", "2", "")


@given(HOSTILE)
def test_foreign_text_adds_no_html_and_no_table_to_a_page(text):
    shown = markdown(text)
    assert "<" not in shown
    assert ">" not in shown
    assert shown.count("|") == shown.count("\\|")
