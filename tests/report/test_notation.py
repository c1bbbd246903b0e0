"""The numbers of a column, in one notation."""

import math
import random

import pytest

from modelscope_cli.report.numbers import amounts, notation, percent, sizes


def column(*values, **traits):
    return [notation(values, **traits)(value) for value in values]


@pytest.mark.parametrize(("values", "texts"), [
    ((0.5, 0.25, 0.001), ["0.50000", "0.25000", "0.00100"]),
    ((5.652e-05, 0.0011), ["5.652e-05", "1.100e-03"]),
    ((1234.5, 7.0), ["1234.50", "7.00"]),
    ((1e8, 2.0), ["1.000e+08", "2.000e+00"]),
    ((0.0, 0.0), ["0", "0"]),
    ((None, math.nan, 1.0), ["", "nan", "1.000"]),
    ((math.inf, 2.0, -math.inf), ["inf", "2.000", "-inf"]),
    ((), []),
])  # fmt: skip
def test_all_of_a_column_are_written_alike(values, texts):
    assert column(*values) == texts


def test_what_is_left_where_numbers_cancel_does_not_decide():
    texts = column(*[0.5, -0.25] * 20, 1e-9)
    assert texts[-1] == "0.0000"
    assert texts[0] == "0.5000"


def test_a_change_has_its_sign():
    assert column(1.5, -2.0, 0.0, is_change=True) == ["+1.500", "-2.000", "0"]


@pytest.mark.parametrize("seed", range(50))
def test_longer_is_larger_and_every_size_keeps_two_digits(seed):
    """Of sizes, the texts have one number of decimals or one form, say what they were to 1 %, and line up."""
    rng = random.Random(seed)
    spread = rng.choice([0.5, 2, 5, 12])
    values = [10 ** rng.uniform(-spread, spread) for _ in range(rng.randrange(1, 30))]
    texts = column(*values)
    assert len({"e" in text for text in texts}) == 1
    assert len({len(text.partition(".")[2]) for text in texts}) == 1
    assert all(len(text) <= 9 for text in texts)
    for value, text in zip(values, texts, strict=True):
        assert float(text) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize(("values", "texts"), [
    ((11_513_626_624, 51_380_224, 2_048_000, 0), ["11,513.6 M", "51.4 M", "2.0 M", ""]),
    ((66_408_320, 7_225_344, 401_408, 640), ["66.41 M", "7.23 M", "0.40 M", "<0.01 M"]),
    ((950, 20, None), ["950", "20", ""]),
    ((999_999,), ["1,000 k"]),
    ((), []),
])  # fmt: skip
def test_counts_of_a_column_have_one_unit(values, texts):
    write = amounts(values)
    assert [write(value) for value in values] == texts


def test_bytes_of_a_column_have_one_unit():
    values = (3_211_264, 802_816, 4_000, 8)
    write = sizes(values)
    assert [write(value) for value in values] == ["3,136 KiB", "784 KiB", "4 KiB", "<1 KiB"]
    assert sizes([8, 12])(8) == "8 B"


@pytest.mark.parametrize("seed", range(25))
def test_of_two_amounts_the_longer_text_is_the_larger(seed):
    rng = random.Random(seed)
    values = sorted(int(10 ** rng.uniform(0, 13)) for _ in range(rng.randrange(1, 30)))
    for write in (amounts(values), sizes(values)):
        texts = [write(value) for value in values]
        assert len({text.partition(" ")[2] for text in texts}) == 1
        shown = [float(text.partition(" ")[0].replace(",", "").replace("<", "")) for text in texts]
        assert shown == sorted(shown)


def test_a_share_just_below_zero_has_no_sign():
    assert [percent(share) for share in (-0.0003, -0.0, 0.0003, -0.02)] == [
        "0.0 %",
        "0.0 %",
        "<0.1 %",
        "-2.0 %",
    ]
