"""The image positions of the elements of every tensor, and which of them weigh others, followed through a run.

No model has its own rule: windows, shifts, padding, class tokens and registers are recognised by where their
elements came from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.spatial.follow import Follower, Operation, distinct

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Cells:
    """The cell of each element."""

    # int64 of the tensor's shape, mostly expanded from few numbers: `image * cells of the grid + cell`, cells
    # row by row; -1 for elements in none, such as a class token or padding
    ids: Tensor
    # Height and width of the grid in cells, in a video frames before them; None where all are nowhere
    grid: tuple[int, ...] | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Cells":
        """Return the cells of a tensor whose elements were moved."""
        return replace(self, ids=move(self.ids))

    def one_along(self, dim: int) -> "Cells | None":
        """Return the cells with one entry along `dim` if all entries there are in the same cell, else None."""
        if not self.ids.shape[dim]:
            return None
        if self.ids.shape[dim] == 1 or self.ids.stride(dim) == 0:
            return self.moved(lambda ids: ids.narrow(dim, 0, 1))
        few = distinct(self.ids)
        high = few.amax(dim, keepdim=True)
        if not torch.equal(torch.where(few < 0, high, few).amin(dim, keepdim=True), high):
            return None
        shape = list(self.ids.shape)
        shape[dim] = 1
        return replace(self, ids=high.expand(shape))

    def varies_along(self, dim: int) -> bool:
        """Whether the entries along `dim` are in different cells."""
        if self.ids.shape[dim] < 2 or self.ids.stride(dim) == 0:
            return False
        few = distinct(self.ids)
        return not torch.equal(few, few.narrow(dim, 0, 1).expand_as(few))

    def is_anywhere(self) -> bool:
        """Whether any element is in a cell."""
        return self.grid is not None and bool((distinct(self.ids) >= 0).any())

    def expanded(self, shape: Sequence[int]) -> "Cells":
        """Return the cells repeated along dimensions of size 1 to a shape."""
        return self.moved(lambda ids: ids.expand(tuple(shape)))


def nowhere(shape: Sequence[int]) -> Cells:
    """Return the cells of elements that are in no cell."""
    return Cells(torch.tensor(_NOWHERE).expand(tuple(shape)))


def seeded(shape: Sequence[int]) -> Cells:
    """Return the cells of `(N, C, ...)` maps: one for each position."""
    n, _, *grid = shape
    ids = torch.arange(n * math.prod(grid)).view(n, 1, *grid)
    return Cells(ids.expand(tuple(shape)), tuple(grid))


def _reseeded(cells: Cells, shape: Sequence[int]) -> Cells | None:
    """Return the cells of maps, `(N, 1, ...)`, computed from whole maps of other sizes by image; else None."""
    ids, grid = cells.ids, cells.grid
    if grid is None:
        return None
    for dim in range(2, ids.ndim):
        is_placed = (ids >= 0).movedim(dim, 0).flatten(1).any(1)
        ids = ids.index_select(dim, torch.nonzero(is_placed).flatten())
    if tuple(ids.shape[2:]) != grid or not ids.numel():
        return None
    first = ids.flatten(1)[:, 0].view(-1, *[1] * (ids.ndim - 1)) // math.prod(grid)
    if not torch.equal(ids, seeded((1, 1, *grid)).ids + first * math.prod(grid)):
        return None
    of_one = seeded((1, 1, *shape[2:]))
    return of_one.moved(lambda ids: ids + first * ids.numel()).expanded(shape)


def joined(cells: Sequence[Cells], shape: Sequence[int]) -> Cells:
    """Return the cells of an element-wise result: those of the finest grid; nowhere if two differ in it."""
    finest = max((math.prod(one.grid) for one in cells if one.grid is not None), default=0)
    placed = [one for one in cells if one.grid is not None and math.prod(one.grid) == finest]
    if not placed:
        return nowhere(shape)
    first, *others = placed
    for other in others:
        mine, its = distinct(first.ids), distinct(other.ids)
        is_odd = (mine != its) & (mine >= 0) & (its >= 0)
        if other.grid != first.grid or bool(is_odd.any()):
            return nowhere(shape)
        first = replace(first, ids=torch.maximum(mine, its))
    return first.expanded(shape)


def merged(cells: Cells) -> Cells | None:
    """Return the cells of a coarser grid for `(rows, K)` elements if the rows share no cells and form a grid again,
    as in patch embedding or patch merging; else None."""
    ids, grid = cells.ids, cells.grid
    if grid is None or len(ids) < 2 or torch.equal(ids[0], ids[1]):
        return None
    is_placed = ids >= 0
    rows = torch.arange(len(ids))[:, None].expand(ids.shape)[is_placed]
    flat = ids[is_placed]
    n_ids = int(flat.max()) + 1
    if len(torch.unique(rows * n_ids + flat)) != len(torch.unique(flat)):
        return None
    n_placed = is_placed.sum(1)
    is_row = n_placed > 0

    def mean(values: Tensor) -> Tensor:
        totals = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, rows, values.double())
        return (totals / n_placed)[is_row]

    n_cells = math.prod(grid)
    image = mean(flat // n_cells)
    coarse, sides = image.long(), []
    for axis in torch.unravel_index(flat % n_cells, grid):
        values, rank = torch.unique(mean(axis), return_inverse=True)
        coarse = coarse * len(values) + rank
        sides.append(len(values))
    is_whole = len(torch.unique(coarse)) == len(coarse) == (int(image.max()) + 1) * math.prod(sides)
    if not is_whole or bool((image % 1 != 0).any()) or sum(side > 1 for side in sides) < 2:
        return None
    coarse_ids = torch.full((len(ids), 1), _NOWHERE)
    coarse_ids[is_row, 0] = coarse
    return Cells(coarse_ids, tuple(sides))


def _merged_rows(cells: Cells) -> Cells | None:
    """Return what `merged` does of the last dimension of any tensor, with one entry there."""
    coarse = merged(cells.moved(lambda ids: ids.flatten(0, -2)))
    return coarse.moved(lambda ids: ids.view(*cells.ids.shape[:-1], 1)) if coarse else None


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of the elements of a tensor."""

    cells: Cells  # of the tensor itself; of a product of two tensors, of the rows of the first
    columns: Cells | None = None  # of a product of two, of the columns of the second
    weights: Any = None  # of the output of a softmax, what the tracker's `weigh` returned
    # Of positions mixed along the last dimension, those before; they hold again for a result with as many entries
    mixed: Cells | None = None

    @property
    def shape(self) -> torch.Size:
        return self.cells.ids.shape

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Positions":
        columns = self.columns.moved(move) if self.columns else None
        return Positions(self.cells.moved(move), columns, self.weights)

    def equals(self, other: "Positions") -> bool:
        mine, its = ([one.ids for one in (of.cells, of.columns) if one] for of in (self, other))
        return len(mine) == len(its) and all(map(torch.equal, mine, its))

    @property
    def sides(self) -> list[Cells]:
        """Rows and columns, those with a grid first."""
        return sorted(filter(None, (self.cells, self.columns)), key=lambda one: one.grid is None)

    def settled(self, dim: int, shape: Sequence[int]) -> Cells:
        """Return the cells in a product of a factor that is summed along `dim`; nowhere if they vary there."""
        found = (one.one_along(dim) for one in self.sides)
        return next((one.expanded(shape) for one in found if one), nowhere(shape))


class Tracker(Follower[Positions]):
    """The positions of the elements of all tensors of a run that are computed from the inputs.

    Args:
        weigh: called with the output of each softmax, its dimension, and the cells of queries and keys; returns
        what to keep of it, or None.
        take: called with what was kept, once, if the weights are multiplied with values of the input: attention.

    Attributes:
        n_images: number of images in a batch.
        is_spatial: whether any tensor had positions in a grid of several dimensions.
        read_alone: indices, along their dimension, of tokens without a cell that were selected alone from tokens
        with cells after the last attention, the earliest first: class tokens.
    """

    blank = _NOWHERE

    def __init__(
        self,
        weigh: Callable[[Tensor, int, Cells, Cells], Any] = lambda values, dim, queries, keys: None,
        take: Callable[[Any], None] = lambda weights: None,
    ) -> None:
        super().__init__()
        self.n_images = 1
        self.is_spatial = False
        self.read_alone: dict[int, None] = {}
        self._weigh = weigh
        self._take = take
        self._taken: dict[int, Any] = {}  # by id, kept alive so that no id is reused

    def _begin(self, tensors: Sequence[Tensor]) -> None:
        self._taken.clear()
        self.n_images = next((len(tensor) for tensor in tensors if tensor.ndim >= 4), 1)
        for tensor in tensors:
            self._known[tensor] = Positions((seeded if tensor.ndim >= 4 else nowhere)(tensor.shape))

    def _put(self, tensor: Tensor, known: Positions) -> None:
        super()._put(tensor, known)
        self.is_spatial |= known.cells.grid is not None and len(known.cells.grid) > 1

    def _unknown(self, shape: Sequence[int]) -> Positions:
        return Positions(nowhere(shape))

    def _put_together(self, parts: Sequence[Positions | None], operation: Operation) -> Positions | None:
        tensors, *args = operation.args
        cells = [
            part.cells if part else nowhere(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)
        ]
        grids = {one.grid for one in cells if one.grid is not None}
        if len(grids) > 1:
            return None
        ids = operation.operator([one.ids for one in cells], *args, **operation.kwargs)
        return Positions(Cells(ids, next(iter(grids), None)))

    def _moved(self, first: Positions, operation: Operation) -> Positions | list[Positions]:
        if first.cells.grid is not None:
            self._note_reading(first.cells, operation)
        moved = super()._moved(first, operation)
        if not isinstance(moved, Positions) or moved.cells.is_anywhere():
            return moved
        return replace(moved, cells=nowhere(moved.shape))

    def _note_reading(self, cells: Cells, operation: Operation) -> None:
        """Record the index of a token without a cell that is selected from tokens with cells."""
        arguments = operation.arguments
        if operation.name == "select":
            dim, index = arguments["dim"], arguments["index"]
        elif operation.name == "slice" and operation.result.shape[arguments["dim"]] == 1:
            dim, index = arguments["dim"], arguments["start"] or 0
        else:
            return
        if bool((distinct(cells.ids.select(dim, index)) < 0).all()) and cells.varies_along(dim):
            self.read_alone.setdefault(index % cells.ids.shape[dim])

    def _reshaped(self, first: Positions, shape: Sequence[int]) -> Positions:
        reshaped = super()._reshaped(first, shape)
        if first.mixed is None or shape[-1] != first.shape[-1]:
            return reshaped
        leading = (*shape[:-1], first.mixed.ids.shape[-1])
        return replace(reshaped, mixed=first.mixed.moved(lambda ids: ids.reshape(leading)))

    def _multiplied(
        self, left: Positions | None, right: Positions | None, shape: Sequence[int]
    ) -> Positions | None:
        if right is None:
            return self._weighted(left, shape) if left else None
        if left is None:
            return Positions(nowhere(shape), right.settled(-2, shape))
        for one in (left, right):
            if one.weights is not None and id(one.weights) not in self._taken:
                self._taken[id(one.weights)] = one.weights
                self.read_alone.clear()
                self._take(one.weights)
        return Positions(left.settled(-1, shape), right.settled(-2, shape))

    def _weighted(self, left: Positions, shape: Sequence[int]) -> Positions:
        """Return the positions after multiplying rows by weights: the same, or several cells become one."""
        if left.columns:  # scores of attention heads, which are mixed
            scores = [one.one_along(-1) for one in (left.cells, left.columns)]
            if scores[0] and scores[1]:
                return Positions(scores[0].expanded(shape), scores[1].expanded(shape), left.weights)
        rows = left.settled(-1, shape)
        if rows.grid is not None:
            return Positions(rows)
        mixed = left.mixed
        if left.cells.grid is not None:
            coarse = _merged_rows(left.cells)
            if coarse is not None:
                return Positions(coarse.expanded(shape))
            rows_of_ids = left.cells.ids.flatten(0, -2)
            is_mixed = len(rows_of_ids) > 1 and torch.equal(rows_of_ids[0], rows_of_ids[1])
            mixed = left.cells if is_mixed else None
        if mixed is not None and mixed.ids.shape == shape:
            return Positions(mixed)
        return Positions(nowhere(shape), mixed=mixed)

    def _attended(self, factors: Sequence[Positions | None], shape: Sequence[int]) -> Positions | None:
        queries, *_ = factors
        rows = queries.cells.one_along(-1) if queries else None
        return Positions(rows.expanded(shape)) if rows else None

    def _slid(self, first: Positions, operation: Operation) -> Positions | None:
        """Return the positions after sliding: a map of a map; otherwise the same while the size is kept."""
        shape = operation.first.shape
        sides = shape[2:]
        if math.prod(sides) == 1:
            return None
        one = first.cells.one_along(1)
        if one is not None and one.grid is not None:
            again = one.expanded(shape) if one.ids.shape[2:] == sides else _reseeded(one, shape)
            return Positions(again) if again else None
        is_of_images = len(shape) > 3 and shape[0] == self.n_images and min(sides) > 1
        return Positions(seeded(shape)) if is_of_images else None

    def _normalised(self, first: Positions, operation: Operation) -> Positions:
        positions = self._combined([first], operation)
        if operation.name not in ("_softmax", "_safe_softmax", "softmax"):
            return positions
        keys = positions.columns or nowhere(positions.shape)
        weights = self._weigh(operation.result, operation.args[1], positions.cells, keys)
        return replace(positions, weights=weights)

    def _combined(self, operands: Sequence[Positions], operation: Operation) -> Positions:
        shape = operation.first.shape
        if len(operands) == 1 and operands[0].shape == shape:
            return operands[0]
        columns = [one.columns for one in operands if one.columns is not None]
        weights = next((one.weights for one in operands if one.weights is not None), None)
        cells = joined([one.cells for one in operands], shape)
        return Positions(cells, joined(columns, shape) if columns else None, weights)

    def _reduced(self, first: Positions, dims: Sequence[int], shape: Sequence[int]) -> Positions | None:
        """Reduce: merged cells are a coarser grid."""
        ids = distinct(first.cells.ids)
        over = sorted({dim % ids.ndim for dim in dims}) or list(range(ids.ndim))
        kept = [dim for dim in range(ids.ndim) if dim not in over]
        rows = first.cells.moved(lambda _: ids.permute(*kept, *over).flatten(len(kept)))
        cells = rows.one_along(-1) or (_merged_rows(rows) if kept else None)
        if cells is None:
            return None
        sides = [first.shape[dim] for dim in kept]
        return Positions(cells.moved(lambda ids: ids[..., 0].expand(sides).reshape(tuple(shape))))
