"""The picture of a model: a row for every call in execution order, nested boxes, arcs of values that skip rows."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import INK, LINE, axes_at, new_figure
from modelscope_cli.report.graph.items import Item, ModelGraph
from modelscope_cli.report.numbers import shortened

_FONT: dict[str, Any] = {"family": "monospace", "fontsize": 8, "va": "center", "color": INK}
_LETTER, _ROW = 0.602 * 8 / 72, 0.19  # inches
_HEAD, _LINE, _KEY, _EDGE = (
    0.45,
    0.17,
    2.6,
    0.15,
)  # inches: the title, a line of text, the colour bar, the margin
_APART, _INDENT, _LANE, _HALF = 2, 1.5, 1.2, 0.42  # letters, and half the height of a row
_MOST = (36, 30, 24)  # letters of a name, a type and a shape
_FAINT, _FRAME, _BLANK = "#5a636d", "#c9d0d6", "#f4f5f4"


def _macs(item: Item) -> int:
    return item.row.macs if item.row is not None else 0


def _scale_of(graph: ModelGraph) -> Any:
    """Return how matplotlib maps the MACs of calls to colours: logarithmic if they span three powers of ten."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    values = [_macs(item) for item in graph.nodes() if item.kind == "layer" and _macs(item)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    norm = LogNorm(low, high) if high > 1000 * low > 0 else Normalize(0, high)
    pale = ListedColormap(colormaps["YlOrBr"](range(0, 140)))  # dark letters are legible on all of them
    return ScalarMappable(norm, pale)


def description(graph: ModelGraph, title: str, notes: Sequence[str]) -> str:
    """Return the picture in words, for those who cannot see it."""
    layers = [item for item in graph.nodes() if item.kind == "layer"]
    largest = [item for item in sorted(layers, key=lambda item: -_macs(item))[:5] if _macs(item)]
    named = ", ".join(f"{item.full_name} {numbers.short(_macs(item))}" for item in largest)
    said = [title, f"{counted(len(layers), 'call')} in the order of execution"]
    return ". ".join([*said, *([f"largest MACs: {named}"] if named else []), *notes])


def draw(graph: ModelGraph, title: str, notes: Sequence[str]) -> Any:
    """Return the picture as a figure, with a title at the top and notes at the end."""
    rows, ends = places_of(graph.top)
    height = max(ends.values(), default=0) + 1
    cells = {item: _cells(item, depth) for item, (_, depth) in rows.items()}
    columns = _columns(list(cells.values()))
    arcs = arcs_of(graph, {item: y for item, (y, _) in rows.items()})
    right = columns[-1] + 1
    width = right + _LANE * (max((lane for *_, lane in arcs), default=0) + 2)
    lines = "\n".join(notes)
    foot = _EDGE + _LINE * (lines.count("\n") + 1) if lines else _EDGE
    top = _HEAD + _LINE * title.count("\n") + 3 * _LINE
    inches = max(width * _LETTER + 2 * _EDGE, 7.0), top + height * _ROW + foot
    figure = new_figure(*inches, title, is_laid_out=False)
    axes = axes_at(figure, _EDGE, top, inches[0] - 2 * _EDGE, height * _ROW)
    axes.set_axis_off()
    axes.set(xlim=(0, (inches[0] - 2 * _EDGE) / _LETTER), ylim=(height - 0.5, -0.5))
    scale = _scale_of(graph)
    _draw_boxes(axes, rows, ends, right, scale)
    for item, (y, _) in rows.items():
        for n, (x, text) in enumerate(zip((cells[item][0], *columns), cells[item][1:], strict=True)):
            weight = "bold" if n == 0 and item.kind in ("layer", "box") else "normal"
            axes.text(x, y, text, ha="right" if n == 4 else "left", weight=weight, **_FONT)
    _draw_arcs(axes, arcs, right)
    _draw_links(axes, graph, rows)
    key = axes_at(figure, _EDGE, top - 2.6 * _LINE, _KEY, 0.1)
    figure.colorbar(scale, cax=key, orientation="horizontal", format=lambda value, _: numbers.short(value))
    key.tick_params(labelsize=7)
    key.text(1.03, 0.5, "MACs of a call", transform=key.transAxes, va="center", fontsize=8, color=INK)
    if lines:
        figure.text(_EDGE / inches[0], 0.05 / inches[1], lines, fontsize=8, color=_FAINT, va="bottom")
    return figure


def places_of(top: Item) -> tuple[dict[Item, tuple[int, int]], dict[Item, int]]:
    """Return the row and the depth of every item, and the last row of every item."""
    rows: dict[Item, tuple[int, int]] = {}
    ends: dict[Item, int] = {}
    for item, depth, is_end in top.nested():
        if not is_end:
            rows[item] = len(rows), depth
        ends[item] = len(rows) - 1
    return rows, ends


def _cells(item: Item, depth: int) -> tuple[float, str, str, str, str, str]:
    """Return where the name begins, and the texts of the columns: name, type, kernel, shape, number."""
    kernel = numbers.shape(item.row.kernel_size) if item.row and item.row.kernel_size else ""
    said = [item.type if item.type != item.name else "", *item.marks]
    return (
        _INDENT * min(depth, 30) + 0.5,
        item.name if item.kind == "fold" else shortened(item.name, _MOST[0]),
        shortened(plain(" · ".join(filter(None, said))), _MOST[1]) if item.kind != "fold" else "",
        kernel,
        shortened(numbers.shapes(item.shapes, most=1), _MOST[2]),
        numbers.short(_macs(item)) if _macs(item) else "",
    )


def _columns(cells: Sequence[tuple[float, str, str, str, str, str]]) -> tuple[float, ...]:
    """Return the left edges of the columns after the first, and the right edge of the last one."""
    after = max((left + len(name) for left, name, type_name, *_ in cells if type_name), default=10.0)
    folded = max((left + len(name) for left, name, type_name, *_ in cells if not type_name), default=0.0)
    texts = list(zip(*cells, strict=True))[2:]
    types, kernels, shapes, values = (max(map(len, column)) for column in texts) if texts else (0, 0, 0, 0)
    kernel = max(after + _APART + types, folded) + _APART
    shape = kernel + (kernels + _APART if kernels else 0)
    return after + _APART, kernel, shape, shape + shapes + _APART + values


def arcs_of(graph: ModelGraph, rows: dict[Item, int]) -> list[tuple[int, list[int], int]]:
    """Return the source, the targets and the lane of the values that go further than to the next item.

    Arcs of one source share a lane; the shortest arcs have the first lanes.
    """
    nodes = graph.nodes()
    following = dict(pairwise(nodes))
    targets: dict[Item, list[int]] = {}
    for source, target in graph.edges:
        if following.get(source) is not target:
            targets.setdefault(source, []).append(rows[target])
    arcs, lanes = [], list[list[tuple[int, int]]]()
    for source, ends in sorted(targets.items(), key=lambda one: max(one[1]) - rows[one[0]]):
        low, high = min(rows[source], *ends), max(rows[source], *ends)
        free = (n for n, lane in enumerate(lanes) if all(high < start or end < low for start, end in lane))
        lane = next(free, len(lanes))
        lanes += [[]] if lane == len(lanes) else []
        lanes[lane].append((low, high))
        arcs.append((rows[source], ends, lane))
    return arcs


def _draw_boxes(
    axes: Any,
    rows: dict[Item, tuple[int, int]],
    ends: dict[Item, int],
    right: float,
    scale: Any,
) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    patches, fills = [], []
    for item, (y, depth) in rows.items():
        left = _INDENT * min(depth, 30)
        down = ends[item] - y + 2 * _HALF
        patches.append(Rectangle((left, y - _HALF), right - left, down))
        grey = _BLANK if item.kind == "layer" else "white"
        fills.append(scale.to_rgba(_macs(item)) if item.kind == "layer" and _macs(item) else grey)
    axes.add_collection(PatchCollection(patches, facecolor=fills, edgecolor=_FRAME, linewidths=0.6))


def _draw_arcs(axes: Any, arcs: Sequence[tuple[int, list[int], int]], right: float) -> None:
    from matplotlib.collections import LineCollection

    paths, heads = [], []
    for source, targets, lane in arcs:
        x = right + _LANE * (lane + 1)
        paths += [[(right, source + 0.2), (x, source + 0.2), (x, y - 0.2), (right, y - 0.2)] for y in targets]
        heads += [y - 0.2 for y in targets]
    axes.add_collection(LineCollection(paths, colors=LINE, linewidths=0.8))
    axes.plot([right + 0.4] * len(heads), heads, "<", ms=3.5, color=LINE)


def _draw_links(axes: Any, graph: ModelGraph, rows: dict[Item, tuple[int, int]]) -> None:
    """Draw a small triangle on top of every item that is given what the item before it computed."""
    edges = set(graph.edges)
    linked = [rows[target] for source, target in pairwise(graph.nodes()) if (source, target) in edges]
    xs, ys = [_INDENT * min(depth, 30) + 1 for _, depth in linked], [y - 0.5 for y, _ in linked]
    axes.plot(xs, ys, "v", ms=3.5, color=LINE)
