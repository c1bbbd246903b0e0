"""Blocks that repeat the one before them, drawn as one line."""

from collections.abc import Sequence
from itertools import groupby

from modelscope_cli.records.naming import counted, some
from modelscope_cli.report.graph.item import Item

_LEAST = 3  # things in a block that is worth it
_MOST_OPERATIONS = 12  # in a row
_Block = list[Item]
_Signature = tuple[object, ...]


def fold(box: Item, *, with_sizes: bool) -> None:
    """Put one thing in the place of blocks that follow each other and hold what the one before them holds.

    What is computed behind a block, before the next thing, belongs to it: the sum of a residual block may stand in
    the forward around.
    """
    waiting = [box]
    while waiting:
        outer = waiting.pop()
        kept: list[Item] = []
        alike: list[_Block] = []
        like: _Signature = ()
        for block in _blocks(outer.inside):
            signature = _signature(block, with_sizes=with_sizes)
            if signature and signature == like:
                alike.append(block)
                continue
            kept += _folded(kept, alike)
            alike, like = [], signature
            kept += block
        outer.inside = kept + _folded(kept, alike)
        waiting += [item for item in outer.inside if item.kind == "box"]


def fold_operations(top: Item) -> None:
    """Put one thing in the place of very many operations in a row, such as those on the boxes of a detector."""
    for box in list(top.walk()):
        kept: list[Item] = []
        for kind, group in groupby(box.inside, lambda item: item.kind):
            run = list(group)
            kept += [_as_one(run)] if kind == "operation" and len(run) > _MOST_OPERATIONS else run
        box.inside = kept


def _as_one(run: Sequence[Item]) -> Item:
    names = dict.fromkeys(name for item in run for name in item.name.split(" · "))
    words = f"{len(run)} operations: {some(names)}"
    numbers = {item.number for item in run}
    return Item("fold", words, words, shapes=run[-1].shapes, numbers=numbers, key=run[0].key)


def _blocks(items: Sequence[Item]) -> list[_Block]:
    """Put every box together with the operations behind it; all else is alone."""
    found: list[_Block] = []
    for item in items:
        if item.kind == "operation" and found and found[-1][0].kind == "box":
            found[-1].append(item)
        else:
            found.append([item])
    return found


def _folded(kept: Sequence[Item], alike: Sequence[_Block]) -> list[Item]:
    if not alike:
        return []
    first, last = alike[0][0], alike[-1][0]
    before = next(item for item in reversed(kept) if item.kind == "box")
    names = first.name if first is last else f"{first.name} .. {last.name}"
    words = f"{names}: {'' if first is last else counted(len(alike), 'block') + ' '}like {before.name}"
    inner = [item for block in alike for part in block for item in part.walk()]
    numbers = set[int]().union(*(item.stands_for for item in inner))
    rows = tuple(block[0].row for block in alike if block[0].row)
    return [
        Item("fold", words, words, shapes=alike[-1][-1].shapes, rows=rows, numbers=numbers, key=first.key)
    ]


def _signature(block: _Block, *, with_sizes: bool) -> _Signature:
    """Return what a block is made of: names, types and kernels, and the shapes of what they give."""
    if block[0].kind != "box":
        return ()
    found: list[object] = []
    waiting = [(item, 0) for item in reversed(block)]
    while waiting:
        item, level = waiting.pop()
        name = "" if item is block[0] else item.name
        kernel = item.row.kernel_size if item.row else None
        found.append((level, name, item.type, item.kind, kernel, item.shapes if with_sizes else ()))
        waiting += [(inner, level + 1) for inner in reversed(item.inside)]
    return tuple(found) if len(found) > _LEAST else ()
