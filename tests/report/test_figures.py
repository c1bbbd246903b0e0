"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (512_000, "512 k"), (3_664_000_000, "3.66 G"), (7.5e12, "7.5 T")],
)
def test_large_counts_are_shortened(value, text):
    assert numbers.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3211264, "3.06 MiB"), (2**40, "1024.00 GiB")],
)
def test_memory_is_in_binary_units(value, text):
    assert numbers.memory(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, ""),
        (0.0, "0.0 %"),
        (0.0004, "<0.1 %"),
        (0.5, "50.0 %"),
        (0.9994, "99.9 %"),
        (0.9997, ">99.9 %"),
        (1.0, "100.0 %"),
    ],
)
def test_a_share_that_is_not_zero_never_reads_as_zero_and_one_that_is_not_all_never_as_all(fraction, text):
    assert numbers.percent(fraction) == text


@given(st.floats(-1e300, 1e300))
def test_a_number_keeps_four_digits_and_stays_short(value):
    text = numbers.number(value)
    assert len(text) <= 11
    assert math.isclose(float(text), value, rel_tol=6e-4, abs_tol=6e-5) or abs(value) < 1e-300


def test_what_is_not_there_is_blank_and_what_is_not_a_number_is_not():
    assert numbers.number(None) == numbers.percent(None) == ""
    assert numbers.number(math.nan) == numbers.percent(math.nan) == "nan"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=64), st.integers(1, 20))
def test_bars_are_as_wide_as_asked_and_blank_only_where_nothing_is(counts, width):
    text = numbers.bars(counts, width)
    assert len(text) <= width
    assert (text.strip() == "") == (sum(counts) == 0)
    assert ("█" in text) == (sum(counts) > 0)


def test_shapes_are_short():
    assert numbers.shape((1, 64, 56, 56)) == "1x64x56x56"
    assert numbers.shape(()) == "scalar"
    assert numbers.shapes([(1, 2), (3,), (4,)]) == "1x2 and 2 more"
