"""File names: in execution order, and safe on every file system."""

import re
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.records.naming import label_of
from modelscope_cli.report.numbers import file_stems


@dataclass
class Row:
    name: str
    order: int
    call: int = 0
    output: str = ""
    type: str = "ReLU"


def test_labels_are_what_a_pattern_understands():
    assert label_of(Row("layer1.0.relu", 5)) == "layer1.0.relu"
    assert label_of(Row("layer1.0.relu", 9, call=1)) == "layer1.0.relu#1"
    assert label_of(Row("", 1)) == "ReLU"


def test_numbers_have_as_many_digits_as_the_longest_needs():
    assert file_stems([Row("a", 1), Row("b", 12, call=2)]) == ["001_a", "012_b#2"]
    assert file_stems([Row("a", 1), Row("b", 1234)]) == ["0001_a", "1234_b"]
    assert file_stems([]) == []


@given(st.lists(st.text(max_size=300), min_size=1, max_size=30))
def test_any_name_makes_a_file_name_and_sorting_is_the_order_of_execution(names):
    stems = file_stems([Row(name, order) for order, name in enumerate(names, 1)])
    assert len(set(stems)) == len(stems)
    assert stems == sorted(stems)
    for stem in stems:
        assert not re.search(r'[\\/:*?"<>|\x00-\x1f]', stem)
        assert len(stem) <= 160
