"""Tables of a notebook in a real browser: a click on a heading sorts them."""

import json
import math
import random
from dataclasses import dataclass

import pytest
from torch import nn

import modelscope_cli as ms
from modelscope_cli.report.notebook import to_html
from modelscope_cli.report.numbers import memory, percent
from modelscope_cli.report.sheet import Column, Sheet

VALUES = (0.0, 1.0, -2.5, 1e-9, 3e7, -0.25, 0.99961, 0.0004, 1234567.0, math.inf, -math.inf)


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None


def written(text):
    number = Column(
        "value", "value", lambda row: row.value, lambda row: "" if row.value is None else text(row.value)
    )
    return (Column("name", "layer", lambda row: row.name, is_number=False, rank=0), number)


@pytest.fixture
def opened(browser, tmp_path):
    def open_it(*htmls):
        file = tmp_path / "notebook.html"
        file.write_text("<!doctype html><meta charset=utf-8>" + "".join(htmls), encoding="utf-8")
        browser.open(file)
        return browser

    return open_it


def column_of(browser, table, title):
    """Click on a heading; return the texts of its column and of the first one, from top to bottom."""
    at = f"document.querySelectorAll('table.rows')[{table}]"
    found = f"[...{at}.tHead.rows[0].cells].find((one) => one.textContent === {json.dumps(title)})"
    browser.run(f"{found}.querySelector('button').click()")
    index = browser.run(f"{found}.cellIndex")
    shown = f"[...{at}.tBodies[0].rows].filter((row) => row.checkVisibility())"
    return [browser.run(f"{shown}.map((row) => row.cells[{n}].textContent)") for n in (index, 0)]


@pytest.mark.parametrize("text", [repr, "{:+.4f}".format, "{:.4g}".format, "{:,.1f}".format, percent, memory])
def test_every_notation_is_sorted_by_its_value(text, opened):
    values = [value for value in VALUES if text not in (percent, memory) or 0 <= value < math.inf]
    if text is percent:
        values = [value for value in values if value <= 1]
    random.Random(5).shuffle(values)
    rows = tuple(Row(f"row{n}", value) for n, value in enumerate([None, *values]))
    browser = opened(to_html(Sheet("a title", written(text), rows)))
    falling = sorted(values, reverse=True)
    _, names = column_of(browser, 0, "value")
    found = [rows[int(name[3:])].value for name in names]
    assert found[-1] is None
    assert [text(value) for value in found[:-1]] == [text(value) for value in falling]
    _, names = column_of(browser, 0, "value")
    found = [rows[int(name[3:])].value for name in names]
    assert found[-1] is None
    assert [text(value) for value in found[:-1]] == [text(value) for value in falling[::-1]]
    assert browser.complaints() == []
    assert browser.requests() == []


def test_a_tree_is_sorted_as_a_whole(opened):
    blocks = [nn.Sequential(nn.Conv2d(3, 3, 1 + 2 * (n % 3), padding=n % 3), nn.ReLU()) for n in range(30)]
    net = nn.Sequential(*blocks, nn.Flatten(), nn.LazyLinear(7))
    record = ms.summary(net, input_shape=(1, 3, 8, 8))
    html = record._repr_html_()
    browser = opened(html, html, to_html(Sheet("one", written(str), (Row("a", 1.0),))))
    params, names = column_of(browser, 1, "params")  # a second output has a script of its own
    found = dict(zip(names, params, strict=True))
    own = {row.name or row.type: row.params for row in record}
    assert len(found) == len(own)
    assert all(name in own for name in names), "the full names, not those of the tree"
    counts = [own[name] or 0 for name in names]
    assert counts == sorted(counts, reverse=True)
    # The other tables are as they were.
    first = "document.querySelectorAll('table.rows')[0]"
    assert browser.run(f"{first}.querySelectorAll('th[aria-sort=descending]').length") == 0
    assert browser.run("document.querySelectorAll('th button button').length") == 0
    assert browser.complaints() == []
