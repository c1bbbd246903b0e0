"""Receptive fields: the box of pixels each element of a tensor can depend on, tracked through a run.

Every tensor computed from the image has four bounds per element, mostly expanded from few numbers. Each kind of
operator has one rule: moving elements moves their bounds, combining them takes the union, and an unknown operator
sees the whole image. So a residual block is the union of its branches, and global pooling, attention
and squeeze-excitation come out as the whole image because they are computed from all of it, not by their names.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from modelscope_cli.analysis.spatial.positions import distinct, each, first_of, name_of
from modelscope_cli.analysis.spatial.tracker import KEEPS, MOVES, RESHAPES, SOFTMAX
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.hooks.torch_private import arguments_of, base_of, operators_shown_to
from modelscope_cli.records.run import Args, Arguments, Kwargs


@dataclass(frozen=True, slots=True)
class Taps:
    """Along one dimension: `(entries of the output, entries read at most)` int64, and which of those exist."""

    index: Tensor
    is_there: Tensor


def taps_of(name: str, arguments: dict[str, Any], before: Sequence[int], after: Sequence[int]) -> list[Taps]:
    """Return the taps along each of the sliding dimensions.

    Args:
        name: of an operator of torch that slides, without its overload.
        arguments: of the call, by name.
        before, after: sizes of the sliding dimensions of the input and of the output.
    """
    if "adaptive" in name:
        return [_adaptive_taps(n, m) for n, m in zip(before, after, strict=True)]
    if "upsample" in name:
        return [_resampling_taps(name, arguments, n, m) for n, m in zip(before, after, strict=True)]
    if "convolution" not in name and "pool" not in name:
        raise ValueError(name)
    sides = arguments["weight"].shape[2:] if "weight" in arguments else arguments["kernel_size"]
    kernel = _each(sides, before)
    stride = _each(arguments.get("stride") or kernel, before)
    padding = _each(arguments.get("padding", 0), before)
    dilation = _each(arguments.get("dilation", 1), before)
    make = _transposed_taps if arguments.get("transposed") else _sliding_taps
    return [
        make(n, m, k, s, p, d)
        for n, m, k, s, p, d in zip(before, after, kernel, stride, padding, dilation, strict=True)
    ]


def _each(value: Any, sizes: Sequence[int]) -> list[int]:
    values = list(value) if isinstance(value, list | tuple | torch.Size) else [value]
    return values * len(sizes) if len(values) == 1 else values


def _within(index: Tensor, n: int) -> Taps:
    return Taps(index.clamp(0, n - 1), (index >= 0) & (index < n))


def _sliding_taps(n: int, m: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps:
    """Entry i of the output reads i * stride - padding + k * dilation for every k of the kernel."""
    start = torch.arange(m)[:, None] * stride - padding
    return _within(start + torch.arange(kernel) * dilation, n)


def _transposed_taps(n: int, m: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps:
    """Transposed: entry o is written to by every i with o = i * stride - padding + k * dilation."""
    offset = torch.arange(m)[:, None] + padding - torch.arange(kernel) * dilation
    taps = _within(torch.div(offset, stride, rounding_mode="floor"), n)
    return Taps(taps.index, taps.is_there & (offset % stride == 0))


def _adaptive_taps(n: int, m: int) -> Taps:
    """Entry i of an adaptive pooling reads from floor(i n / m) to before ceil((i + 1) n / m)."""
    start = torch.arange(m) * n // m
    end = -(-(torch.arange(1, m + 1) * n) // m)
    index = start[:, None] + torch.arange(int((end - start).max()))
    return Taps(index.clamp(0, n - 1), index < end[:, None])


def _resampling_taps(name: str, arguments: dict[str, Any], n: int, m: int) -> Taps:
    entries = torch.arange(m, dtype=torch.float64)
    if "nearest" in name:
        return _within((((entries + 0.5 * ("exact" in name)) * n / m).floor().long())[:, None], n)
    middle = (entries + 0.5) * n / m - 0.5
    if arguments.get("align_corners"):
        middle = entries * (n - 1) / max(m - 1, 1)
    else:
        middle = middle.clamp(0, n - 1) if "cubic" not in name else middle
    # A triangle reaches 1 to each side, a cubic 2; made wider where antialiasing is asked for.
    reach = (2 if "cubic" in name else 1) * (max(n / m, 1.0) if name.endswith("_aa") else 1.0)
    first = (middle - reach).ceil().long()
    index = first[:, None] + torch.arange(math.ceil(2 * reach) + 1)
    is_near = (index - middle[:, None]).abs() < reach - 1e-9
    # Outside entries are clamped to the edge.
    return Taps(index.clamp(0, n - 1), is_near)


Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels, as Pillow crops: the last two lie outside."""

_NOTHING = -(2**30)  # what depends on no pixel at all, such as padding
_SLIDES = re.compile(r"convolution|pool|upsample")
_PADS = re.compile(r"(reflection|replication)_pad|constant_pad_nd")
_PLAIN = re.compile(r"dropout|bernoulli|hardswish|prelu|log_sigmoid|rsub|floor_divide|where|clamp")
_SOFT = {*SOFTMAX, "_log_softmax", "log_softmax"}
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "linear": 0}  # index of the first factor


@dataclass(frozen=True, slots=True)
class Field:
    """The bounds of every element of a tensor: -top, bottom, -left, right, the last pixels included."""

    # Four int32 tensors of the shape of the tensor, expanded from few numbers; so that a union is the larger
    # of each
    bounds: tuple[Tensor, ...]
    size: tuple[int, int]  # height and width of the image

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Field":
        """Return the field with `change` applied to each bound."""
        return Field(tuple(map(change, self.bounds)), self.size)

    def over(self, dims: Iterable[int], shape: Sequence[int]) -> "Field":
        """Return the union along some dimensions, kept or dropped as in `shape`."""
        dims = sorted({dim % self.bounds[0].ndim for dim in dims})
        is_kept = len(shape) == self.bounds[0].ndim

        def unite(bound: Tensor) -> Tensor:
            few = distinct(bound)
            return (few.amax(dims, keepdim=is_kept) if dims else few).expand(tuple(shape))

        return self.changed(unite)

    def slimmed(self) -> "Field":
        """Return the same for the first image alone, in its own memory."""
        return self.changed(lambda bound: distinct(bound)[:1].clone().expand(1, *bound.shape[1:]))

    def box(self, place: Sequence[int]) -> Box:
        """Return the pixels that one element of the first image can depend on."""
        top, bottom, left, right = (int(bound[(0, *place)]) for bound in self.bounds)
        return -left, -top, right + 1, bottom + 1

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


def whole(size: tuple[int, int], shape: Sequence[int]) -> Field:
    """Return the field of a tensor that may depend on every pixel."""
    height, width = size
    bounds = (torch.tensor(bound, dtype=torch.int32) for bound in (0, height - 1, 0, width - 1))
    return Field(tuple(bound.expand(tuple(shape)) for bound in bounds), size)


def _seeded(image: Tensor) -> Field:
    """Return the field of an image: every pixel depends on itself."""
    height, width = image.shape[-2:]
    rows = torch.arange(height, dtype=torch.int32)[:, None].expand(image.shape)
    columns = torch.arange(width, dtype=torch.int32).expand(image.shape)
    return Field((-rows, rows, -columns, columns), (height, width)).changed(
        lambda bound: distinct(bound).expand(image.shape)
    )


class ReceptiveFields:
    """The receptive fields of all tensors of a run that are computed from the image."""

    def __init__(self) -> None:
        self._size = (0, 0)
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    @contextmanager
    def follow(self, args: Arguments) -> Iterator[None]:
        """Follow what is computed from the arguments of a model while the block is open."""
        self._known.clear()
        images = [tensor for _, tensor in tensors_in(args) if tensor.ndim > 2]
        for tensor in images:
            self._known[tensor] = _seeded(tensor)
        self._size = (images[0].shape[-2], images[0].shape[-1]) if images else (0, 0)
        try:
            with operators_shown_to(self._see):
                yield
        finally:
            self._known.clear()

    def of(self, tensor: Tensor) -> Field:
        """Return the field of a tensor; the whole image if its origin was not observed."""
        return self._of(tensor) or whole(self._size, tensor.shape)

    def _of(self, tensor: Any) -> Field | None:
        return self._known.get(tensor) if isinstance(tensor, Tensor) else None

    def _see(self, operator: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        tracked = [one for arg in (*args, *kwargs.values()) for one in each(arg) if self._of(one) is not None]
        if not tracked or not isinstance(first_of(result), Tensor):
            return
        name, is_in_place = name_of(operator)
        try:
            fields = self._rule(name, operator, args, kwargs, result)
        except Exception:  # an unexpected use of an operator: it may see everything
            fields = None
        for n, tensor in enumerate(each(result)):
            if isinstance(tensor, Tensor):
                field = fields[n] if isinstance(fields, list) else fields if n == 0 else None
                if field is None or field.bounds[0].shape != tensor.shape:
                    field = whole(self._size, tensor.shape)
                self._known[tensor] = field
        base = base_of(first_of(result)) if is_in_place and len(tracked) > 1 else None
        if base is not None:  # a part of it was written to
            self._known[base] = whole(self._size, base.shape)

    def _rule(
        self, name: str, operator: Any, args: Args, kwargs: Kwargs, result: Any
    ) -> "Field | list[Field] | None":
        first, shape = self._of(args[0]), first_of(result).shape
        if name in _PRODUCTS:
            start = _PRODUCTS[name]
            return self._product(args[start], args[start + 1], shape)
        if name == "copy":
            source = self._of(args[1])
            return source.changed(lambda bound: bound.expand(shape)) if source is not None else None
        if name in ("cat", "stack"):
            return self._put_together(operator, args, kwargs)
        if name.startswith("_scaled_dot_product"):
            return self._attended(args[:3], shape)
        if first is None:
            return self._pointwise(name, operator, args, kwargs, shape)
        if name in KEEPS:
            return first
        if name in RESHAPES:
            return first.changed(lambda bound: bound.reshape(shape))
        arguments = arguments_of(operator, args, kwargs)
        if name in MOVES or _PADS.search(name):
            return _moved(name, operator, args, kwargs, first, result)
        if _SLIDES.search(name):
            return _slid(name, arguments, first, shape)
        if name in _SOFT:
            return first.over([arguments["dim"]], shape)
        if "norm" in name:
            return _normalised(name, arguments, first, shape)
        if torch.Tag.pointwise not in operator.tags and arguments.get("dim") is not None:
            return first.over(each(arguments["dim"]), shape)
        return self._pointwise(name, operator, args, kwargs, shape)

    def _pointwise(
        self, name: str, operator: Any, args: Args, kwargs: Kwargs, shape: Sequence[int]
    ) -> Field | None:
        if torch.Tag.pointwise not in operator.tags and not _PLAIN.search(name):
            return None
        fields = [field for field in map(self._of, (*args, *kwargs.values())) if field is not None]
        return union(fields, shape)

    def _product(self, a: Any, b: Any, shape: Sequence[int]) -> Field:
        left, right = self._of(a), self._of(b)
        sides = [left.over([-1], (*a.shape[:-1], 1))] if left is not None else []
        if right is not None:
            sides.append(right.over([-2], (*b.shape[:-2], 1, b.shape[-1])))
        return union(sides, shape)

    def _attended(self, factors: Sequence[Tensor], shape: Sequence[int]) -> Field:
        queries, keys, values = (self.of(tensor) for tensor in factors)
        rows = queries.over([-1], (*factors[0].shape[:-1], 1))
        sides = [one.over([-2, -1], (*shape[:-2], 1, 1)) for one in (keys, values)]
        return union([rows, *sides], shape)

    def _put_together(self, operator: Any, args: Args, kwargs: Kwargs) -> Field:
        """Concatenate or stack; tensors not computed from the image, such as a class token, see nothing."""
        blank = torch.tensor(_NOTHING, dtype=torch.int32)
        parts = [self._of(one) or Field((blank.expand(one.shape),) * 4, self._size) for one in args[0]]
        bounds = zip(*(part.bounds for part in parts), strict=True)
        return Field(tuple(operator(list(bound), *args[1:], **kwargs) for bound in bounds), self._size)


# The name of the layer, the index of its call, the path of the tensor in the output.
Output = tuple[str, int, str]


class _FieldsOfOutputs(Observer):
    def __init__(self, fields: ReceptiveFields, wanted: Container[Output] | None) -> None:
        self.found: dict[Output, Field] = {}
        self._fields = fields
        self._wanted = wanted

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            key = call.name, call.index, path
            if self._wanted is None or key in self._wanted:
                self.found[key] = self._fields.of(tensor).slimmed()


def fields_of_outputs(
    model: nn.Module, args: Arguments, wanted: Container[Output] | None = None
) -> dict[Output, Field]:
    """Return the receptive field of every output, or every wanted one, for the first image of one run."""
    fields = ReceptiveFields()
    observer = _FieldsOfOutputs(fields, wanted)
    with HookSession(model, [observer]) as session, fields.follow(args):
        session.run(args)
    return observer.found


def _moved(
    name: str, operator: Any, args: Args, kwargs: Kwargs, first: Field, result: Any
) -> Field | list[Field]:
    """Move the bounds as the elements were."""
    rest = [one.cpu() if isinstance(one, Tensor) else one for one in args[1:]]

    def move(bound: Tensor) -> Any:
        if name == "constant_pad_nd":
            return operator(bound, args[1], _NOTHING)
        if name == "im2col":  # which pads with zeros
            return (operator((bound - _NOTHING).double(), *rest, **kwargs) + _NOTHING).to(torch.int32)
        if _PADS.search(name):
            return operator(bound.double(), *rest, **kwargs).to(torch.int32)
        return operator(bound, *rest, **kwargs)

    if isinstance(result, Tensor):
        return first.changed(move)
    parts = zip(*(move(bound) for bound in first.bounds), strict=True)
    return [Field(part, first.size) for part in parts]


def _slid(name: str, arguments: dict[str, Any], first: Field, shape: Sequence[int]) -> Field:
    """Slide: a convolution takes the union of the channels of a group, a pooling keeps them apart."""
    n_sliding = 1 if "1d" in name else 3 if "3d" in name else 2
    if "weight" in arguments:
        n_sliding = arguments["weight"].ndim - 2
    dims = range(len(shape) - n_sliding, len(shape))
    before = [first.bounds[0].shape[dim] for dim in dims]
    taps = taps_of(name, arguments, before, [shape[dim] for dim in dims])

    def slide(bound: Tensor) -> Tensor:
        few = distinct(bound)
        if "weight" in arguments and few.shape[1] > 1:
            groups = arguments["groups"]
            few = few.unflatten(1, (groups, -1)).amax(2)
            few = few.repeat_interleave(shape[1] // groups, 1) if groups > 1 else few
        for dim, one in zip(dims, taps, strict=True):
            if few.shape[dim] > 1:
                taps_read = few.index_select(dim, one.index.flatten()).unflatten(dim, one.index.shape)
                is_there = one.is_there.view(*one.index.shape, *[1] * (len(shape) - 1 - dim))
                few = torch.where(is_there, taps_read, _NOTHING).amax(dim + 1)
        return few.to(torch.int32).expand(tuple(shape))

    return first.changed(slide)


def _normalised(name: str, arguments: dict[str, Any], first: Field, shape: Sequence[int]) -> Field | None:
    """Normalise: a norm depends on all elements of its mean, on no others with stored statistics."""
    dims = range(len(shape))
    if "layer_norm" in name or "rms_norm" in name:
        return first.over(dims[-len(arguments["normalized_shape"]) :], shape)
    if "group_norm" in name:
        return first.over(dims[1:], shape)
    if "batch_norm" in name:
        return first.over([0, *dims[2:]], shape) if arguments.get("training") else first
    return first.over(each(arguments["dim"]), shape) if arguments.get("dim") is not None else None
