"""Axes and lines: whatever the numbers are, they lie inside, in the right order, beside round numbers."""

import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from modelscope_cli.report.page import charts
from modelscope_cli.report.page.charts import ChartMark, Line, bars, line_chart, spark
from modelscope_cli.report.page.tables import tree
from modelscope_cli.report.shades import Shade

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANY = st.one_of(st.none(), st.floats(), st.integers(-(10**6), 10**6).map(float))


@given(st.lists(FLOATS, max_size=20), st.integers(2, 6))
def test_a_linear_axis_holds_all_values_at_round_numbers(values, most):
    scale = charts.linear(values, most)
    assert 2 <= len(scale.ticks) <= most + 3
    assert list(scale.ticks) == sorted(scale.ticks)
    assert all(0 <= scale.place(value) <= 1 for value in values)
    gaps = [b - a for a, b in zip(scale.ticks, scale.ticks[1:], strict=False)]
    assert max(gaps) == pytest.approx(min(gaps), rel=1e-6)


@given(st.lists(FLOATS.map(abs), max_size=20))
def test_a_logarithmic_axis_has_powers_of_ten(values):
    scale = charts.logarithmic(values)
    assert 2 <= len(scale.ticks) <= 7
    assert all(math.log10(tick) == pytest.approx(round(math.log10(tick)), abs=1e-9) for tick in scale.ticks)
    assert all(0 <= scale.place(value) <= 1 for value in values)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_what_is_larger_stands_higher(values):
    scale = charts.linear(values)
    places = [scale.place(value) for value in sorted(values)]
    assert places == sorted(places)


@pytest.mark.parametrize(("values", "ticks"), [
    ([0.2, 4.9], (0, 2, 4, 6)),
    ([1.0, 2.0], (1.0, 1.25, 1.5, 1.75, 2.0)),
    ([0.3, 0.3], (0.1, 0.2, 0.3, 0.4, 0.5)),
])  # fmt: skip
def test_an_axis_a_person_would_have_drawn(values, ticks):
    assert charts.linear(values).ticks == pytest.approx(ticks)


@given(st.integers(0, 10**12))
def test_steps_are_whole_and_reach_the_last(last):
    ticks = charts.steps(last).ticks
    assert ticks[0] == 0
    assert ticks[-1] >= last
    assert all(tick == int(tick) for tick in ticks)
    assert len(ticks) <= 8


class Points(HTMLParser):
    """The ends of all paths, as coordinates."""

    def __init__(self, svg):
        super().__init__()
        self.paths = []
        self.feed(svg)

    def handle_starttag(self, tag, attrs):
        if tag == "path":
            x = y = 0
            points = []
            for letter, numbers in re.findall(r"([Mlhv])([^Mlhv]*)", dict(attrs)["d"]):
                values = [int(number) for number in re.findall(r"-?\d+", numbers)]
                if letter == "M":
                    x, y = values
                else:
                    x, y = x + (values[0] if letter in "lh" else 0), y + (values[-1] if letter in "lv" else 0)
                points.append((letter, x, y))
            self.paths.append(points)

    handle_startendtag = handle_starttag


@given(st.lists(ANY, min_size=1, max_size=30))
def test_a_line_stays_in_its_frame_and_breaks_where_a_number_is_missing(values):
    chart = line_chart("title", [Line("it", range(len(values)), values)], height=100)
    ((points),) = Points(chart).paths
    assert all(0 <= x <= 1000 and 0 <= y <= 100 for _, x, y in points)
    known = [value is not None and math.isfinite(value) for value in values]
    starts = sum(now and not before for before, now in zip([False, *known], known, strict=False))
    assert sum(letter == "M" for letter, _, _ in points) <= starts or "logarithmic" in chart


def test_a_line_goes_through_its_points():
    chart = line_chart("title", [Line("it", [0, 1, 2, 4], [0.0, 10.0, 10.0, 5.0])], height=100, last=4)
    (points,) = Points(chart).paths
    across = charts.steps(4)
    at = [(round(1000 * across.place(step)), y) for step, y in [(0, 100), (1, 0), (2, 0), (4, 50)]]
    assert [(x, y) for _, x, y in points] == at


@given(st.lists(ANY, max_size=30))
@example([1.7976931348623157e308, -9.98e291])  # whose difference is infinite
def test_a_small_line_stays_in_its_cell(values):
    for points in Points(spark(values, range(len(values)))).paths:
        assert all(0 <= x <= 96 and 0 <= y <= 18 for _, x, y in points)


@given(st.lists(st.integers(0, 10**12), max_size=60))
def test_bars_are_as_high_as_their_logarithms(counts):
    for points in Points(bars(counts, "label")).paths:
        assert all(0 <= x <= 2 * len(counts) and 0 <= y <= 18 for _, x, y in points)
        assert sum(letter == "M" for letter, _, _ in points) <= sum(map(bool, counts))


def test_a_chart_says_its_numbers_and_leads_to_its_findings():
    chart = line_chart("Loss", [Line("training", [0, 1], [2.5, 0.5])], [ChartMark(1, "MS705", "finding-0")])
    assert 'aria-label="Loss. training: 2.5000 at first, 0.5000 at the end, from 0.5000 to 2.5000"' in chart
    assert '<a href="#finding-0"' in chart


@given(st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=12))
def test_every_layer_of_a_tree_has_a_shade(values):
    rows = [(f"block{n % 3}.layer{n}", value) for n, value in enumerate(values)]
    shade = Shade("it", lambda row: row[1], lambda row: str(row[1]))
    drawn = tree(rows, lambda row: row[0], lambda row: row[0], [shade], lambda row: False)
    shades = [int(shade) for shade in re.findall(r'class="chip h(\d+)"', drawn)]
    assert len(shades) == len(rows)
    assert all(0 <= shade <= 8 for shade in shades)


def test_larger_numbers_are_darker():
    rows = [("a", 0.0), ("b", 0.25), ("c", 1.0)]
    shade = Shade("it", lambda row: row[1], lambda row: "")
    drawn = tree(rows, lambda row: row[0], lambda row: row[0], [shade], lambda row: False)
    assert re.findall(r'class="chip h(\d+)"', drawn) == ["0", "2", "8"]
