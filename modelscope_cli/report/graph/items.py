"""What is drawn of a summary: calls in calls as they ran, what is between them, and whose output goes where."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import Shape
from modelscope_cli.records.summary import Flow, LayerShape, Operation, SummaryRecord

MOST_ROWS, MOST_ALIKE = 60, 150
"""Of a longer picture blocks that repeat the one before them are folded; of a much longer one also those that
differ in nothing but their sizes."""
_LEAST = 3  # rows of a block that is worth it
_Signature = tuple[object, ...]


@dataclass(eq=False, slots=True)
class Item:
    """A thing that is drawn: a call, an operation, blocks that were folded, an input or the output.

    Attributes:
        kind: `layer` (nothing is drawn inside it), `box`, `operation`, `fold`, `input`, `output`.
        name: in the box it is in: `conv1`. `full_name`: `layer1.0.conv1`.
        row: of a call; `rows`: of all calls that it stands for.
        number: in the edges of the flow.
        marks: what else there is to say of it, in words.
    """

    kind: str
    name: str
    full_name: str
    type: str = ""
    shapes: tuple[Shape, ...] = ()
    row: LayerShape | None = None
    rows: tuple[LayerShape, ...] = ()
    number: int = 0
    key: tuple[int, int, int] = (0, 0, 0)
    inside: list["Item"] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    marks: list[str] = field(default_factory=list)

    def walk(self) -> Iterator["Item"]:
        """Give the thing itself and everything in it, in the order in which they are drawn."""
        waiting = [self]
        while waiting:
            item = waiting.pop()
            yield item
            waiting += reversed(item.inside)


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn, from top to bottom, and the pairs of them between which values flow."""

    top: Item
    edges: tuple[tuple[Item, Item], ...]

    def nodes(self) -> list[Item]:
        """Return what values flow between, in order."""
        return [item for item in self.top.walk() if item.kind != "box"]


def items_of(record: SummaryRecord, *, is_whole: bool = False) -> Picture:
    """Sort out what is drawn of a record that has a flow.

    Args:
        is_whole: fold nothing.
    """
    flow = record.flow
    assert flow is not None
    calls = {row.order: row for row in record.layers if row.order is not None}
    top = Item("box", "", "")
    items = {order: _call(row) for order, row in sorted(calls.items())}
    _nest(items, top, flow)
    _name(top)
    shapes = record.run.input.shape if record.run.input else ()
    names = flow.inputs
    inputs = [
        Item("input", words, words, shapes=tuple(shapes[n : n + 1]), number=-1 - n)
        for n, words in enumerate(f"input {name}" if len(names) > 1 else "input" for name in names)
    ]
    output = Item("output", "output", "output")
    top.inside = [*inputs, *top.inside, output]
    _fill(top)
    for most, with_sizes in () if is_whole else ((MOST_ROWS, True), (MOST_ALIKE, False)):
        if sum(1 for _ in top.walk()) > most:
            _fold(top, with_sizes=with_sizes)
    places = {number: item for item in top.walk() for number in item.numbers | _own(item)}
    edges = _lifted(flow, places)
    _mark(top, flow, places, record.failed)
    return Picture(top, edges)


def _call(row: LayerShape) -> Item:
    number = row.order or 0
    label = f"{row.name or row.type}#{row.call}" if row.call else row.name or row.type
    return Item("layer", label, label, row.type, row.output_shapes, row, (row,), number, key=(number, 0, 0))


def _nest(items: dict[int, Item], top: Item, flow: Flow) -> None:
    """Put every call and operation into what it ran in; what is not drawn itself belongs to what is around it."""
    for order, item in items.items():
        outside = flow.around[order - 1]
        while outside and outside not in items:
            outside = flow.around[outside - 1]
        outer = items[outside] if outside else top
        outer.inside.append(item)
        outer.kind = "box"
    for operation in flow.operations:
        around = items.get(operation.inside)
        if around is not None and around.kind == "box":
            around.inside.append(_operation(operation))
    for order in range(1, len(flow.around) + 1):
        _belong(order, order, items, flow)
    for operation in flow.operations:
        if items.get(operation.inside) is None or items[operation.inside].kind != "box":
            _belong(operation.number, operation.inside, items, flow)


def _belong(number: int, order: int, items: dict[int, Item], flow: Flow) -> None:
    while order and order not in items:
        order = flow.around[order - 1]
    if order:
        items[order].numbers.add(number)


def _operation(operation: Operation) -> Item:
    words = " · ".join(operation.names)
    key = operation.after, 1, operation.number
    return Item("operation", words, words, shapes=operation.output_shapes, number=operation.number, key=key)


def _fill(top: Item) -> None:
    """Sort what is in every box as it ran."""
    for item in top.walk():
        if item is not top:
            item.inside.sort(key=lambda one: one.key)


def _own(item: Item) -> set[int]:
    return {item.number} if item.kind in ("operation", "input", "output") else set()


def _name(top: Item) -> None:
    """Leave out of every name what the box around it is called already."""
    waiting = [(item, "") for item in top.inside]
    while waiting:
        item, around = waiting.pop()
        if item.row is None:
            continue
        if around and item.row.name.startswith(f"{around}."):
            item.name = item.full_name[len(around) + 1 :]
        waiting += [(one, item.row.name or around) for one in item.inside]


def _fold(box: Item, *, with_sizes: bool) -> None:
    """Put one thing in the place of blocks that follow each other and hold what the one before them holds."""
    waiting = [box]
    while waiting:
        outer = waiting.pop()
        kept: list[Item] = []
        alike: list[Item] = []
        like: _Signature = ()
        for item in outer.inside:
            signature = _signature(item, with_sizes=with_sizes) if item.kind == "box" else ()
            if signature and signature == like and len(signature) > _LEAST:
                alike.append(item)
                continue
            kept += _folded(kept, alike)
            alike, like = [], signature
            kept.append(item)
        outer.inside = kept + _folded(kept, alike)
        waiting += [item for item in outer.inside if item.kind == "box"]


def _folded(kept: Sequence[Item], alike: Sequence[Item]) -> list[Item]:
    if not alike:
        return []
    first, last, before = alike[0], alike[-1], kept[-1]
    names = first.name if first is last else f"{first.name} .. {last.name}"
    words = f"{names}: {'' if first is last else counted(len(alike), 'block') + ' '}like {before.name}"
    inner = [item for block in alike for item in block.walk()]
    numbers = set[int]().union(*(item.numbers | _own(item) for item in inner))
    rows = tuple(block.row for block in alike if block.row)
    return [Item("fold", words, words, shapes=last.shapes, rows=rows, numbers=numbers, key=first.key)]


def _signature(item: Item, *, with_sizes: bool) -> _Signature:
    """Return what a block is made of: names, types and kernels, and the shapes of what they give."""
    found: list[object] = []
    depth = [(item, 0)]
    while depth:
        one, level = depth.pop()
        name = "" if one is item else one.name
        kernel = one.row.kernel_size if one.row else None
        found.append((level, name, one.type, one.kind, kernel, one.shapes if with_sizes else ()))
        depth += [(inner, level + 1) for inner in reversed(one.inside)]
    return tuple(found)


def _lifted(flow: Flow, places: dict[int, Item]) -> tuple[tuple[Item, Item], ...]:
    pairs = ((places.get(source), places.get(target)) for source, target in flow.edges)
    found = {(a, b): None for a, b in pairs if a is not None and b is not None and a is not b}
    return tuple(found)


def _mark(top: Item, flow: Flow, places: dict[int, Item], failed: str | None) -> None:
    """Say of calls and operations what is odd about them."""
    for number in flow.unfollowed:
        if number in places and _UNFOLLOWED not in places[number].marks:
            places[number].marks.append(_UNFOLLOWED)
    used = {source for source, _ in flow.edges}
    for item in top.walk():
        if failed is not None and item.full_name == failed:
            item.marks.append("raised an error")
        elif failed is None and item.kind in ("layer", "operation") and _is_unused(item, used):
            item.marks.append("result not used")


_UNFOLLOWED = "given a tensor that was not followed"


def _is_unused(item: Item, used: Iterable[int]) -> bool:
    return not (item.numbers | _own(item)) & set(used)
