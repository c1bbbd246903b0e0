"""What an exporter gets wrong: the input, or an argument, with which A gives B's values."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from modelscope_cli.records.diff import Cause
from modelscope_cli.records.naming import dtype_name

_NO_EPSILON = 1e-8  # below it, the rounding of float32 hides which number it is
_SUMS = ("add", "__add__")  # of a variance and the epsilon of a norm that is not one of torch's
_LARGEST_EPSILON = 0.1
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
_STEPS = 8  # of the search for the number that B has
_FEWEST = 16  # values of a channel, below which a scale and a shift fit anything
_ALIKE = 1e-3  # residual, relative to B, below which a change explains what is there


# What a function may be told otherwise: its name, the argument and its place, and the values to try, or None for a
# number, which is searched for.
_VARIANTS: tuple[tuple[str, str, int, tuple[Any, ...] | None, str], ...] = (
    *((name, "eps", place, None, "epsilon") for name, place in zip(_NORMS, (7, 4, 4, 7, 3), strict=True)),
    *((name, "eps", 1, None, "epsilon") for name in _SUMS),
    ("interpolate", "mode", 3, ("nearest", "nearest-exact", "bilinear", "bicubic"), "resize_mode"),
    ("interpolate", "align_corners", 4, (True, False), "resize_mode"),
    ("interpolate", "antialias", 6, (True, False), "resize_mode"),
    ("pad", "mode", 2, ("constant", "reflect", "replicate", "circular"), "padding"),
    *((f"conv{n}d", "padding_mode", -1, ("reflect", "replicate", "circular"), "padding") for n in (1, 2, 3)),
    ("gelu", "approximate", -1, ("none", "tanh"), "attribute"),
    ("leaky_relu", "negative_slope", 1, None, "attribute"),
    ("hardtanh", "max_val", 2, None, "attribute"),
    ("hardtanh", "min_val", 1, None, "attribute"),
    ("softmax", "dim", 1, (1, -1, -2, 0), "attribute"),
    ("avg_pool2d", "count_include_pad", 5, (True, False), "padding"),
    ("avg_pool2d", "ceil_mode", 4, (True, False), "attribute"),
    ("max_pool2d", "ceil_mode", 5, (True, False), "attribute"),
)
# What an export adds to the output, or leaves out: functions of it and an axis.
_ENDINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "sigmoid": lambda values, axis: values.sigmoid(),
    "normalize": lambda values, axis: torch.nn.functional.normalize(values, dim=axis),
    "argmax": torch.argmax,
}


@dataclass
class Changed(TorchFunctionMode):
    """Changes one argument of one function wherever it is called; `called` are the names of all functions."""

    function: str
    argument: str
    place: int
    value: Any
    seen: list[Any] = field(default_factory=list)
    is_on: bool = True
    called: set[str] = field(default_factory=set)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "").partition(".")[0]  # of `batch_norm.default` in a program
        if self.is_on:
            self.called.add(name)
        if not self.is_on or name != self.function:
            return func(*args, **kwargs)
        is_placed = 0 <= self.place < len(args)
        ours = args[self.place] if is_placed else kwargs.get(self.argument)
        if self.function in _SUMS and not (isinstance(ours, float) and 0 < ours < _LARGEST_EPSILON):
            return func(*args, **kwargs)
        if self.argument == "padding_mode":
            if len(args) < 5 or isinstance(args[4], str) or not any(args[4]):
                return func(*args, **kwargs)
            sides = [n for size in reversed(args[4]) for n in (size, size)]
            padded = torch.nn.functional.pad(args[0], sides, mode=self.value)
            args, ours = (padded, *args[1:4], 0, *args[5:]), "zeros"
        elif is_placed:
            args = (*args[: self.place], self.value, *args[self.place + 1 :])
        else:
            kwargs[self.argument] = self.value
        self.seen.append(ours)
        if self.argument == "mode" and self.value in ("nearest", "nearest-exact"):
            kwargs["align_corners"] = None
        return func(*args, **kwargs)

    def __str__(self) -> str:
        theirs, ours = (
            f"{one:.4g}" if isinstance(one, float) else repr(one) for one in (self.value, self.seen[0])
        )
        if self.argument == "eps" and self.value < _NO_EPSILON:
            theirs = f"below {_NO_EPSILON:g}"
        values = f"{theirs} in B and {'the default' if self.seen[0] is None else ours} in A"
        return f"{self.argument} of {self.function} is {values}: with the value of B, A computes B's output"


def apart(a: Tensor, b: Tensor) -> float:
    """Return |a - b| / |b|; infinite for other shapes."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.detach().cpu().double().nan_to_num(), b.detach().cpu().double().nan_to_num()
    size = b.norm().item()
    return (a - b).norm().item() / size if size else (0.0 if not a.norm().item() else math.inf)


def explains(found: Tensor | None, a: Tensor | None, b: Sequence[Tensor], tolerance: float) -> bool:
    """Tell whether a value of a changed A is one of B's, and much nearer to it than that of the unchanged A."""
    if found is None or a is None or not b:
        return False
    distance = min(apart(found, one) for one in b)
    return distance <= max(tolerance, 1e-6) and distance < 0.1 * min(apart(a, one) for one in b)


def find_ending(a: Tensor | None, b: Tensor | None, tolerance: float) -> str | None:
    """Return the function of which `b` is the value at `a`; None for none, or where any input would give `b`."""
    if a is None or b is None or a.ndim < 2 or not a.is_floating_point():
        return None
    for name, function in _ENDINGS.items():
        for axis in {1, a.ndim - 1}:
            found, of_zeros = (function(one.float(), axis) for one in (a, torch.zeros_like(a)))
            if explains(found, a, (b,), tolerance) and explains(found, of_zeros, (b,), tolerance):
                return name
    return None


def find_change(
    compute: Callable[[Changed], Tensor | None],
    a: Tensor,
    b: Sequence[Tensor],
    tolerance: float,
    numbers: Sequence[float] = (),
) -> tuple[Changed, str] | None:
    """Return the argument of a function with which A gives a value of B, and the kind of cause it is.

    Args:
        compute: gives A's value under a change, None where A does not take it; `a` is that without one.
        numbers: those that stand in B, which are tried before any is searched for.
    """
    compute(unchanged := Changed("", "", -1, None))
    for function, argument, place, values, kind in _VARIANTS:
        if function not in unchanged.called:
            continue
        for value in values or (*numbers, None):
            changed = Changed(function, argument, place, 1e-3 if value is None else value)
            for nearest in _searched(compute, a, b, changed) if value is None else (changed,):
                if explains(compute(nearest), a, b, tolerance):
                    return nearest, kind
    return None


def _searched(
    compute: Callable[[Changed], Tensor | None], a: Tensor, b: Sequence[Tensor], changed: Changed
) -> tuple[Changed, ...]:
    """Search for the number with which A comes nearest to B: by secants, on the line between two of A's values.

    Returns:
        it to two digits, as people write it, then as it was found; empty if A does not take such a number.
    """
    target = next((one.detach().cpu().double() for one in b if one.shape == a.shape), None)
    found = compute(changed) if target is not None else None
    if changed.seen[:1] == [changed.value]:  # from where no line leads anywhere
        changed = replace(changed, value=changed.value / 2, seen=[])
        found = compute(changed)
    if target is None or found is None or not changed.seen:
        return ()
    before, value = float(changed.seen[0] or 0.0), float(changed.value)
    old = a.detach().cpu().double()
    for _ in range(_STEPS):
        new = found.detach().cpu().double()
        slope = new - old
        size = slope.square().sum().item()
        if not 0 < size < math.inf:
            break
        share = ((target - old) * slope).sum().item() / size
        before, value = value, before + share * (value - before)
        if changed.argument == "eps":
            value = max(value, 1e-3 * before)
        if abs(value - before) <= 1e-6 * abs(value):
            break
        old, changed = new, replace(changed, value=value, seen=[])
        if (found := compute(changed)) is None or found.shape != target.shape:
            return ()
    rounded = replace(changed, value=float(f"{changed.value:.2g}"), seen=[])
    return rounded, replace(changed, seen=[])


# What enters B


def of_input(a: Tensor, b: Tensor, given: Tensor) -> Cause | None:
    """Explain what enters B by what enters A, where `given` is the input of both: axes, channels, range, mean and
    standard deviation, precision."""
    if a.ndim == 4 and b.shape == a.permute(0, 2, 3, 1).shape != a.shape:
        if apart(a.permute(0, 2, 3, 1), b) < _ALIKE:
            message = "the inputs already differ: B takes them with the channels last"
            hint = "give B images as N, H, W, C, or export with channels second"
            return Cause("axis_order", None, message, hint)
        b = b.permute(0, 3, 1, 2)
    if a.ndim == 4 and b.shape == a.mT.shape and apart(a.mT, b) < _ALIKE < apart(a, b):
        message = "the inputs already differ: B swaps height and width"
        return Cause("axis_order", None, message, "give both images of N, C, H, W")
    if a.shape != b.shape or a.ndim < 3 or a[:, 0].numel() < _FEWEST:
        return None
    n = a.shape[1]
    every = itertools.permutations(range(n)) if n <= 4 else (range(n), reversed(range(n)))
    orders = [*map(tuple[int, ...], every)]
    fits = [(order, *_fitted(a[:, list(order)], b)) for order in orders]
    order, scale, shift, residual = min(fits, key=lambda fit: fit[3])
    if residual > _ALIKE:
        return None
    if order != tuple(range(n)):
        named = "blue, green, red" if order == (2, 1, 0) else ", ".join(map(str, order))
        message = f"the inputs already differ: B takes the channels in the order {named}"
        return Cause("channel_order", None, message, "give A and B the channels in the same order")
    if (kind := coarse(b)) is not None and coarse(a) is None:
        return Cause("cast", None, f"the inputs already differ: B rounds them to {kind}", "export in float32")
    if (scale - 1).abs().max() < 1e-3 and shift.abs().max() < 1e-3:
        return None  # the same except for what no factor explains
    if scale.std(correction=0) < 1e-3 * scale.abs().mean() and shift.abs().max() < 1e-3:
        message = f"the inputs already differ: those of B are {scale.mean():.4g} times those of A"
        return Cause("input_range", None, message, "scale the inputs of B to the range of those of A")
    text = f"B's are {_listed(scale)} times A's plus {_listed(shift)}, by channel"
    owns = [(side, _normalisation(given, one)) for side, one in zip("AB", (a, b), strict=True)]
    (first, ours), (second, theirs) = sorted(owns, key=lambda own: own[1] == "does not")
    if ours and theirs:
        text = f"{first} normalises its input inside the model {ours}, and {second} {theirs}"
    hint = "give both the same normalisation, inside or before them"
    return Cause("preprocessing", None, f"the inputs already differ: {text}", hint)


def _normalisation(given: Tensor, entering: Tensor) -> str | None:
    """Return with which mean and std what is given becomes what enters, in words; None if there are none."""
    scale, shift, residual = (
        _fitted(given, entering) if given.shape == entering.shape else (given, given, 1.0)
    )
    if residual > _ALIKE:
        return None
    is_none = (scale - 1).abs().max() < _ALIKE and shift.abs().max() < _ALIKE
    return "does not" if is_none else f"with mean {_listed(-shift / scale)} and std {_listed(1 / scale)}"


def _fitted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, float]:
    """Fit b = scale * a + shift for every channel; the residual is relative to the spread of b."""
    x = a.detach().cpu().double().transpose(0, 1).flatten(1)
    y = b.detach().cpu().double().transpose(0, 1).flatten(1)
    dx, dy = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    scale = (dx * dy).sum(1) / dx.square().sum(1).clamp_min(1e-30)
    shift = y.mean(1) - scale * x.mean(1)
    left = (scale[:, None] * x + shift[:, None] - y).norm().item()
    return scale.float(), shift.float(), left / max(dy.norm().item(), 1e-30)


def _listed(values: Tensor) -> str:
    return " ".join(f"{value:.3g}" for value in values.tolist()[:4]) + (" ..." if len(values) > 4 else "")


def coarse(tensor: Tensor) -> str | None:
    """Return the coarsest type that holds all values; None for none, for few values and those of a fixed step."""
    values = tensor.detach().cpu().float()
    top = values.abs().max().item() if values.unique().numel() > 16 else 0.0
    for dtype in (torch.bfloat16, torch.float16):
        if tensor.dtype == dtype:
            return dtype_name(dtype)
        if 0 < top < math.inf and bool((values.to(dtype).float() == values).all()):
            step = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(top))  # between the largest values
            is_fixed = any(bool((values % one == 0).all()) for one in (step, 1.0))
            return None if is_fixed else dtype_name(dtype)
    return None
