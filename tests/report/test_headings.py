"""One name for each number: in the heading of a table, in `--columns`, in tsv and in JSON."""

import re

import pytest

from modelscope_cli.report.registry import VIEWS, view_for
from modelscope_cli.report.sheet import find_column

# Symbols and units, which a name cannot hold, and what a row is about, which is its `name`.
SYMBOL = re.compile(r"[|Δ(/,²]|^L2$")
OF_ROWS = {"layer", "parameter", "model", "page"}
UNITS = {"size": "bytes"}

COLUMNS = [(command, column) for command in VIEWS for column in view_for(command).columns if column.title]


@pytest.mark.parametrize(("command", "column"), COLUMNS, ids=lambda one: getattr(one, "title", one))
def test_a_heading_finds_its_column_and_is_its_name(command, column):
    found = find_column(view_for(command).columns, column.title, "--columns", "")
    assert found.title == column.title
    assert found.key == column.key
    if SYMBOL.search(column.title) or column.title in OF_ROWS:
        return
    words = re.sub(r"[\s-]+", "_", UNITS.get(column.title, column.title).lower())
    assert words in (column.key, column.field)


@pytest.mark.parametrize(("command", "heading", "key"), [
    ("diff", "tensor", "name"), ("diff", "row", "name"), ("diff", "A", "a"), ("check", "image", "layer"),
    ("ablate", "Δ mean value", "logit_change"), ("ablate", "pixels changed", "changed"),
    ("ablate", "always", "answer"),
])  # fmt: skip
def test_a_heading_of_some_results_only_finds_its_column(command, heading, key):
    assert find_column(view_for(command).columns, heading, "--columns", "").key == key


def test_symbols_are_few():
    assert len({column.title for _, column in COLUMNS if SYMBOL.search(column.title)}) < 20
