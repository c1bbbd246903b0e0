"""The items of a model graph."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Shape
from modelscope_cli.records.summary import Flow, LayerShape, Operation, SummaryRecord


@dataclass(eq=False, slots=True)
class Item:
    """A drawn item: a call, an operation, folded operations, an input or the output."""

    kind: str  # `layer` (without children), `box`, `operation`, `fold`, `input`, `output`
    name: str  # name within its box: `conv1`
    full_name: str  # `layer1.0.conv1`
    type: str = ""
    shapes: tuple[Shape, ...] = ()
    row: LayerShape | None = None  # the row of a call
    number: int = 0  # its number in the edges of the flow
    key: tuple[int, int, int] = (0, 0, 0)
    inside: list["Item"] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    marks: list[str] = field(default_factory=list)  # further remarks as text

    @property
    def stands_for(self) -> set[int]:
        """The numbers, in the edges of the flow, of everything that this item represents."""
        is_one = self.kind in ("operation", "input", "output")
        return {*self.numbers, self.number} if is_one else self.numbers

    def walk(self) -> Iterator["Item"]:
        """Yield the item and everything in it, in drawing order."""
        waiting = [self]
        while waiting:
            item = waiting.pop()
            yield item
            waiting += reversed(item.inside)

    def nested(self) -> Iterator[tuple["Item", int, bool]]:
        """Yield everything in the item with its depth, and every box again at its end, marked by True."""
        waiting = [(item, 0, False) for item in reversed(self.inside)]
        while waiting:
            item, depth, is_end = waiting.pop()
            yield item, depth, is_end
            if item.kind == "box" and not is_end:
                waiting.append((item, depth, True))
                waiting += [(one, depth + 1, False) for one in reversed(item.inside)]


_MOST_OPERATIONS = 12  # in a row


def fold_operations(top: Item) -> None:
    """Replace a long run of operations, such as those on the boxes of a detector, by one item."""
    for box in list(top.walk()):
        remaining: list[Item] = []
        for kind, group in groupby(box.inside, lambda item: item.kind):
            run = list(group)
            remaining += [_as_one(run)] if kind == "operation" and len(run) > _MOST_OPERATIONS else run
        box.inside = remaining


def _as_one(run: Sequence[Item]) -> Item:
    names = dict.fromkeys(name for item in run for name in item.name.split(" · "))
    words = f"{len(run)} operations: {some(names)}"
    numbers = {item.number for item in run}
    return Item("fold", words, words, shapes=run[-1].shapes, numbers=numbers, key=run[0].key)


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """All items from top to bottom, and the pairs of items between which values flow."""

    top: Item
    edges: tuple[tuple[Item, Item], ...]

    def nodes(self) -> list[Item]:
        """Return the items between which values flow, in order."""
        return [item for item in self.top.walk() if item.kind != "box"]


def items_of(record: SummaryRecord) -> ModelGraph:
    """Return the graph of a record that has a flow."""
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
    output = [Item("output", "output", "output")] if record.failed is None else []
    top.inside = [*inputs, *top.inside, *output]
    for item in top.walk():
        if item is not top:
            item.inside.sort(key=lambda one: one.key)  # in the order of execution
    fold_operations(top)
    places = {number: item for item in top.walk() for number in item.stands_for}
    edges = _lifted(flow, places)
    _mark(top, flow, places, record.failed)
    return ModelGraph(top, edges)


def _call(row: LayerShape) -> Item:
    number = row.order or 0
    label = f"{row.name or row.type}#{row.call}" if row.call else row.name or row.type
    return Item("layer", label, label, row.type, row.output_shapes, row, number, key=(number, 0, 0))


def _nest(items: dict[int, Item], top: Item, flow: Flow) -> None:
    """Put every call and operation into the call in which it ran; undrawn calls belong to the one around them."""
    for order, item in items.items():
        outer = items.get(_drawn(_around(order, flow), items, flow), top)
        outer.inside.append(item)
        outer.kind = "box"
    for operation in flow.operations:
        around = items.get(operation.inside)
        if around is not None and around.kind == "box":
            around.inside.append(_operation(operation))
        elif parent := _drawn(operation.inside, items, flow):
            items[parent].numbers.add(operation.number)
    for order in range(1, len(flow.around) + 1):
        if parent := _drawn(order, items, flow):
            items[parent].numbers.add(order)


def _drawn(order: int, items: dict[int, Item], flow: Flow) -> int:
    """Return this call or the innermost drawn one around it; 0 if there is none."""
    while order and order not in items:
        order = _around(order, flow)
    return order


def _around(order: int, flow: Flow) -> int:
    """Return the enclosing call; it must have begun earlier, even in an invalid document."""
    around = flow.around[order - 1] if 0 < order <= len(flow.around) else 0
    return around if 0 <= around < order else 0


def _operation(operation: Operation) -> Item:
    words = " · ".join(operation.names)
    key = operation.after, 1, operation.number
    return Item("operation", words, words, shapes=operation.output_shapes, number=operation.number, key=key)


def _name(top: Item) -> None:
    """Remove the name of the enclosing box from every name."""
    waiting = [(item, "") for item in top.inside]
    while waiting:
        item, around = waiting.pop()
        if item.row is None:
            continue
        if around and item.row.name.startswith(f"{around}."):
            item.name = item.full_name[len(around) + 1 :]
        waiting += [(one, item.row.name or around) for one in item.inside]


def _lifted(flow: Flow, places: dict[int, Item]) -> tuple[tuple[Item, Item], ...]:
    pairs = ((places.get(source), places.get(target)) for source, target in flow.edges)
    edges = {(a, b): None for a, b in pairs if a is not None and b is not None and a is not b}
    return tuple(edges)


def _mark(top: Item, flow: Flow, places: dict[int, Item], failed: str | None) -> None:
    """Add remarks about unusual calls and operations."""
    for number in flow.unfollowed:
        if number in places and _UNFOLLOWED not in places[number].marks:
            places[number].marks.append(_UNFOLLOWED)
    sources = {source for source, _ in flow.edges}
    is_all_seen = failed is None and not flow.unfollowed and not flow.left
    for item in top.walk():
        if failed is not None and item.full_name == failed:
            item.marks.append("raised an error")
        elif is_all_seen and item.kind in ("layer", "operation") and not item.stands_for & sources:
            item.marks.append("result not used")


_UNFOLLOWED = "input not followed"
