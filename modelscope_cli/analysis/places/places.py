"""Where the elements of one tensor lie, and of a product of two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.places.cells import Cells, distinct, merged, nowhere


@dataclass(frozen=True, slots=True)
class Places:
    """Where the elements of a tensor lie.

    Attributes:
        cells: of the tensor itself; of a product of two tensors, of the rows of the first.
        columns: of a product of two, of the columns of the second.
        weights: these are the weights that a softmax gave; what the `weigh` of the tracker made of them.
        mixed: the places were mixed along the last dimension: where its entries lay before, and will lie where
            there are as many of them again.
    """

    cells: Cells
    columns: Cells | None = None
    weights: Any = None
    mixed: Cells | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Places":
        columns = self.columns.moved(move) if self.columns else None
        return Places(self.cells.moved(move), columns, self.weights)

    def reshaped(self, shape: Sequence[int]) -> "Places":
        found = self.moved(lambda ids: ids.reshape(tuple(shape)))
        if self.mixed is None or shape[-1] != self.cells.ids.shape[-1]:
            return found
        leading = (*shape[:-1], self.mixed.ids.shape[-1])
        return replace(found, mixed=self.mixed.moved(lambda ids: ids.reshape(leading)))

    def forgotten(self) -> "Places":
        """Return the same without the grid of cells where no element lies any more."""
        return self if self.cells.is_anywhere() else replace(self, cells=nowhere(self.cells.ids.shape))

    def is_where(self, other: "Places") -> bool:
        """Tell whether elements lie in the same cells."""
        mine, its = (self.cells, self.columns), (other.cells, other.columns)
        return all(
            one is two or (one is not None and two is not None and torch.equal(one.ids, two.ids))
            for one, two in zip(mine, its, strict=True)
        )

    @property
    def sides(self) -> list[Cells]:
        """Rows and columns, those that lie anywhere first."""
        return sorted(filter(None, (self.cells, self.columns)), key=lambda one: one.grid is None)


def settled(places: Places | None, dim: int) -> Cells | None:
    """Return where a factor lies whose elements along `dim` are summed: what varies there is lost."""
    if places is None:
        return None
    return next((one for side in places.sides if (one := side.one_along(dim)) is not None), None)


def reduced(first: Places, dims: Any, result: Any) -> Places | None:
    """Where a sum, mean or largest along some dimensions lies: cells that become one are a coarser grid."""
    ids, shape = distinct(first.cells.ids), first_of(result).shape
    over = sorted({dim % ids.ndim for dim in each(dims)}) or list(range(ids.ndim))
    kept = [dim for dim in range(ids.ndim) if dim not in over]
    rows = replace(first.cells, ids=ids.permute(*kept, *over).flatten(len(kept)))
    cells = rows.one_along(-1)
    if cells is None and kept:
        leading = rows.ids.shape[:-1]
        coarse = merged(rows.moved(lambda ids: ids.flatten(0, -2)))
        cells = coarse.moved(lambda ids: ids.view(*leading, 1)) if coarse else None
    if cells is None:
        return None
    full = [first.cells.ids.shape[dim] for dim in kept]
    return Places(cells.moved(lambda ids: ids[..., 0].expand(full).reshape(shape)))


def each(value: Any) -> Any:
    """Return a list or tuple as it is, and anything else as the only one of its kind."""
    return value if isinstance(value, list | tuple) else (value,)


def name_of(operator: Any) -> tuple[str, bool]:
    """Return the name of an operator of torch without its overload, and whether it works in place."""
    name: str = operator.name().partition("::")[2].partition(".")[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return name.removesuffix("_") if is_in_place else name, is_in_place


def first_of(result: Any) -> Any:
    """Return what an operator gives, or the first of several; None of none."""
    return next(iter(each(result)), None)
