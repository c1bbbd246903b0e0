"""The picture of a model: what is in it, against the record; where it stands, against itself."""

import shutil
import subprocess
from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.documents import restore
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import canvas
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
    return found | {name: ms.summary(name, flow=True) for name in ("resnet18", "googlenet", "densenet121")}


NAMES = ("Skips", "Dense", "Hostile", "Repeated", "linear", "nothing", "resnet18", "googlenet", "densenet121")
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
    axes = records["Skips"].graph().axes[0]
    boxes, lines = axes.collections[:2]
    right = max(path.vertices[:, 0].max() for path in boxes.get_paths())
    drawn = [segment.tolist() for segment in lines.get_segments()]
    assert len(drawn) == sum(len(ends) for _, ends, _ in arcs_of(graph, rows))
    for (x, _), (lane, _), _, (end, _) in drawn:
        assert x == end == pytest.approx(right)
        assert lane > right


def test_numbers_are_in_the_picture_and_the_largest_is_the_darkest(records):
    figure = records["resnet18"].graph(color="params")
    words = words_in(figure)
    assert {"conv1", "Conv2d", "7x7", "9,408", "513,000", "add"} <= {*words}
    assert "parameters of a call" in words
    fills = figure.axes[0].collections[0].get_facecolor()[:, :3].sum(1)
    shown = items_of(records["resnet18"]).top
    darkest = [*places_of(shown)[0]][int(fills.argmin())]
    assert darkest.row.params == max(row.params for row in innermost(records["resnet18"]))


@everyone
@pytest.mark.parametrize("suffix", ["dot", "mmd"])
def test_text_has_every_item_and_every_edge(records, name, suffix, tmp_path):
    record, file = records[name], tmp_path / f"net.{suffix}"
    text = record.graph(file)
    assert file.read_text() == text
    graph = items_of(record)
    n_boxes = sum(item.kind == "box" for item in graph.top.walk()) - 1
    assert text.count("->" if suffix == "dot" else "-->") == len(graph.edges)
    assert text.count("subgraph") == n_boxes
    assert text.count(" [label=" if suffix == "dot" else "  style ") == len(graph.nodes())


def test_hostile_names_stay_text(records, tmp_path):
    words = words_in(records["Hostile"].graph(tmp_path / "net.svg"))
    assert "</svg><script>alert(1)</script>" in words
    assert not any("\u202e" in one or "\x1b" in one for one in words)
    texts = {suffix: records["Hostile"].graph(tmp_path / f"net.{suffix}") for suffix in ("dot", "mmd")}
    assert "a&b\\\"'<" in texts["dot"]
    assert "a#38;b#34;#39;#60;" in texts["mmd"]
    assert not any("\u202e" in text or "\x1b" in text for text in texts.values())


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@everyone
def test_graphviz_reads_it(records, name, tmp_path):
    records[name].graph(tmp_path / "net.dot")
    line = ["dot", "-Tplain", tmp_path / "net.dot"]
    found = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert sum(one.startswith("node ") for one in found.splitlines()) == len(items_of(records[name]).nodes())


def test_what_is_odd_is_said(records):
    assert "Linear · result not used" in words_in(records["Hostile"].graph())

    class ByNumPy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(torch.from_numpy(self.a(x).numpy()))

    figure = summary(ByNumPy()).graph()
    assert "Linear · input not followed" in words_in(figure)
    assert any("by numpy" in text.get_text() for text in figure.texts)


def test_very_many_layers_fit_into_a_file(tmp_path):
    model = nn.Sequential(*[nn.Linear(2, 2, device="meta") for _ in range(3000)])
    record = summary(model, torch.rand(1, 2, device="meta"))
    record.graph(tmp_path / "net.mmd")
    figure = record.graph()
    assert canvas._most_dots(figure, 130) * figure.get_figheight() < 2**16


def test_very_many_operations_in_a_row_are_one_line():
    class Boxes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(50)])

        def forward(self, x):
            found = self.layers(x)
            kept = [found > 0.1 * n for n in range(20)]
            return torch.stack([one & kept[0] for one in kept[1:]])

    record = summary(Boxes())
    (fold,) = [item for item in items_of(record).top.walk() if item.kind == "fold"]
    assert fold.name == "40 operations: gt, and, stack"
    path = [(a.full_name, b.full_name) for a, b in items_of(record).edges]
    assert path[-2:] == [("layers.49", fold.name), (fold.name, "output")]


def test_depth_makes_a_box_of_what_is_deeper():
    picture = items_of(ms.summary("resnet18", depth=1, flow=True))
    kinds = {item.full_name: item.kind for item in picture.top.walk()}
    assert kinds["layer1"] == kinds["conv1"] == "layer"
    assert kinds["ResNet"] == "box"
    names = [(a.full_name, b.full_name) for a, b in picture.edges]
    path = ["input", "conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool"]
    assert set(names) == set(pairwise([*path, "flatten", "fc", "output"]))


def test_a_choice_of_layers_keeps_what_runs_between_them():
    picture = items_of(ms.summary("resnet18", layer="layer1.0.*", flow=True))
    assert [item.full_name for item in picture.nodes()][:3] == ["input", "layer1.0.conv1", "layer1.0.bn1"]


def test_a_document_makes_the_same_picture(records):
    record = records["resnet18"]
    again = restore(record.to_dict())
    assert again.flow == record.flow
    assert words_in(again.graph(color="params")) == words_in(record.graph(color="params"))


def test_a_forward_that_raises_is_drawn_up_to_there():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3), nn.Linear(4, 4))
    with pytest.raises(CannotRunError) as raised:
        summary(model)
    record = raised.value.record
    assert [label_of(item.row) for item in items_of(record).nodes() if item.row] == ["0", "1"]
    words = words_in(record.graph())
    assert "Linear · raised an error" in words
    assert "output" not in words


def test_what_cannot_be_drawn_is_refused(tmp_path):
    record = ms.summary(nn.Linear(4, 4), torch.rand(1, 4))
    with pytest.raises(UsageError, match="did not record"):
        record.graph()
    record = summary(nn.Linear(4, 4))
    with pytest.raises(UsageError, match="'time' was not measured"):
        record.graph(color="time")
    with pytest.raises(UsageError, match="did you mean macs"):
        record.graph(color="mac")
    with pytest.raises(UsageError, match="does not end in one of"):
        record.graph(tmp_path / "m.html")
