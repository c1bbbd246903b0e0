"""The layout of a graph in pixels, and the columns of text in its boxes.

Boxes are nested, from top to bottom. A value that goes to the next item is a short arrow between the two; any other
one is an arc on the right, in a lane of the innermost box with both its ends. Arcs with a common end share a lane.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from unicodedata import combining, east_asian_width

from modelscope_cli.plain_text import plain
from modelscope_cli.report import numbers
from modelscope_cli.report.graph.items import Item, ModelGraph
from modelscope_cli.report.numbers import cut_in_the_middle
from modelscope_cli.report.shades import Shade

ROW, GAP, HEAD, PAD, LANE, RADIUS = 24, 9, 27, 10, 9, 5
_DEEP = 40  # depth from which on items are indented less
_MOST_GUTTER = 700  # pixels; very many lanes are closer together


@dataclass(slots=True)
class BoxPlace:
    """The rectangle of an item, and the lanes of a box."""

    left: float
    top: float = 0.0
    right: float = 0.0
    bottom: float = 0.0

    @property
    def out(self) -> float:
        """The height at which an arc leaves; it arrives at `into`."""
        return round(min(self.top + 0.68 * ROW, self.bottom - 3), 1)

    @property
    def into(self) -> float:
        return round(self.top + 0.32 * ROW, 1)


@dataclass(frozen=True, slots=True)
class Arc:
    """Arcs that share a lane: one source to several targets, or several sources to one target."""

    sources: tuple[Item, ...]
    targets: tuple[Item, ...]
    box: Item
    x: float = 0.0


@dataclass(frozen=True, slots=True)
class GraphLink:
    """A short arrow between two consecutive items."""

    x: float
    top: float
    bottom: float


@dataclass(slots=True)
class GraphLayout:
    """The positions of everything. `core`: the right edge of every row."""

    core: float
    places: dict[Item, BoxPlace] = field(default_factory=dict)
    arcs: list[Arc] = field(default_factory=list)
    links: list[GraphLink] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max((place.right for place in self.places.values()), default=self.core)

    @property
    def height(self) -> float:
        return max((place.bottom for place in self.places.values()), default=0.0)


def lay_out(graph: ModelGraph, core: float) -> GraphLayout:
    """Return the layout of a graph. `core`: the right edge of the rows, which depends on their texts."""
    layout = GraphLayout(core)
    _stack(graph.top, layout)
    chains = dict(_chains(graph.top))
    order = {item: n for n, item in enumerate(graph.top.walk())}
    following = dict(zip(nodes := graph.nodes(), nodes[1:], strict=False))
    skips = [(a, b) for a, b in graph.edges if following.get(a) is not b]
    for source, target in graph.edges:
        if following.get(source) is target:
            layout.links.append(_link(chains[source], chains[target], layout))
    by_box: dict[Item, list[tuple[Item, Item]]] = defaultdict(list)
    for source, target in skips:
        by_box[_around(chains[source], chains[target])].append((source, target))
    _widen(graph.top, layout, {box: _bundles(box, pairs, order) for box, pairs in by_box.items()})
    return layout


def left_of(depth: int) -> float:
    return float(PAD * min(depth, _DEEP) + max(depth - _DEEP, 0))


def _stack(top: Item, layout: GraphLayout) -> None:
    """Stack items vertically; a box ends with its content."""
    y = 0.0
    waiting: list[tuple[Item, int, bool]] = [(top, -1, False)]
    while waiting:
        item, depth, is_done = waiting.pop()
        if is_done:
            y = y - GAP + PAD if item is not top else y
            layout.places[item].bottom = y
            y += GAP
            continue
        place = layout.places[item] = BoxPlace(left_of(max(depth, 0)), y, layout.core)
        if item.kind == "box":
            y += 0 if item is top else HEAD + GAP / 2
            waiting.append((item, depth, True))
            waiting += [(one, depth + 1, False) for one in reversed(item.inside)]
        else:
            place.bottom = y + ROW
            y += ROW + GAP


def _chains(top: Item) -> list[tuple[Item, tuple[Item, ...]]]:
    """Return every item with its enclosing boxes, the outermost first, and itself."""
    chains: list[tuple[Item, tuple[Item, ...]]] = []
    waiting: list[tuple[Item, tuple[Item, ...]]] = [(top, (top,))]
    while waiting:
        item, chain = waiting.pop()
        chains.append((item, chain))
        waiting += [(one, (*chain, one)) for one in reversed(item.inside)]
    return chains


def _fork(a: Sequence[Item], b: Sequence[Item]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] is b[n]:
        n += 1
    return n


def _around(a: Sequence[Item], b: Sequence[Item]) -> Item:
    """Return the innermost box that contains both."""
    shared = [item for item in a[: _fork(a, b)] if item.kind == "box"]
    return shared[-1]


def _link(a: Sequence[Item], b: Sequence[Item], layout: GraphLayout) -> GraphLink:
    n = _fork(a, b)
    above, below = layout.places[a[n]], layout.places[b[n]]
    return GraphLink(max(above.left, below.left) + 22, above.bottom, below.top)


def _bundles(box: Item, pairs: Sequence[tuple[Item, Item]], order: dict[Item, int]) -> list[Arc]:
    """Merge arcs with a common source or target, whichever more of them share."""
    n_out, n_in = Counter(source for source, _ in pairs), Counter(target for _, target in pairs)
    forks: dict[Item, list[Item]] = defaultdict(list)
    meets: dict[Item, list[Item]] = defaultdict(list)
    for source, target in pairs:
        if n_out[source] > n_in[target]:
            forks[source].append(target)
        else:
            meets[target].append(source)
    arcs = [Arc((source,), tuple(targets), box) for source, targets in forks.items()]
    by_order = {target: sorted(sources, key=order.__getitem__) for target, sources in meets.items()}
    return arcs + [Arc(tuple(sources), (target,), box) for target, sources in by_order.items()]


def _span(arc: Arc, layout: GraphLayout) -> tuple[float, float]:
    heights = [layout.places[one].out for one in arc.sources]
    heights += [layout.places[one].into for one in arc.targets]
    return min(heights), max(heights)


def _lanes(arcs: Sequence[Arc], layout: GraphLayout) -> list[list[Arc]]:
    """Assign the arcs of a box to lanes without overlap, the shortest arcs first."""
    lanes: list[list[tuple[float, float, Arc]]] = []
    keyed = [(*_span(arc, layout), arc) for arc in arcs]
    for top, bottom, arc in sorted(keyed, key=lambda one: (one[1] - one[0], one[0])):
        for lane in lanes:
            if all(bottom + LANE < start or end + LANE < top for start, end, _ in lane):
                lane.append((top, bottom, arc))
                break
        else:
            lanes.append([(top, bottom, arc)])
    return [[arc for *_, arc in lane] for lane in lanes]


def _widen(top: Item, layout: GraphLayout, arcs: dict[Item, list[Arc]]) -> None:
    """Make room on the right of every box for its lanes, from the inside out; sibling boxes end alike."""
    for box in reversed([item for item in top.walk() if item.kind == "box"]):
        boxes = [layout.places[item] for item in box.inside if item.kind == "box"]
        right = max([layout.core, *(place.right for place in boxes)])
        for place in boxes:
            place.right = right
        lanes = _lanes(arcs.get(box, ()), layout)
        step = min(LANE, _MOST_GUTTER / max(len(lanes), 1))
        start = right + LANE
        for n, lane in enumerate(lanes):
            layout.arcs += [Arc(arc.sources, arc.targets, box, round(start + n * step, 1)) for arc in lane]
        layout.places[box].right = (start + (len(lanes) - 1) * step if lanes else right) + PAD


SIZE = 12  # font size
APART = 18  # pixels between two columns
_MOST_NAME, _MOST_TYPE, MOST_SHAPE, _MOST_LINE = 250, 300, 190, 560  # pixels


@dataclass(frozen=True, slots=True)
class Columns:
    """The left edges of the text columns; `value` is a right edge."""

    type: float
    kernel: float
    shape: float
    value: float


def find_columns(graph: ModelGraph, shades: Sequence[Shade]) -> Columns:
    """Compute the text columns from the texts of all rows."""
    names = types = kernels = shapes = values = lines = 0.0
    depths = [(graph.top, -1)]
    while depths:
        item, depth = depths.pop()
        depths += [(one, depth + 1) for one in item.inside]
        if item is graph.top:
            continue
        if item.kind == "layer":
            names = max(names, left_of(depth) + min(width(item.name, SIZE), _MOST_NAME))
            types = max(types, min(width(type_words(item), SIZE), _MOST_TYPE))
        else:
            line = width(f"{item.name}  {type_words(item)}", SIZE)
            lines = max(lines, left_of(depth) + min(line, _MOST_LINE) + PAD)
        kernels = max(kernels, width(kernel_words(item), SIZE))
        shapes = max(shapes, min(width(shape_words(item), SIZE), MOST_SHAPE))
        values = max([values, *(width(value_words(item, shade), SIZE) for shade in shades)])
    type = names + PAD + APART
    kernel = type + types + APART
    shape = max(kernel + kernels + (APART if kernels else 0), lines + APART)
    return Columns(type, kernel, shape, shape + shapes + APART + values)


def type_words(item: Item) -> str:
    """Return the text after the name: the type, if it adds information, and the remarks."""
    is_said = item.kind != "layer" and item.type == item.name
    return " · ".join(filter(None, ("" if is_said else item.type, *item.marks)))


def kernel_words(item: Item) -> str:
    return numbers.shape(item.row.kernel_size) if item.row and item.row.kernel_size else ""


def shape_words(item: Item) -> str:
    return numbers.shapes(item.shapes, most=1)


def value_words(item: Item, shade: Shade) -> str:
    """Return the value of a call as text, or the total of folded blocks."""
    if item.row or not item.rows:
        return shade.words(item.row) if item.row else ""
    values = [value for row in item.rows if (value := shade.value(row)) is not None]
    return shade.scale(sum(values)) if shade.adds and values else ""


_WIDTH = 0.61  # of the font size, as in common monospaced fonts


def width(words: str, size: float) -> float:
    """Return the width of text in pixels in a monospaced font."""
    units = sum(0 if combining(mark) else 2 if east_asian_width(mark) in "WF" else 1 for mark in plain(words))
    return units * _WIDTH * size


def fitted(words: str, size: float, most: float) -> str:
    """Shorten text in the middle to a width in pixels."""
    words = plain(words)
    return cut_in_the_middle(words, lambda cut: width(cut, size) <= most + 0.01)
