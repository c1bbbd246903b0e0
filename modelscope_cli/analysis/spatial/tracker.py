"""Track the image positions of the elements of every tensor through a run, and which of them weigh others.

A model becomes a few kinds of operators: moves, element-wise operators, products, and sliding windows. Each kind
has one rule, and no model has its own: windows, shifts, padding, class tokens and registers are recognised by
where their elements came from.
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from modelscope_cli.analysis.spatial.positions import (
    Cells,
    Positions,
    distinct,
    each,
    first_of,
    joined,
    merged,
    name_of,
    nowhere,
    reduced,
    reseeded,
    seeded,
    settled,
)
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import arguments_of, base_of, operators_shown_to
from modelscope_cli.records.run import Args, Arguments, Kwargs

KEEPS = {
    "clone",
    "_to_copy",
    "detach",
    "alias",
    "lift_fresh",
    "contiguous",
    "dequantize",
    "quantize_per_tensor",
}
RESHAPES = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
MOVES = {
    *("permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "split"),
    *("split_with_sizes", "unbind", "expand", "repeat", "roll", "flip", "rot90", "diagonal"),
    *("unfold", "index_select", "gather", "index", "cat", "stack", "pixel_shuffle"),
    *("pixel_unshuffle", "channel_shuffle", "constant_pad_nd", "im2col"),
}
_PICKS = {"select", "slice", "index", "gather", "index_select"}  # which may leave no element in a cell
_SLIDES = re.compile(r"conv|pool|upsample|pad\dd")
_SAME_PLACES = re.compile(r"norm|softmax|dropout|hardswish|prelu|log_sigmoid|rsub|floor_divide|bernoulli")
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # index of the first factor
SOFTMAX = {"_softmax", "_safe_softmax", "softmax"}


class Tracker:
    """The positions of the elements of all tensors of a run that are computed from the inputs.

    Args:
        weigh: called with the output of each softmax, its dimension, and the cells of queries and keys; returns
        what to keep of it, or None.
        take: called with what was kept, once, if the weights are multiplied with values of the input: attention.

    Attributes:
        n_images: number of images in a batch.
        grids: all that were seen, the latest last.
        read_alone: indices, along their dimension, of tokens without a cell that were selected alone from tokens
        with cells after the last attention, the earliest first: class tokens.
    """

    def __init__(
        self,
        weigh: Callable[[Tensor, int, Cells, Cells], Any] = lambda values, dim, queries, keys: None,
        take: Callable[[Any], None] = lambda weights: None,
    ) -> None:
        self.n_images = 1
        self.grids: dict[tuple[int, ...], None] = {}
        self.read_alone: dict[int, None] = {}
        self._weigh = weigh
        self._take = take
        self._taken: dict[int, Any] = {}  # by id, kept alive so that no id is reused
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    @contextmanager
    def follow(self, args: Arguments) -> Iterator[None]:
        """Follow what is computed from the arguments of a model while the block is open."""
        self._known.clear()
        self._taken.clear()
        tensors = [tensor for _, tensor in tensors_in(args)]
        images = [tensor for tensor in tensors if tensor.ndim >= 4]
        self.n_images = images[0].shape[0] if images else 1
        for tensor in tensors:
            self._known[tensor] = Positions(
                seeded(tensor.shape) if tensor.ndim >= 4 else nowhere(tensor.shape)
            )
        try:
            with operators_shown_to(self._see):
                yield
        finally:
            self._known.clear()

    def of(self, tensor: Any) -> Positions | None:
        """Return the positions of a tensor; None if it is not computed from the input."""
        return self._known.get(tensor) if isinstance(tensor, Tensor) else None

    def _see(self, operator: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        tensors = (one for arg in (*args, *kwargs.values()) for one in each(arg))
        if not isinstance(first_of(result), Tensor) or all(self.of(one) is None for one in tensors):
            return
        name, _ = name_of(operator)
        try:
            positions = self._rule(name, operator, args, kwargs, result)
        except Exception:  # an unexpected use of an operator: its result has no positions
            positions = None
        for n, tensor in enumerate(each(result)):
            if isinstance(tensor, Tensor):
                known = positions[n] if isinstance(positions, list) else positions if n == 0 else None
                if known is None or known.cells.ids.shape != tensor.shape:
                    known = Positions(nowhere(tensor.shape))
                self._known[tensor] = known
                if len(known.cells.grid or ()) > 1:
                    grid = known.cells.grid
                    assert grid is not None
                    self.grids.pop(grid, None)
                    self.grids[grid] = None

    def _rule(
        self, name: str, operator: Any, args: Args, kwargs: Kwargs, result: Any
    ) -> "Positions | list[Positions | None] | None":
        first = self.of(args[0])
        if name in _PRODUCTS:
            start = _PRODUCTS[name]
            return self._product(args[start], args[start + 1], result)
        if name in KEEPS or (name in RESHAPES and first is not None):
            return first.reshaped(result.shape) if first else None
        if name in MOVES:
            return self._move(name, operator, args, kwargs, result)
        if name == "copy":
            return self._copy(args[0], args[1])
        if name.startswith("_scaled_dot_product") and first is not None:
            one = first.cells.one_along(-1)
            return Positions(one.images(first_of(result).shape)) if one else None
        if name == "linear" and first is not None:
            return self._rows(first, result)
        if _SLIDES.search(name) and first is not None:
            return self._slide(first, first_of(result))
        if torch.Tag.pointwise in operator.tags or _SAME_PLACES.search(name):
            return self._pointwise(name, args, kwargs, first_of(result))
        dims = arguments_of(operator, args, kwargs).get("dim")
        return reduced(first, dims, result) if first is not None and dims is not None else None

    def _move(
        self, name: str, operator: Any, args: Args, kwargs: Kwargs, result: Any
    ) -> "Positions | list[Positions | None] | None":
        if name in ("cat", "stack"):
            return self._put_together(operator, args, kwargs)
        first = self.of(args[0])
        if first is None:
            return None
        if first.cells.grid is not None:
            self._note_reading(name, args, first.cells, result)

        def move(ids: Tensor, part: int | None = None) -> Tensor:
            if name == "constant_pad_nd":
                moved = operator(ids, args[1], -1)
            elif name == "im2col":
                moved = operator((ids + 1).double(), *args[1:], **kwargs).long() - 1
            else:
                others = [_on_cpu(arg) for arg in args[1:]]
                moved = operator(ids, *others, **{key: _on_cpu(value) for key, value in kwargs.items()})
            return moved if part is None else moved[part]

        if name in _PICKS:
            return first.moved(move).forgotten()
        if isinstance(result, Tensor):
            return first.moved(move)
        return [first.moved(lambda ids, n=n: move(ids, n)) for n in range(len(result))]  # type: ignore[misc]

    def _put_together(self, operator: Any, args: Args, kwargs: Kwargs) -> Positions | None:
        positions = [self.of(tensor) for tensor in args[0]]
        parts = [
            one.cells if one else nowhere(tensor.shape)
            for one, tensor in zip(positions, args[0], strict=True)
        ]
        grids = {cells.grid for cells in parts if cells.grid is not None}
        if len(grids) > 1:
            return None
        ids = operator([cells.ids for cells in parts], *args[1:], **kwargs)
        return Positions(Cells(ids, next(iter(grids), None)))

    def _note_reading(self, name: str, args: tuple[Any, ...], cells: Cells, result: Any) -> None:
        """Record the index of a token without a cell that is selected from tokens with cells."""
        if name == "select":
            dim, index = args[1:]
        elif name == "slice" and len(args) > 3 and result.shape[args[1]] == 1 < cells.ids.shape[args[1]]:
            dim, index = args[1], args[2] or 0
        else:
            return
        if bool((distinct(cells.ids.select(dim, index)) < 0).all()) and cells.varies_along(dim):
            self.read_alone.setdefault(index % cells.ids.shape[dim])

    def _copy(self, into: Tensor, source: Any) -> Positions | None:
        known, before, base = self.of(source), self.of(into), base_of(into)
        moved = known.moved(lambda ids: ids.expand(into.shape)) if known else None
        if base is not None and not (before and moved and before.is_where(moved)):
            self._known[base] = Positions(nowhere(base.shape))
        return moved

    def _product(self, a: Any, b: Any, result: Tensor) -> Positions | None:
        left, right = self.of(a), self.of(b)
        if left and right:
            for one in (left, right):
                if one.weights is not None and id(one.weights) not in self._taken:
                    self._taken[id(one.weights)] = one.weights
                    self.read_alone.clear()
                    self._take(one.weights)
        if right is None and left is not None:
            return self._rows(left, result)
        rows = settled(left, -1)
        columns = settled(right, -2)
        return Positions(
            rows.images(result.shape) if rows else nowhere(result.shape),
            columns.images(result.shape) if columns else nowhere(result.shape),
        )

    def _rows(self, left: Positions, result: Tensor) -> Positions:
        """Return the positions after multiplying rows by weights: the same, or several cells become one."""
        scores = (left.cells.one_along(-1), left.columns.one_along(-1)) if left.columns else (None, None)
        if scores[0] is not None and scores[1] is not None:  # scores of attention heads, which are mixed
            return Positions(scores[0].images(result.shape), scores[1].images(result.shape), left.weights)
        rows = settled(left, -1)
        if rows is not None and rows.grid is not None:
            return Positions(rows.images(result.shape))
        if left.cells.grid is None:
            mixed = left.mixed
        else:
            flat = left.cells.moved(lambda ids: ids.flatten(0, -2))
            coarse = merged(flat)
            if coarse is not None:
                return Positions(
                    coarse.moved(lambda ids: ids.view(*result.shape[:-1], 1)).images(result.shape)
                )
            mixed = left.cells if len(flat.ids) > 1 and torch.equal(flat.ids[0], flat.ids[1]) else None
        if mixed is not None and mixed.ids.shape == result.shape:
            return Positions(mixed)
        return Positions(nowhere(result.shape), mixed=mixed)

    def _slide(self, first: Positions, result: Tensor) -> Positions | None:
        """Return the positions after sliding: a map of a map; otherwise the same while the size is kept."""
        sides = result.shape[2:]
        if not sides or math.prod(sides) == 1:
            return None
        one = first.cells.one_along(1)
        if one is not None and one.grid is not None:
            if one.ids.shape[2:] == sides:
                return Positions(one.images(result.shape))
            again = reseeded(one, result.shape)
            return Positions(again) if again is not None else None
        is_of_images = result.shape[0] == self.n_images and len(sides) > 1 and min(sides) > 1
        return Positions(seeded(result.shape)) if is_of_images else None

    def _pointwise(self, name: str, args: Args, kwargs: Kwargs, result: Tensor) -> Positions:
        operands = [one for one in map(self.of, (*args, *kwargs.values())) if one is not None]
        if len(operands) == 1 and operands[0].cells.ids.shape == result.shape:
            positions = operands[0]
        else:
            cells = joined([one.cells for one in operands], result.shape)
            columns = [one.columns for one in operands if one.columns is not None]
            weights = next((one.weights for one in operands if one.weights is not None), None)
            positions = Positions(cells, joined(columns, result.shape) if columns else None, weights)
        if name in SOFTMAX:
            keys = positions.columns or nowhere(result.shape)
            positions = replace(positions, weights=self._weigh(result, args[1], positions.cells, keys))
        return positions


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list):
        return [_on_cpu(one) for one in value]
    return value.cpu() if isinstance(value, Tensor) else value
