"""Every figure with a row a layer, of a network of 162 layers: narrow, every name there, readable and apart."""

from typing import Any

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.report.layer_axis import layer_names, layer_panels
from modelscope_cli.report.registry import view_of

DPI = 130  # what figures are saved at
X_HEIGHT = 0.547  # of DejaVu Sans, in ems
N_BLOCKS = 80
SMALL = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.relu(self.conv(x))


class Deep(nn.Module):
    """8 stages of blocks of two layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for stage in range(8):
            self.add_module(f"stage{stage}", nn.Sequential(*(Block() for _ in range(N_BLOCKS // 8))))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *stages, pool, head = self.children()
        for stage in stages:
            x = stage(x)
        return head(pool(x).flatten(1))


def watched() -> Any:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ms.watch(model, optimizer) as watch:
        for _ in range(3):
            nn.functional.cross_entropy(model(SMALL), torch.tensor([0, 1])).backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch.record()


def trained() -> Any:
    return ms.train(Deep(), size=8, pictures=20, steps=2, batch=4)


RECORDS = {
    "stats": lambda: ms.stats(Deep(), SMALL),
    "grads": lambda: ms.grads(Deep(), SMALL, target=1),
    "watch": watched,
    "train": trained,
}
FIGURES = [
    ("stats", "distributions", [162]),
    ("grads", "flow", [162, 162]),
    ("watch", "dead_units", [80]),
    ("train", "training", [242, 80, 81]),  # with the additions of the blocks
]


@pytest.fixture(scope="module")
def record() -> Any:
    """Return `record(command)`, made once."""
    made: dict[str, Any] = {}

    def make(command: str) -> Any:
        if command not in made:
            made[command] = RECORDS[command]()
        return made[command]

    return make


def drawn(record: Any, picture: str) -> Any:
    figure = view_of(record).figures[picture](record)
    figure.set_dpi(DPI)
    figure.draw_without_rendering()
    return figure


def names_in(axes: Any) -> list[Any]:
    """Return the names of layers at the left of axes."""
    texts = [text for text in axes.texts if text.get_ha() == "right" and text.get_color() == "black"]
    return texts if len(texts) > 60 else []


def ticks_of(axis: Any) -> list[Any]:
    """Return the labels that are drawn: matplotlib keeps others, beyond the ends of an axis."""
    if not axis.get_visible():
        return []
    low, high = sorted(axis.get_view_interval())
    ticks = [
        tick for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()) if low <= tick.get_loc() <= high
    ]
    return [label for tick in ticks for label in (tick.label1, tick.label2)]


def texts_of(figure: Any) -> list[Any]:
    """Return everything that is written on a figure."""
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        legend = axes.get_legend()
        found += [*axes.texts, axes.title, axes._left_title, *(legend.get_texts() if legend else ())]
        for axis in (axes.xaxis, axes.yaxis):
            found += [axis.label, axis.offsetText, *ticks_of(axis)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def is_apart(one: Any, other: Any) -> bool:
    return (
        one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1 or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1
    )


@pytest.mark.parametrize(("command", "picture", "counts"), FIGURES)
def test_a_deep_figure_names_every_layer_where_one_can_read_it(record, command, picture, counts):
    figure = drawn(record(command), picture)
    width, height = figure.get_size_inches() * DPI
    assert width <= 2000
    assert height > max(counts) * 8
    named = [names for axes in figure.axes if (names := names_in(axes))]
    assert [len(names) for names in named] == counts
    for names in named:
        assert all(name.get_fontsize() * DPI / 72 * X_HEIGHT >= 8 for name in names)
    _check_texts(figure, width, height)


def _check_texts(figure: Any, width: float, height: float) -> None:
    """No text leaves the figure, and no two lie on each other; two lines of text may touch."""
    renderer = figure.canvas.get_renderer()
    found = [(text.get_window_extent(renderer), text.get_text()) for text in texts_of(figure)]
    found.sort(key=lambda pair: pair[0].y0)
    for place, (box, text) in enumerate(found):
        is_inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert is_inside, f"'{text}' leaves the figure: {box}"
        for other, words in found[place + 1 :]:
            if other.y0 >= box.y1:
                break
            assert is_apart(box, other), f"'{text}' lies on '{words}'"


def test_the_numbers_above_a_tall_panel_are_whole():
    figure, (panel,) = layer_panels("", [layer_names(f"layer{n}" for n in range(60))], [1])
    panel.axes.barh(range(60), [-4.8e6] * 60, height=0.85)
    figure.draw_without_rendering()
    axis = panel.axes.xaxis
    assert axis.get_offset_text().get_text() == ""
    for tick in axis.get_major_ticks():
        assert float(tick.label2.get_text()) == tick.get_loc()


def test_a_shallow_figure_has_room_for_its_axes():
    figure, (panel,) = layer_panels("title", [layer_names(["conv"])], [1])
    figure.draw_without_rendering()
    assert panel.axes.get_window_extent().height / figure.dpi > 0.9
