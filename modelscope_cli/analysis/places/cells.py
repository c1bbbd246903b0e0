"""Which cell of a grid over the image every element of a tensor lies in."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Cells:
    """The cell of each element.

    Attributes:
        ids: int64 of the tensor's shape, mostly expanded from few numbers: `image * cells of the grid + cell`,
            cells row by row; `NOWHERE` for what lies in none, such as a class token or padding.
        grid: height and width of the grid in cells, in a video frames before them; None where all are nowhere.
    """

    ids: Tensor
    grid: tuple[int, ...] | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Cells":
        """Return the cells of a tensor whose elements were moved."""
        return replace(self, ids=move(self.ids))

    def one_along(self, dim: int) -> "Cells | None":
        """Return the cells with one entry along `dim`, where all that lie there lie in the same cell, else None."""
        ids = self.ids
        if not ids.shape[dim]:
            return None
        if ids.shape[dim] == 1 or ids.stride(dim) == 0:
            return self.moved(lambda ids: ids.narrow(dim, 0, 1))
        few = distinct(ids)
        high = few.amax(dim, keepdim=True)
        if torch.equal(torch.where(few < 0, high, few).amin(dim, keepdim=True), high):
            shape = list(ids.shape)
            shape[dim] = 1
            return replace(self, ids=high.expand(shape))
        return None

    def varies_along(self, dim: int) -> bool:
        """Tell whether not all that lie along `dim` lie in the same cell, or all in none."""
        if self.ids.shape[dim] < 2 or self.ids.stride(dim) == 0:
            return False
        few = distinct(self.ids)
        return not torch.equal(few, few.narrow(dim, 0, 1).expand_as(few))

    def is_anywhere(self) -> bool:
        """Tell whether any element lies in a cell."""
        return self.grid is not None and bool((distinct(self.ids) >= 0).any())

    def images(self, shape: Sequence[int]) -> "Cells":
        """Return the cells repeated along dimensions of size 1 to a shape."""
        return self.moved(lambda ids: ids.expand(tuple(shape)))


def distinct(ids: Tensor) -> Tensor:
    """Return ids with one entry along every dimension they are expanded along: the same cells, and few to
    compare."""
    for dim in range(ids.ndim):
        if ids.stride(dim) == 0 and ids.shape[dim] > 1:
            ids = ids.narrow(dim, 0, 1)
    return ids


def nowhere(shape: Sequence[int]) -> Cells:
    """Return what is made of the image, but lies in no cell."""
    return Cells(torch.tensor(NOWHERE).expand(tuple(shape)))


def seeded(shape: Sequence[int]) -> Cells:
    """Return the cells of `(N, C, ...)` maps: every position of theirs is one."""
    n, _, *grid = shape
    ids = torch.arange(n * math.prod(grid)).view(n, 1, *grid)
    return Cells(ids.expand(tuple(shape)), tuple(grid))


def reseeded(cells: Cells, shape: Sequence[int]) -> Cells | None:
    """Return the cells of `(N, C, ...)` maps that were made of whole maps of other sizes, each of one image.

    Args:
        cells: of the maps before, `(N, 1, ...)`; padding around them does not matter.

    Returns:
        None where they are not whole maps, in order.
    """
    ids, grid = cells.ids, cells.grid
    if grid is None:
        return None
    for dim in range(2, ids.ndim):
        is_placed = (ids >= 0).movedim(dim, 0).flatten(1).any(1)
        ids = ids.index_select(dim, torch.nonzero(is_placed).flatten())
    n_cells = math.prod(grid)
    inside = torch.arange(n_cells).view(1, 1, *grid)
    if not ids.numel():
        return None
    first = torch.div(ids.flatten(1)[:, 0], n_cells, rounding_mode="floor")
    first = first.view(-1, *[1] * (ids.ndim - 1))
    if tuple(ids.shape[2:]) != grid or not torch.equal(ids, first * n_cells + inside):
        return None
    made = seeded((1, 1, *shape[2:]))
    return Cells(made.ids + first * made.ids.numel(), made.grid).images(shape)


def joined(cells: Sequence[Cells], shape: Sequence[int]) -> Cells:
    """Return the cells of what is computed element by element: those of the finest grid; nowhere where two operands
    lie in different cells of it."""
    finest = max((math.prod(one.grid) for one in cells if one.grid is not None), default=0)
    placed = [one for one in cells if one.grid is not None and math.prod(one.grid) == finest]
    if not placed:
        return nowhere(shape)
    first, *others = placed
    for other in others:
        mine, its = distinct(first.ids), distinct(other.ids)
        if first.grid == other.grid and mine.shape == its.shape and torch.equal(mine, its):
            continue
        is_odd = (mine != its) & (mine >= 0) & (its >= 0)
        if other.grid != first.grid or bool(is_odd.any()):
            return nowhere(shape)
        first = replace(first, ids=torch.maximum(mine, its))
    return first.images(shape)


def merged(cells: Cells) -> Cells | None:
    """Return the cells of a coarser grid for `(rows, K)` elements, where each row holds some cells that no other
    holds and the rows make up a grid again, as in patches of pixels or the merging of patches; else None."""
    ids, grid = cells.ids, cells.grid
    if grid is None or len(ids) < 2 or torch.equal(ids[0], ids[1]):
        return None
    placed = ids >= 0
    rows = torch.arange(len(ids))[:, None].expand(ids.shape)[placed]
    flat = ids[placed]
    n_ids = math.prod(grid) * (int(flat.max()) // math.prod(grid) + 1)
    if len(torch.unique(rows * n_ids + flat)) != len(torch.unique(flat)):
        return None
    n_placed = placed.sum(1)
    is_row = n_placed > 0

    def mean(values: Tensor) -> Tensor:
        totals = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, rows, values.double())
        return (totals / n_placed)[is_row]

    n_cells = math.prod(grid)
    image = mean(flat // n_cells)
    inside: list[Tensor] = list(torch.unravel_index(flat % n_cells, grid))
    ranks, sides = [], []
    for axis in inside:
        values, rank = torch.unique(mean(axis), return_inverse=True)
        ranks.append(rank)
        sides.append(len(values))
    coarse = image.long()
    for rank, side in zip(ranks, sides, strict=True):
        coarse = coarse * side + rank
    n_images = int(image.max()) + 1
    is_whole = len(torch.unique(coarse)) == len(coarse) == n_images * math.prod(sides)
    if not is_whole or bool((image % 1 != 0).any()) or sum(side > 1 for side in sides) < 2:
        return None
    made = torch.full((len(ids), 1), NOWHERE)
    made[is_row, 0] = coarse
    return Cells(made, tuple(sides))
