"""What is drawn of a summary: calls in calls as they ran, what is between them, and whose output goes where."""

from dataclasses import dataclass

from modelscope_cli.records.summary import Flow, LayerShape, Operation, SummaryRecord
from modelscope_cli.report.graph.folding import fold, fold_operations
from modelscope_cli.report.graph.item import Item

MOST_ROWS, MOST_ALIKE = 60, 150
"""Of a longer picture blocks that repeat the one before them are folded; of a much longer one also those that
differ in nothing but their sizes."""


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
    output = [Item("output", "output", "output")] if record.failed is None else []
    top.inside = [*inputs, *top.inside, *output]
    _fill(top)
    if not is_whole:
        _shorten(top)
    places = {number: item for item in top.walk() for number in item.stands_for}
    edges = _lifted(flow, places)
    _mark(top, flow, places, record.failed)
    return Picture(top, edges)


def _shorten(top: Item) -> None:
    """Fold what repeats where a picture would be long."""
    if _length(top) > MOST_ROWS:
        fold_operations(top)
        fold(top, with_sizes=True)
    if _length(top) > MOST_ALIKE:
        fold(top, with_sizes=False)


def _length(top: Item) -> int:
    return sum(1 for _ in top.walk())


def _call(row: LayerShape) -> Item:
    number = row.order or 0
    label = f"{row.name or row.type}#{row.call}" if row.call else row.name or row.type
    return Item("layer", label, label, row.type, row.output_shapes, row, (row,), number, key=(number, 0, 0))


def _nest(items: dict[int, Item], top: Item, flow: Flow) -> None:
    """Put every call and operation into what it ran in; what is not drawn itself belongs to what is around it."""
    for order, item in items.items():
        outer = items.get(_drawn(_around(order, flow), items, flow), top)
        outer.inside.append(item)
        outer.kind = "box"
    for operation in flow.operations:
        around = items.get(operation.inside)
        if around is not None and around.kind == "box":
            around.inside.append(_operation(operation))
        elif drawn := _drawn(operation.inside, items, flow):
            items[drawn].numbers.add(operation.number)
    for order in range(1, len(flow.around) + 1):
        if drawn := _drawn(order, items, flow):
            items[drawn].numbers.add(order)


def _drawn(order: int, items: dict[int, Item], flow: Flow) -> int:
    """Return the call that is drawn, this one or the innermost around it; 0 where none is."""
    while order and order not in items:
        order = _around(order, flow)
    return order


def _around(order: int, flow: Flow) -> int:
    """Return the call around one, which began before it, whatever a document says."""
    around = flow.around[order - 1] if 0 < order <= len(flow.around) else 0
    return around if 0 <= around < order else 0


def _operation(operation: Operation) -> Item:
    words = " · ".join(operation.names)
    key = operation.after, 1, operation.number
    return Item("operation", words, words, shapes=operation.output_shapes, number=operation.number, key=key)


def _fill(top: Item) -> None:
    """Sort what is in every box as it ran."""
    for item in top.walk():
        if item is not top:
            item.inside.sort(key=lambda one: one.key)


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
    is_all_seen = failed is None and not flow.unfollowed and not flow.left
    for item in top.walk():
        if failed is not None and item.full_name == failed:
            item.marks.append("raised an error")
        elif is_all_seen and item.kind in ("layer", "operation") and not item.stands_for & used:
            item.marks.append("result not used")


_UNFOLLOWED = "input not followed"
