import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.grammar import (
    FLOATS,
    INTEGERS,
    MAX_ELEMENTS,
    ShapeSpec,
    by,
    parse_channels,
    parse_shape,
    parse_size,
)

shapes = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(tuple)


@given(shapes, st.sampled_from([None, *FLOATS, *INTEGERS]))
def test_a_shape_that_is_written_is_read_back(shape: tuple[int, ...], dtype: str | None) -> None:
    text = (f"{dtype}:" if dtype else "") + ",".join(map(str, shape))
    if math.prod(shape) <= MAX_ELEMENTS:
        assert parse_shape(text) == ShapeSpec(shape, dtype)


@given(st.text(alphabet="0123456789,:x -fint", max_size=20) | st.text(max_size=20))
def test_any_text_is_a_shape_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert min(parse_shape(text).shape) >= 1


@pytest.mark.parametrize(("text", "quoted"), [
    ("1,3,x,224", "'x'"),
    ("1,,224", "''"),
    ("1,3,-224,224", "'-224'"),
    ("1,0,4", "'0'"),
    ("", "''"),
    ("1,3.5", "'3.5'"),
    ("1,²", "'²'"),
    ("int46:1,2", "'int46'"),
    (":1,2", "''"),
    ("1,3,100000,100000", "8,589,934,592 elements"),
    ("1," + "9" * 5000, "too large"),
])  # fmt: skip
def test_a_malformed_shape_quotes_its_part(text: str, quoted: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shape(text)
    assert quoted in caught.value.message
    assert caught.value.hint


def test_sizes_are_one_number_or_two() -> None:
    assert parse_size("224") == (224,)
    assert parse_size("224, 320") == (224, 320)


@pytest.mark.parametrize("text", ["1,2,3", "0", "big", "", "100000"])
def test_a_malformed_size_is_quoted(text: str) -> None:
    with pytest.raises(UsageError, match=f"--size {text}"):
        parse_size(text)


def test_channel_values_are_one_for_all_or_one_each() -> None:
    assert parse_channels("--mean", "0.5", 3) == [0.5, 0.5, 0.5]
    assert parse_channels("--mean", "0,0.5,-1", 3) == [0.0, 0.5, -1.0]
    assert parse_channels("--std", "2", 1) == [2.0]


@pytest.mark.parametrize(("option", "text", "quoted"), [
    ("--mean", "0.5,0.5", "2 numbers for 3 channels"),
    ("--mean", "nan", "'nan'"),
    ("--std", "0", "'0'"),
    ("--std", "0.2,-1,0.2", "'-1'"),
    ("--mean", "a,b,c", "'a'"),
    ("--mean", "inf", "'inf'"),
])  # fmt: skip
def test_malformed_channel_values_are_quoted(option: str, text: str, quoted: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_channels(option, text, 3)
    assert quoted in caught.value.message
    assert f"{option} {text}" in caught.value.message


def test_shapes_are_written_as_people_read_them() -> None:
    assert by((1, 3, 224, 224)) == "1 x 3 x 224 x 224"
