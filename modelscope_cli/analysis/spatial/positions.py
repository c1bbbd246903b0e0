"""Image positions of the elements of a tensor, and of a product of two; outputs arranged as maps of the image."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.inputs.batch import to_sheet
from modelscope_cli.inputs.image import evenly_spaced
from modelscope_cli.records.naming import counted

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Cells:
    """The cell of each element."""

    # int64 of the tensor's shape, mostly expanded from few numbers: `image * cells of the grid + cell`, cells
    # row by row; `NOWHERE` for elements in none, such as a class token or padding
    ids: Tensor
    # Height and width of the grid in cells, in a video frames before them; None where all are nowhere
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
    """The positions of the elements of a tensor."""

    cells: Cells  # of the tensor itself; of a product of two tensors, of the rows of the first
    columns: Cells | None = None  # of a product of two, of the columns of the second
    weights: Any = None  # of the output of a softmax, what the tracker's `weigh` returned
    # Of positions mixed along the last dimension, those before; they hold again for a result with as many entries
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


MOST_FRAMES = 16  # of a clip or a volume, on a sheet
MOST_EXTRA = 16  # tokens other than those of the image, if known by number only


@dataclass(frozen=True, slots=True)
class Arranged:
    """What can be drawn of a tensor for the first image."""

    maps: Tensor | None  # `(C, H, W)` maps or a `(C,)` vector; None where neither fits
    note: str = ""  # in words, what was left out or put together; with no maps, why there are none
    # All frames of a clip or slices of a volume, `(C, T, H, W)`, of which `maps` is a sheet; else None
    frames: Tensor | None = None

    def noting(self, note: str) -> "Arranged":
        """Return the same with another note first."""
        return replace(self, note=", ".join(filter(None, (note, self.note))))


def by_cells(tensor: Tensor, cells: Cells, n_images: int) -> Arranged | None:
    """Place every element at its position; elements outside the image are left out.

    Returns:
        None where the tensor has no elements in different cells.
    """
    ids, grid = cells.ids, cells.grid
    if grid is None or not tensor.numel():
        return None
    places = [dim for dim in range(ids.ndim) if cells.varies_along(dim)]
    if not places or (places == [0] and ids.shape[0] == n_images):
        return None
    channels = [dim for dim in range(ids.ndim) if dim not in places and (dim or ids.shape[0] > n_images)]
    first = [dim for dim in range(ids.ndim) if dim not in (*places, *channels)]  # images in a batch of one
    order = (*first, *channels, *places)
    values = tensor.permute(order).reshape(-1, math.prod(tensor.shape[dim] for dim in places))
    for dim in channels:
        ids = ids.narrow(dim, 0, 1)
    where = ids.permute(order).reshape(-1)
    is_mine = (where >= 0) & (where < math.prod(grid))
    inside = where[is_mine]
    if not len(inside):
        return None
    unique_cells, sides = _smallest_grid(inside, grid)
    if len(unique_cells) < len(inside):
        times = f"{len(inside) / len(unique_cells):.3g}"
        return _of_several_cells(tensor, cells, n_images, times)
    is_cut = len(places) > 1 and bool((inside.diff() < 0).any())
    n_cut = ids.shape[places[0]] // (n_images if places[0] == 0 else 1) if is_cut else 0
    notes = _notes(n_cut, int((where < 0).sum()) // n_images, len(inside), math.prod(grid))
    # The column of `values` of each cell of the grid; the one after the last is for missing cells.
    column = torch.full((math.prod(sides),), len(where))
    spots = torch.searchsorted(unique_cells, inside) if len(unique_cells) == len(column) else inside
    column[spots] = torch.nonzero(is_mine).flatten()
    if len(inside) < len(column):
        values = values if values.is_floating_point() else values.float()
        values = torch.cat([values, values.new_full((len(values), 1), math.nan)], 1)
    if len(where) == len(column) and torch.equal(column, torch.arange(len(column))):
        laid = values.clone()
    else:
        laid = values.index_select(1, column.to(values.device))
    return with_frames(laid.unflatten(1, sides), notes)


def _notes(n_windows: int, n_left: int, n_inside: int, n_cells: int) -> list[str]:
    notes = [f"assembled from {counted(n_windows, 'window')}"] if n_windows else []
    if n_left:
        notes.append(f"without {'padding' if n_windows else counted(n_left, 'extra token')}")
    if n_inside < n_cells:
        notes.append(f"{n_inside} of {n_cells} places")
    return notes


def _of_several_cells(tensor: Tensor, cells: Cells, n_images: int, times: str) -> Arranged | None:
    """Arrange a tensor with several elements per position: cells that are about to be merged make a coarser grid;
    four dimensions are arranged by shape; others are not a map."""
    for dim in (tensor.ndim - 1, 1):
        moved = cells.ids.movedim(dim, -1)
        coarse = merged(Cells(moved.flatten(0, -2), cells.grid))
        if coarse is not None:
            ids = coarse.ids.view(*moved.shape[:-1], 1).expand(moved.shape).movedim(-1, dim)
            return by_cells(tensor, Cells(ids, coarse.grid), n_images)
    if tensor.ndim == 4 and len(tensor) == n_images:
        return None
    return Arranged(None, f"each position of the image occurs {times} times")


def _smallest_grid(inside: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Return the unique cells, in order, and the grid they fill: that of their rows and columns, as after striding,
    or the whole grid if these are not full."""
    cells = torch.unique(inside)
    sides = tuple(len(torch.unique(axis)) for axis in torch.unravel_index(cells, grid))
    return cells, sides if math.prod(sides) == len(cells) else grid


def with_frames(maps: Tensor, notes: list[str]) -> Arranged:
    """Return maps; of a video's or volume's, `(C, T, H, W)`, the sheet of at most `MOST_FRAMES` frames."""
    if maps.ndim < 4:
        return Arranged(maps, ", ".join(notes))
    n = maps.shape[1]
    numbers = evenly_spaced(n, min(n, MOST_FRAMES))
    words = counted(n, "frame") if n <= MOST_FRAMES else f"{MOST_FRAMES} of {n} frames"
    return Arranged(to_sheet(maps[:, numbers], 1), ", ".join([*notes, f"{words}, in rows"]), maps)


def by_shape(
    image: Tensor, channel_dim: int, grids: Sequence[tuple[int, ...]], image_size: tuple[int, int] | None
) -> Arranged:
    """Arrange one image's output by its shape alone, if no positions are known.

    Args:
        channel_dim: of `image`, which has no dimension of images.
        grids: those of the image seen in the run, the latest last.
        image_size: height and width of the image; None where there is none, and a row of tokens is a row.
    """
    if image.ndim == 2:
        return _tokens(image, channel_dim, grids, image_size)
    channels_first = image.movedim(channel_dim, 0)
    places = channels_first.shape[1:]
    if not places or math.prod(places) == 1:
        return Arranged(channels_first.reshape(-1))
    if len(places) == 2:
        return Arranged(channels_first)
    if len(places) == 3:
        return with_frames(channels_first, [])
    return Arranged(channels_first.flatten(2), "further dimensions side by side")


def _tokens(
    image: Tensor, channel_dim: int, grids: Sequence[tuple[int, ...]], image_size: tuple[int, int] | None
) -> Arranged:
    """Arrange `(L, C)` or `(C, L)`: as many tokens as a grid of the run has cells, a few more, or else tokens in
    the proportions of the image."""
    if min(image.shape) == 1:
        return Arranged(image.reshape(-1))
    tokens = image if channel_dim == 0 else image.T
    n_tokens = tokens.shape[1]
    choices = fitting(n_tokens, grids, image_size)
    if len(choices) > 1 and choices[0][1]:
        sizes = " or ".join(f"{'x'.join(map(str, grid))} + {extra}" for grid, extra in choices[:3])
        return Arranged(None, f"{n_tokens} tokens could be {sizes}")
    if choices:
        grid, n_extra = choices[0]
        notes = [f"without {counted(n_extra, 'extra token')}"] if n_extra else []
        notes.append("arranged by number")
        return with_frames(tokens[:, n_extra:].unflatten(1, grid), notes)
    if not grids and image_size is None:
        return Arranged(tokens[:, None, :], "tokens in a row")
    return Arranged(None, f"{' x '.join(map(str, image.shape))} values without positions in the image")


def fitting(
    n_tokens: int, grids: Sequence[tuple[int, ...]], image_size: tuple[int, int] | None
) -> list[tuple[tuple[int, ...], int]]:
    """Return the grids that fit this many tokens, each with the number left over, the fewest first."""
    most = min(MOST_EXTRA, n_tokens // 2)
    if grids:
        over = ((grid, n_tokens - math.prod(grid)) for grid in reversed(grids))
        return sorted((one for one in over if 0 <= one[1] <= most), key=lambda one: one[1])
    for n_extra in range(most + 1):
        n_places = n_tokens - n_extra
        for height, width in filter(None, (image_size, (1, 1))):
            rows = math.isqrt(n_places * height // width)
            if rows > 1 and n_places % rows == 0 and rows * width == n_places // rows * height:
                return [((rows, n_places // rows), n_extra)]
    return []
