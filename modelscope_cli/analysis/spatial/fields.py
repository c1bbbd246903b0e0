"""Receptive fields: the box of pixels each element of a tensor can depend on, followed through a run.

Every tensor computed from the image has four bounds per element, mostly expanded from few numbers. Moving elements
moves their bounds, combining them takes the union, and an unknown operator sees the whole image. So a residual
block is the union of its branches, and global pooling, attention and squeeze-excitation come out as the whole image
because they are computed from all of it, not by their names.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.spatial.follow import Follower, Operation, distinct, each
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.records.run import Arguments

_NOTHING = -(2**30)  # the bound of what depends on no pixel at all, such as padding
_ROUNDING = 1e-9  # of a weight of interpolation


@dataclass(frozen=True, slots=True)
class Field:
    """The bounds of every element of a tensor: -top, bottom, -left, right, the last pixels included."""

    # Four int32 tensors of the shape of the tensor, so that a union is the larger of each
    bounds: tuple[Tensor, ...]
    size: tuple[int, int]  # height and width of the image

    @property
    def shape(self) -> torch.Size:
        return self.bounds[0].shape

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Field":
        """Return the field with each bound changed."""
        return Field(tuple(map(move, self.bounds)), self.size)

    def equals(self, other: "Field") -> bool:
        return all(map(torch.equal, self.bounds, other.bounds))

    def over(self, dims: Iterable[int], shape: Sequence[int]) -> "Field":
        """Return the union along some dimensions, kept or dropped as in `shape`."""
        dims = sorted({dim % len(self.shape) for dim in dims})
        is_kept = len(shape) == len(self.shape)
        return self.moved(lambda bound: distinct(bound).amax(dims, keepdim=is_kept).expand(tuple(shape)))

    def slimmed(self) -> "Field":
        """Return the same for the first image alone, in its own memory."""
        return self.moved(lambda bound: distinct(bound)[:1].clone().expand(1, *bound.shape[1:]))

    def largest(self) -> tuple[int, int]:
        """Return height and width of the largest box of any element."""
        top, bottom, left, right = self.bounds
        sides = (distinct(bottom) + distinct(top), distinct(right) + distinct(left))
        return tuple(max(int(side.amax()) + 1, 0) for side in sides)  # type: ignore[return-value]


def union(fields: Sequence[Field], shape: Sequence[int]) -> Field:
    """Return the field of an element-wise result of several tensors broadcast to a shape."""
    bounds = zip(*(field.bounds for field in fields), strict=True)
    few = (reduce(torch.maximum, map(distinct, parts)) for parts in bounds)
    return Field(tuple(bound.expand(tuple(shape)) for bound in few), fields[0].size)


class ReceptiveFields(Follower[Field]):
    """The receptive fields of all tensors of a run that are computed from the image."""

    blank = _NOTHING

    def of(self, tensor: Tensor) -> Field:
        """Return the field of a tensor; the whole image if its origin was not observed."""
        return self.find(tensor) or self._unknown(tensor.shape)

    def _begin(self, tensors: Sequence[Tensor]) -> None:
        images = [tensor for tensor in tensors if tensor.ndim > 2]
        self._size = (images[0].shape[-2], images[0].shape[-1]) if images else (0, 0)
        for image in images:
            rows = torch.arange(image.shape[-2], dtype=torch.int32)[:, None]
            columns = torch.arange(image.shape[-1], dtype=torch.int32)
            bounds = tuple(bound.expand(image.shape) for bound in (-rows, rows, -columns, columns))
            self._put(image, Field(bounds, self._size))

    def _unknown(self, shape: Sequence[int]) -> Field:
        height, width = self._size
        return self._constant((0, height - 1, 0, width - 1), shape)

    def _constant(self, bounds: Iterable[int], shape: Sequence[int]) -> Field:
        numbers = (torch.tensor(bound, dtype=torch.int32) for bound in bounds)
        return Field(tuple(number.expand(tuple(shape)) for number in numbers), self._size)

    def _put_together(self, parts: Sequence[Field | None], operation: Operation) -> Field:
        tensors, *args = operation.args
        fields = [
            part or self._constant([_NOTHING] * 4, tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]
        bounds = zip(*(field.bounds for field in fields), strict=True)
        joined = (operation.operator(list(bound), *args, **operation.kwargs) for bound in bounds)
        return Field(tuple(joined), self._size)

    def _combined(self, operands: Sequence[Field], operation: Operation) -> Field:
        return union(operands, operation.first.shape)

    def _multiplied(self, left: Field | None, right: Field | None, shape: Sequence[int]) -> Field:
        sides = [left.over([-1], (*left.shape[:-1], 1))] if left else []
        if right:
            sides.append(right.over([-2], (*right.shape[:-2], 1, right.shape[-1])))
        return union(sides, shape)

    def _attended(self, factors: Sequence[Field | None], shape: Sequence[int]) -> Field:
        queries, *others = factors
        sides = [queries.over([-1], (*queries.shape[:-1], 1))] if queries else []
        sides += [one.over([-2, -1], (*one.shape[:-2], 1, 1)) for one in others if one]
        return union(sides, shape)

    def _slid(self, first: Field, operation: Operation) -> Field:
        """Slide: a convolution takes the union of the channels of a group, a pooling keeps them apart."""
        arguments, shape = operation.arguments, operation.first.shape
        groups = arguments["groups"] if "weight" in arguments else 0
        name = re.search(r"([123])d", operation.name)
        n_sliding = arguments["weight"].ndim - 2 if groups else int(name[1]) if name else 2
        reads = [_reads(operation, dim, first.shape[-n_sliding:]) for dim in range(n_sliding)]

        def slide(bound: Tensor) -> Tensor:
            few = distinct(bound)
            if groups and few.shape[1] > 1:
                few = few.unflatten(1, (groups, -1)).amax(2)
                few = few.repeat_interleave(shape[1] // groups, 1) if groups > 1 else few
            for dim, (index, is_there) in enumerate(reads, start=few.ndim - n_sliding):
                if few.shape[dim] > 1:
                    read = few.index_select(dim, index.flatten()).unflatten(dim, index.shape)
                    mask = is_there.view(*is_there.shape, *[1] * (few.ndim - 1 - dim))
                    few = torch.where(mask, read, _NOTHING).amax(dim + 1)
            return few.to(torch.int32).expand(shape)

        return first.moved(slide)

    def _normalised(self, first: Field, operation: Operation) -> Field | None:
        """Normalise: a norm depends on all elements of its mean, on no others with stored statistics."""
        name, arguments, shape = operation.name, operation.arguments, operation.first.shape
        dims = range(len(shape))
        if "layer_norm" in name or "rms_norm" in name:
            return first.over(dims[-len(arguments["normalized_shape"]) :], shape)
        if "group_norm" in name:
            return first.over(dims[1:], shape)
        if "batch_norm" in name:
            return first.over([0, *dims[2:]], shape) if arguments.get("training") else first
        return first.over(each(arguments["dim"]), shape) if arguments.get("dim") is not None else None

    def _reduced(self, first: Field, dims: Sequence[int], shape: Sequence[int]) -> Field:
        return first.over(dims, shape)


def _reads(operation: Operation, dim: int, sides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return `(entries of the result, entries read at most)` along one dimension, and which of those exist.
    The operator says so itself: it runs on maps of which each is zero but for one entry along this dimension."""

    def alone(name: str, value: Any) -> Any:
        """Return an argument that leaves the other dimensions as they are."""
        if name == "weight":
            kernel = [side if one == dim else 1 for one, side in enumerate(value.shape[2:])]
            return torch.ones(1, 1, *kernel, dtype=torch.float64)
        if not isinstance(value, list) or not value:
            return {"bias": None, "groups": 1}.get(name, value)
        value = value * len(sides) if len(value) == 1 else value
        neutral = 2 if name == "output_size" else 0 if "padding" in name else type(value[0])(1)
        # Left, right, top, bottom for an operator that only pads
        mine = range(len(value))[-2 * dim - 2 :][:2] if len(value) == 2 * len(sides) else (dim,)
        return [side if one in mine else neutral for one, side in enumerate(value)]

    _, *others = operation.arguments.items()
    # The other dimensions have two equal entries: torch's antialiasing is wrong for a map one pixel wide.
    shape = [2] * len(sides)
    shape[dim] = sides[dim]
    maps = torch.eye(sides[dim], dtype=torch.float64).view(
        -1, *[1] * dim, sides[dim], *[1] * (len(sides) - 1 - dim)
    )
    maps = maps[:, None].expand(-1, 1, *shape)
    result = operation.operator(maps, *(alone(name, value) for name, value in others))
    is_read = each(result)[0].movedim(dim + 2, 1).flatten(2)[..., 0].T.abs() > _ROUNDING
    index = is_read.int().argsort(1, descending=True)[:, : int(is_read.sum(1).amax())]
    return index, is_read.gather(1, index)


# The name of the layer, the index of its call, the path of the tensor in the output.
Output = tuple[str, int, str]


class _FieldsOfOutputs(Observer):
    def __init__(self, fields: ReceptiveFields) -> None:
        self.found: dict[Output, Field] = {}
        self._fields = fields

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            self.found[call.name, call.index, path] = self._fields.of(tensor).slimmed()


def fields_of_outputs(model: nn.Module, args: Arguments) -> dict[Output, Field]:
    """Return the receptive field of every output for the first image of one run."""
    fields = ReceptiveFields()
    observer = _FieldsOfOutputs(fields)
    with HookSession(model, [observer]) as session, fields.follow(args):
        session.run(args)
    return observer.found
