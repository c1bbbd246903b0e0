"""Image positions of the elements of a tensor, and of a product of two."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Cells:
    """The cell of each element.

    Attributes:
        ids: int64 of the tensor's shape, mostly expanded from few numbers: `image * cells of the grid + cell`,
            cells row by row; `NOWHERE` for elements in none, such as a class token or padding.
        grid: height and width of the grid in cells, in a video frames before them; None where all are nowhere.
    """

    ids: Tensor
    grid: tuple[int, ...] | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Cells":
        """Return the cells of a tensor whose elements were moved."""
        return replace(self, ids=move(self.ids))

    def one_along(self, dim: int) -> "Cells | None":
        """Return the cells with one entry along `dim` if all entries there are in the same cell, else None."""
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
        """Whether the entries along `dim` are in different cells."""
        if self.ids.shape[dim] < 2 or self.ids.stride(dim) == 0:
            return False
        few = distinct(self.ids)
        return not torch.equal(few, few.narrow(dim, 0, 1).expand_as(few))

    def is_anywhere(self) -> bool:
        """Whether any element is in a cell."""
        return self.grid is not None and bool((distinct(self.ids) >= 0).any())

    def images(self, shape: Sequence[int]) -> "Cells":
        """Return the cells repeated along dimensions of size 1 to a shape."""
        return self.moved(lambda ids: ids.expand(tuple(shape)))


def distinct(ids: Tensor) -> Tensor:
    """Return ids with one entry along every expanded dimension: the same cells, and few to compare."""
    for dim in range(ids.ndim):
        if ids.stride(dim) == 0 and ids.shape[dim] > 1:
            ids = ids.narrow(dim, 0, 1)
    return ids


def nowhere(shape: Sequence[int]) -> Cells:
    """Return the cells of elements that are in no cell."""
    return Cells(torch.tensor(NOWHERE).expand(tuple(shape)))


def seeded(shape: Sequence[int]) -> Cells:
    """Return the cells of `(N, C, ...)` maps: one for each position."""
    n, _, *grid = shape
    ids = torch.arange(n * math.prod(grid)).view(n, 1, *grid)
    return Cells(ids.expand(tuple(shape)), tuple(grid))


def reseeded(cells: Cells, shape: Sequence[int]) -> Cells | None:
    """Return the cells of `(N, C, ...)` maps computed from whole maps of other sizes, image by image.

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
    cells_of_maps = seeded((1, 1, *shape[2:]))
    return Cells(cells_of_maps.ids + first * cells_of_maps.ids.numel(), cells_of_maps.grid).images(shape)


def joined(cells: Sequence[Cells], shape: Sequence[int]) -> Cells:
    """Return the cells of an element-wise result: those of the finest grid; nowhere if two differ in it."""
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
    """Return the cells of a coarser grid for `(rows, K)` elements if the rows share no cells and form a grid again,
    as in patch embedding or patch merging; else None."""
    ids, grid = cells.ids, cells.grid
    if grid is None or len(ids) < 2 or torch.equal(ids[0], ids[1]):
        return None
    is_placed = ids >= 0
    rows = torch.arange(len(ids))[:, None].expand(ids.shape)[is_placed]
    flat = ids[is_placed]
    n_ids = math.prod(grid) * (int(flat.max()) // math.prod(grid) + 1)
    if len(torch.unique(rows * n_ids + flat)) != len(torch.unique(flat)):
        return None
    n_placed = is_placed.sum(1)
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
    coarse_ids = torch.full((len(ids), 1), NOWHERE)
    coarse_ids[is_row, 0] = coarse
    return Cells(coarse_ids, tuple(sides))


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of the elements of a tensor.

    Attributes:
        cells: of the tensor itself; of a product of two tensors, of the rows of the first.
        columns: of a product of two, of the columns of the second.
        weights: of the output of a softmax, what the tracker's `weigh` returned.
        mixed: of positions mixed along the last dimension, those before; they hold again for a result with as
        many entries.
    """

    cells: Cells
    columns: Cells | None = None
    weights: Any = None
    mixed: Cells | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Positions":
        columns = self.columns.moved(move) if self.columns else None
        return Positions(self.cells.moved(move), columns, self.weights)

    def reshaped(self, shape: Sequence[int]) -> "Positions":
        result = self.moved(lambda ids: ids.reshape(tuple(shape)))
        if self.mixed is None or shape[-1] != self.cells.ids.shape[-1]:
            return result
        leading = (*shape[:-1], self.mixed.ids.shape[-1])
        return replace(result, mixed=self.mixed.moved(lambda ids: ids.reshape(leading)))

    def forgotten(self) -> "Positions":
        """Return the same without the grid if no element is in a cell any more."""
        return self if self.cells.is_anywhere() else replace(self, cells=nowhere(self.cells.ids.shape))

    def is_where(self, other: "Positions") -> bool:
        """Whether all elements are in the same cells."""
        mine, its = (self.cells, self.columns), (other.cells, other.columns)
        return all(
            one is two or (one is not None and two is not None and torch.equal(one.ids, two.ids))
            for one, two in zip(mine, its, strict=True)
        )

    @property
    def sides(self) -> list[Cells]:
        """Rows and columns, those with a grid first."""
        return sorted(filter(None, (self.cells, self.columns)), key=lambda one: one.grid is None)


def settled(places: Positions | None, dim: int) -> Cells | None:
    """Return the cells of a factor that is summed along `dim`; None if they vary there."""
    if places is None:
        return None
    return next((one for side in places.sides if (one := side.one_along(dim)) is not None), None)


def reduced(first: Positions, dims: Any, result: Any) -> Positions | None:
    """Return the positions of a sum, mean or maximum along some dimensions: merged cells are a coarser grid."""
    ids, shape = distinct(first.cells.ids), first_of(result).shape
    over = sorted({dim % ids.ndim for dim in each(dims)}) or list(range(ids.ndim))
    kept_dims = [dim for dim in range(ids.ndim) if dim not in over]
    rows = replace(first.cells, ids=ids.permute(*kept_dims, *over).flatten(len(kept_dims)))
    cells = rows.one_along(-1)
    if cells is None and kept_dims:
        leading = rows.ids.shape[:-1]
        coarse = merged(rows.moved(lambda ids: ids.flatten(0, -2)))
        cells = coarse.moved(lambda ids: ids.view(*leading, 1)) if coarse else None
    if cells is None:
        return None
    full = [first.cells.ids.shape[dim] for dim in kept_dims]
    return Positions(cells.moved(lambda ids: ids[..., 0].expand(full).reshape(shape)))


def each(value: Any) -> Any:
    """Return a list or tuple unchanged, and anything else as a tuple of one."""
    return value if isinstance(value, list | tuple) else (value,)


def name_of(operator: Any) -> tuple[str, bool]:
    """Return the name of an operator of torch without its overload, and whether it works in place."""
    name: str = operator.name().partition("::")[2].partition(".")[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return name.removesuffix("_") if is_in_place else name, is_in_place


def first_of(result: Any) -> Any:
    """Return the first result of an operator; None without any."""
    return next(iter(each(result)), None)
