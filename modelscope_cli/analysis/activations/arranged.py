"""Outputs arranged as maps of the image, by the positions of their elements or else by their shape."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from modelscope_cli.analysis.spatial.cells import Cells, merged
from modelscope_cli.records.naming import counted


@dataclass(frozen=True, slots=True)
class Arranged:
    """What can be drawn of a tensor for the first image."""

    maps: Tensor | None  # `(C, H, W)` maps or a `(C,)` vector; None where neither fits
    note: str = ""  # in words, what was left out or put together; with no maps, why there are none


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
    return of_middle_frame(laid.unflatten(1, sides), notes)


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


def of_middle_frame(maps: Tensor, notes: list[str]) -> Arranged:
    """Return maps; of a video or volume, `(C, T, H, W)`, those of the middle frame or slice."""
    if maps.ndim < 4:
        return Arranged(maps, ", ".join(notes))
    n = maps.shape[1]
    note = f"frame or slice {n // 2} of {n}, counted from 0"
    return Arranged(maps[:, n // 2].contiguous(), ", ".join([*notes, note]))


def by_shape(image: Tensor, channel_dim: int, is_spatial: bool) -> Arranged:
    """Arrange one image's output by its shape alone, if no positions are known.

    Args:
        channel_dim: of `image`, which has no dimension of images.
        is_spatial: whether anything before had positions in an image; else tokens are a row.
    """
    if image.ndim == 2 and min(image.shape) > 1:
        if is_spatial:
            return Arranged(
                None, f"{' x '.join(map(str, image.shape))} values without positions in the image"
            )
        what = "samples" if channel_dim == 0 else "tokens"
        return Arranged((image if channel_dim == 0 else image.T)[:, None, :], f"{what} in a row")
    channels_first = image.movedim(channel_dim, 0)
    places = channels_first.shape[1:]
    if not places or math.prod(places) == 1:
        return Arranged(channels_first.reshape(-1))
    if len(places) < 3:
        return Arranged(channels_first if len(places) == 2 else channels_first[:, None])
    if len(places) == 3:
        return of_middle_frame(channels_first, [])
    return Arranged(channels_first.flatten(2), "further dimensions side by side")
