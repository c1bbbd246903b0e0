"""The picture of a model: what is in it, against the record; where it stands, against itself."""

import re
from importlib.resources import files
from itertools import combinations, pairwise
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.documents import restore
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import shades
from modelscope_cli.report.graph import drawing
from modelscope_cli.report.graph.items import items_of
from modelscope_cli.report.graph.layout import LANE, fitted, lay_out, width

SVG = "{http://www.w3.org/2000/svg}"
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


@everyone
def test_every_innermost_call_is_a_row_in_the_order_in_which_it_ran(records, name):
    record = records[name]
    drawn = [item.row for item in items_of(record, is_whole=True).nodes() if item.kind == "layer"]
    assert drawn == sorted(innermost(record), key=lambda row: row.order)
    svg = ET.fromstring(record.graph(whole=True))
    assert len(svg.findall(f".//{SVG}rect[@rx='4']")) == len(drawn)


@everyone
def test_every_edge_is_an_arrow_or_an_arc(records, name):
    record = records[name]
    picture = items_of(record, is_whole=True)
    layout = lay_out(picture, 300)
    arcs = {(a, b) for arc in layout.arcs for a in arc.sources for b in arc.targets}
    assert len(layout.links) + len(arcs) == len(picture.edges) == len(set(record.flow.edges))
    places = layout.places
    assert arcs <= set(picture.edges)
    assert all(places[a].bottom <= places[b].top for a, b in picture.edges)
    assert all(link.top < link.bottom for link in layout.links)


@everyone
@pytest.mark.parametrize("is_whole", [True, False])
def test_nothing_overlaps(records, name, is_whole):
    picture = items_of(records[name], is_whole=is_whole)
    layout = lay_out(picture, 300)
    places = layout.places
    for box in picture.top.walk():
        inner = [places[item] for item in box.inside]
        assert all(above.bottom < below.top for above, below in pairwise(inner))
        if box is not picture.top:
            assert all(
                places[box].left < one.left
                and one.right < places[box].right
                and one.bottom < places[box].bottom
                for one in inner
            )
    for arc, other in combinations(layout.arcs, 2):
        if abs(arc.x - other.x) < LANE / 2:
            assert arc.box is not other.box or not meet(span(arc, places), span(other, places))
    assert all(300 < arc.x < places[arc.box].right for arc in layout.arcs)
    for arc in layout.arcs:  # to the right of every box in the one it is in
        assert all(places[item].right < arc.x for item in arc.box.inside if item.kind == "box")


def span(arc, places):
    ys = [places[item].out for item in arc.sources] + [places[item].into for item in arc.targets]
    return min(ys), max(ys)


def meet(a, b):
    return a[0] <= b[1] and b[0] <= a[1]


@everyone
def test_words_have_room_and_can_be_read(records, name):
    svg = ET.fromstring(records[name].graph(whole=True))
    assert int(svg.get("width")) <= 2000
    assert int(svg.get("font-size")) >= 11
    for group in svg.iter(f"{SVG}g"):
        words = [one for one in group.findall(f"{SVG}text") if one.text and "text-anchor" not in one.attrib]
        for left, right in pairwise(words):
            assert float(left.get("x")) + width(left.text, 12) < float(right.get("x"))
    for one in svg.iter(f"{SVG}text"):
        if "text-anchor" not in one.attrib:
            assert float(one.get("x")) + width(one.text, 12) <= int(svg.get("width"))


def test_the_range_of_shades_is_written_to_the_right_of_them(records):
    svg = ET.fromstring(next(iter(records.values())).graph(color="params"))
    groups = [group for group in svg.iter(f"{SVG}g") if group.find(f"{SVG}text[@class='words']") is not None]
    (legend,) = (group for group in groups if group.find(f"{SVG}rect[@class='h0 edge']") is not None)
    chips, (words,) = legend.findall(f"{SVG}rect"), legend.findall(f"{SVG}text")
    assert float(words.get("x")) > max(float(one.get("x")) + float(one.get("width")) for one in chips)


@everyone
def test_the_file_is_whole_by_itself_and_says_what_it_shows(records, name):
    record = records[name]
    text = record.graph()
    assert record.graph() == text
    svg = ET.fromstring(text)
    assert svg.get("role") == "img"
    assert [child.tag for child in svg][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert {one.tag.removeprefix(SVG) for one in svg.iter()} <= {
        "svg", "title", "desc", "rect", "g", "text", "path",
    }  # fmt: skip
    assert not re.search(r"(?:href|url\(|style=|on\w+=)", re.sub(r">[^<]*<", "><", text))
    assert (
        f"{len([i for i in items_of(record).nodes() if i.kind == 'layer'])} call"
        in svg.find(f"{SVG}desc").text
    )


def test_hostile_names_stay_text(records):
    svg = ET.fromstring(records["Hostile"].graph())
    said = {one.text for one in svg.iter(f"{SVG}text")}
    assert "</svg><script>alert(1)</script>" in said
    assert r"\u202egnp\u202c\x1b[31m" in said
    assert any(one.text.startswith("x" * 300) for one in svg.iter(f"{SVG}title"))
    assert not any("\u202e" in one or "\x1b" in one for one in said if one)


def test_what_is_odd_is_said(records):
    text = records["Hostile"].graph()
    assert "Linear · result not used" in text

    class ByNumPy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(torch.from_numpy(self.a(x).numpy()))

    text = summary(ByNumPy()).graph()
    assert "Linear · input not followed" in text
    assert "by numpy" in text
    assert "result not used" not in text


def test_blocks_that_repeat_the_one_before_are_folded(records):
    record = records["Repeated"]
    picture = items_of(record)
    (fold,) = [item for item in picture.top.walk() if item.kind == "fold"]
    assert fold.name == "blocks.1 .. blocks.29: 29 blocks like blocks.0"
    assert sum(row.macs for row in fold.rows) == 29 * 32
    assert "928" in record.graph()
    assert "like blocks.0" not in record.graph(whole=True)


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
    assert len([item for item in items_of(record, is_whole=True).nodes() if item.kind == "operation"]) == 40
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
    assert again.graph(color="params") == record.graph(color="params")


def test_a_forward_that_raises_is_drawn_up_to_there():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3), nn.Linear(4, 4))
    with pytest.raises(CannotRunError) as raised:
        summary(model)
    record = raised.value.record
    assert [label_of(item.row) for item in items_of(record).nodes() if item.row] == ["0", "1"]
    text = record.graph()
    assert "Linear · raised an error" in text
    assert ">output<" not in text


def test_what_cannot_be_drawn_is_refused(tmp_path):
    record = ms.summary(nn.Linear(4, 4), torch.rand(1, 4))
    with pytest.raises(UsageError, match="did not record"):
        record.graph()
    record = summary(nn.Linear(4, 4))
    with pytest.raises(UsageError, match="'time' was not measured"):
        record.graph(color="time")
    with pytest.raises(UsageError, match="did you mean macs"):
        record.graph(color="mac")
    with pytest.raises(UsageError, match=r"neither .svg nor .html"):
        record.graph(tmp_path / "m.png")


def test_very_many_layers(records):
    model = nn.Sequential(*[nn.Linear(2, 2, device="meta") for _ in range(1000)])
    text = summary(model, torch.rand(1, 2, device="meta")).graph()
    assert text.count("Linear</text>") == 1000
    assert len(text) < 1_000_000


def test_the_colours_are_those_of_the_pages():
    style = files("modelscope_cli.report.page").joinpath("shell", "page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", part)) for part in style.split("@media")[:2])
    shades = [f"h{n}" for n in range(1, 9)]
    assert [light[name] for name in shades] == list(drawing.FILLS[1:])
    named = {"paper": drawing.PAPER, "panel": drawing.PANEL, "ink": drawing.INK, "quiet": drawing.QUIET}
    assert named | {"rule": drawing.RULE, "t0": drawing.ARC} == {
        key: light[key] for key in (*named, "rule", "t0")
    }
    for colours in (light, dark):
        assert all(contrast(colours["ink"], colours[ground]) >= 4.5 for ground in (*shades, "panel", "paper"))
        assert contrast(colours["quiet"], colours["paper"]) >= 4.5


def contrast(one, other):
    def light(colour):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_are_cut_in_their_middle():
    assert fitted("abc", 10, 100) == "abc"
    cut = fitted("a_long_name_of_a_layer", 10, 80)
    assert width(cut, 10) <= 80
    assert cut.startswith("a_lo")
    assert cut.endswith("yer")
    assert width("名前", 10) == 2 * width("ab", 10)


@pytest.mark.parametrize(("values", "levels"), [
    ([0, None, float("nan"), 1, 50, 100], [0, 0, 0, 1, 4, 8]),
    ([1, 100, 10_000], [1, 4, 8]),  # by their logarithm
    ([3, 3, 0], [4, 4, 0]),
    ([None, 0], [0, 0]),
    ([-100, 50], [8, 4]),
])  # fmt: skip
def test_only_nothing_has_no_shade(values, levels):
    rows = [(value,) for value in values]
    found = shades.levels(rows, shades.Shade("v", lambda row: row[0], str))
    assert [found[id(row)] for row in rows] == levels
