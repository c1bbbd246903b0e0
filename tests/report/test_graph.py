"""The picture of a model: what is in it, against the record; where it stands, against itself."""

from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.naming import label_of
from modelscope_cli.report.graph.drawing import arcs_of, places_of
from modelscope_cli.report.graph.items import items_of

HOSTILE = [
    "</svg><script>alert(1)</script>",
    "\u202egnp\u202c\x1b[31m",
    "a&b\"'<",
    "\ufffe",
    "名前" * 12,
    "x" * 300,
    "]]>",
]


class Skips(nn.Module):
    """Skips over skips, as in a U-Net."""

    def __init__(self, n=4):
        super().__init__()
        self.down = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(n)])
        self.up = nn.ModuleList([nn.Linear(8, 4) for _ in range(n)])

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        for layer, skip in zip(self.up, reversed(kept), strict=True):
            x = layer(torch.cat([x, skip], 1))
        return x


class Dense(nn.Module):
    """Every layer is given what all before it gave."""

    def __init__(self, n=6):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4 * (i + 1), 4) for i in range(n)])

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        for name in HOSTILE:
            self.add_module(name, nn.Linear(4, 4))
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        *layers, unused = self.children()
        for layer in layers:
            x = layer(x) + x
        unused(x)
        return x


class Repeated(nn.Module):
    def __init__(self, n=30):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(n)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def summary(model, *inputs, **keywords):
    return ms.summary(model, *(inputs or (torch.rand(1, 4),)), flow=True, **keywords)


@pytest.fixture(scope="module")
def records():
    found = {kind.__name__: summary(kind().eval()) for kind in (Skips, Dense, Hostile, Repeated)}
    found["linear"] = summary(nn.Linear(4, 4))
    found["nothing"] = summary(nn.Sequential())
    return found | {name: ms.summary(name, flow=True) for name in ("resnet18",)}


NAMES = ("Skips", "Dense", "Hostile", "Repeated", "linear", "nothing", "resnet18")
everyone = pytest.mark.parametrize("name", NAMES)


def innermost(record):
    return [row for row in record.layers if row.order and row.order not in record.flow.around]


def words_in(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@everyone
def test_every_innermost_call_is_a_row_in_the_order_in_which_it_ran(records, name):
    record = records[name]
    graph = items_of(record)
    drawn = [item for item in graph.nodes() if item.kind == "layer"]
    assert [item.row for item in drawn] == sorted(innermost(record), key=lambda row: row.order)
    rows, ends = places_of(graph.top)
    assert [row for row, _ in rows.values()] == list(range(len(rows)))
    for box in graph.top.walk():
        assert [rows[item][0] for item in box.inside] == sorted(rows[item][0] for item in box.inside)
        assert all(rows[item][0] <= ends[box] for item in box.inside if box is not graph.top)


@everyone
def test_every_value_that_skips_rows_is_an_arc_and_no_two_arcs_overlap(records, name):
    graph = items_of(records[name])
    rows = {item: row for item, (row, _) in places_of(graph.top)[0].items()}
    arcs = arcs_of(graph, rows)
    next_ones = set(pairwise(graph.nodes()))
    skipping = {(rows[a], rows[b]) for a, b in graph.edges if (a, b) not in next_ones}
    assert {(source, end) for source, ends, _ in arcs for end in ends} == skipping
    assert all(source < end for source, ends, _ in arcs for end in ends)
    for (a, a_ends, lane), (b, b_ends, other) in combinations(arcs, 2):
        assert lane != other or max(a_ends) < b or max(b_ends) < a


def test_arcs_are_right_of_the_rows_and_lead_from_one_to_another(records):
    graph = items_of(records["Skips"])
    rows = {item: row for item, (row, _) in places_of(graph.top)[0].items()}
    axes = records["Skips"].plot().axes[0]
    boxes, lines = axes.collections[:2]
    right = max(path.vertices[:, 0].max() for path in boxes.get_paths())
    drawn = [segment.tolist() for segment in lines.get_segments()]
    assert len(drawn) == sum(len(ends) for _, ends, _ in arcs_of(graph, rows))
    for (x, _), (lane, _), _, (end, _) in drawn:
        assert x == end == pytest.approx(right)
        assert lane > right


def test_numbers_are_in_the_picture_and_the_largest_is_the_darkest(records):
    figure = records["resnet18"].plot()
    words = words_in(figure)
    assert {"conv1", "Conv2d", "7x7", "118 M", "add"} <= {*words}
    assert "MACs of a call" in words
    fills = figure.axes[0].collections[0].get_facecolor()[:, :3].sum(1)
    shown = items_of(records["resnet18"]).top
    darkest = [*places_of(shown)[0]][int(fills.argmin())]
    assert darkest.row.macs == max(row.macs for row in innermost(records["resnet18"]))


def test_numbers_of_three_powers_of_ten_have_a_logarithmic_scale_that_ends_at_the_extremes():
    model = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 3000), nn.ReLU(), nn.Linear(3000, 1))
    key = summary(model, torch.rand(1, 2)).plot(picture="graph").axes[-1]
    assert key.get_xscale() == "log"
    assert key.get_xlim() == pytest.approx((200, 300_000))
    even = summary(model[2:], torch.rand(1, 100)).plot(picture="graph").axes[-1]
    assert even.get_xscale() == "linear"
    assert even.get_xlim() == pytest.approx((0, 300_000))


def test_a_forward_that_raises_is_drawn_up_to_there():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3), nn.Linear(4, 4))
    with pytest.raises(CannotRunError) as raised:
        summary(model)
    record = raised.value.record
    assert [label_of(item.row) for item in items_of(record).nodes() if item.row] == ["0", "1"]
    words = words_in(record.plot())
    assert "Linear · raised an error" in words
    assert "output" not in words
