"""Common base of all hooks: the calls they select, their action on a tensor, and its counts."""

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.devices import widest_float
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.actions import LeftAloneError, TensorPlace, change, part_of
from modelscope_cli.hooks.layers import ChannelFinder, map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, Intervention
from modelscope_cli.hooks.spec import READ_ONLY, HookSpec
from modelscope_cli.records.naming import dtype_name, with_article
from modelscope_cli.records.run import Args, CallInputs, Kwargs


def differs(before: Tensor, after: Tensor) -> Tensor:
    """Return a mask of the values that differ; NaN equals NaN."""
    is_new = before != after
    if before.is_floating_point() or before.is_complex():
        is_new &= ~(before.isnan() & after.isnan())
    return is_new


@dataclass(slots=True)
class HookCounts:
    """Counts for one hook."""

    fired: int = 0
    numel: int = 0
    # The calls it fired at, as `(layer name, call index)`
    fired_at: set[tuple[str, int]] = field(default_factory=set)
    left_alone: str | None = None  # why tensors were passed on unchanged
    saved: dict[str, Tensor] = field(default_factory=dict)  # copies by label, still on their device
    _changed: dict[torch.device, Tensor] = field(default_factory=dict)
    _largest: dict[torch.device, Tensor] = field(default_factory=dict)

    def fire(self, call: Call) -> None:
        self.fired += 1
        self.fired_at.add((call.name, call.index))

    @torch.no_grad()
    def compare(self, before: Tensor, after: Tensor) -> None:
        """Count the changes of a tensor; NaN that stays NaN is unchanged."""
        self.numel += before.numel()
        if before is after or not before.numel() or before.layout is not torch.strided:
            return
        is_new = differs(before, after)
        wide = torch.promote_types(before.dtype, torch.float32)
        gap = (after.to(wide) - before.to(wide)).abs().nan_to_num(0.0, posinf=0.0)
        device = before.device
        largest, n_changed = gap.amax().to(widest_float(device)), torch.count_nonzero(is_new)
        if device in self._changed:
            largest = torch.maximum(largest, self._largest[device])
            n_changed = n_changed + self._changed[device]
        self._largest[device], self._changed[device] = largest, n_changed

    @property
    def max_abs_difference(self) -> float | None:
        """Largest |after - before| over values finite before and after; None where nothing was compared."""
        if not self.numel:
            return None
        return max((float(largest) for largest in self._largest.values()), default=0.0)

    @property
    def changed_fraction(self) -> float | None:
        return sum(int(n) for n in self._changed.values()) / self.numel if self.numel else None


def _form(value: Any) -> Any:
    return [(path, tuple(tensor.shape), tensor.dtype, tensor.device) for path, tensor in tensors_in(value)]


def _words(value: Any) -> str:
    shapes = [
        f"{'x'.join(map(str, t.shape)) or 'scalar'} {dtype_name(t.dtype)}" for _, t in tensors_in(value)
    ]
    if isinstance(value, Tensor):
        return f"a tensor of {shapes[0]}"
    return with_article(type(value).__name__) + (f" of {', '.join(shapes)}" if shapes else "")


def _source(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "its function"


def describe(tensor: Tensor) -> str:
    """Return one line: shape, dtype and the distribution of the finite values."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    dtype = dtype_name(tensor.dtype)
    if tensor.is_complex():
        return f"{shape} {dtype}"
    values = tensor.detach().cpu().double()
    finite = values[values.isfinite()]
    n_nan, n_inf = int(values.isnan().sum()), int(values.isinf().sum())
    non_finite = [f"{n} {word}" for n, word in ((n_nan, "NaN"), (n_inf, "infinite")) if n]
    if not finite.numel():
        return ", ".join([f"{shape} {dtype}", "no finite value", *non_finite])
    figures = f"mean {finite.mean():.4g}, std {finite.std(correction=0):.4g}"
    return ", ".join(
        [f"{shape} {dtype}", figures, f"{finite.amin():.4g} .. {finite.amax():.4g}", *non_finite]
    )


class HookPass(Intervention):
    """First intervention, which changes nothing and holds the state of the pass for the hooks.

    Args:
        seed: of noise and shuffling, equal for the same call of the same pass in every session.
    """

    def __init__(self, seed: int) -> None:
        self.number = 0  # 1 in the first pass of a session
        self._channels = ChannelFinder()
        self._seed = seed

    def begin(self, *, is_again: bool) -> None:
        if is_again:
            self.number -= 1  # the number of the pass seeds noise and shuffling

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        if call.depth == 0:
            self.number += 1
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        self._channels.see(module, output)
        return output

    def detach(self) -> None:
        self.number = 0

    def place(self, module: nn.Module, tensor: Tensor, *key: Any) -> TensorPlace:
        """Return the place of an input or output of `module`, with a seed that depends on the pass and `key`."""
        seed = zlib.crc32(repr((self._seed, self.number, *key)).encode())
        return TensorPlace(self._channels.find(module, tensor), seed)


def name_of_call(call: Call) -> str:
    """Return the layer name as in patterns, or the type for the model itself."""
    return call.label or call.type


@dataclass(frozen=True, slots=True)
class HookSpot:
    """Where a hook fires."""

    words: str  # text before the label: `the output of`
    label: str  # of a call
    path: str = ""  # which tensor of several; empty for a single one

    def __str__(self) -> str:
        return f"{self.words} {self.label}" + (f" [{self.path}]" if self.path else "")

    @property
    def key(self) -> str:
        """Its name in a file of tensors."""
        return f"{self.label}.{self.path}" if self.path else self.label


@dataclass(frozen=True, slots=True)
class BoundHook:
    """One `--hook` bound to a model."""

    spec: HookSpec
    number: int  # its place on the command line, from 0
    names: tuple[str, ...]  # the selected layers, in the order of the model
    # The exact calls in the same order if its pattern selects calls; else None
    calls: tuple[tuple[str, int], ...] | None
    function: Callable[..., Any] | None  # the user's function, for `call`
    say: Callable[[str], None]  # callback for the lines of `print`

    def means(self, call: Call) -> bool:
        if self.calls is not None:
            return (call.name, call.index) in self.calls
        return call.name in self.names


class HookBase(Intervention):
    """One active `--hook`; a subclass per kind. `tally`: what counts, but not when a pass is repeated."""

    def __init__(self, target: BoundHook, current: HookPass) -> None:
        self.target = target
        self.spec = target.spec
        self.tally = self.counted = HookCounts()
        self.current = current

    def begin(self, *, is_again: bool) -> None:
        self.counted = HookCounts() if is_again else self.tally

    def act_on_each(self, value: Any, spot: HookSpot, place: Callable[[Tensor, int], TensorPlace]) -> Any:
        """Return `value`, an input or output, with the action applied to each selected tensor."""
        tensors = tensors_in(value)
        numbers = iter(range(len(tensors)))

        def act(path: str, tensor: Tensor) -> Tensor:
            where = replace(spot, path=path) if len(tensors) > 1 else spot
            return self.act(tensor, place(tensor, next(numbers, 0)), where)

        return map_tensors(value, act)

    def act(self, tensor: Tensor, place: TensorPlace, spot: HookSpot) -> Tensor:
        """Apply the action to one tensor and count its effect."""
        last = max((last for _, last in self.spec.channels), default=-1)
        if place.channel_dim is not None and last >= tensor.shape[place.channel_dim]:
            n = tensor.shape[place.channel_dim]
            message = f"--hook '{self.spec}': channel {last} does not exist at {spot}, only 0..{n - 1}"
            raise UsageError(message, f"--hook '{replace(self.spec, channels=((0, n - 1),))}'")
        try:
            if self.spec.action in READ_ONLY:
                self._look(part_of(self.spec, tensor, place), spot)
                return tensor
            changed = change(self.spec, tensor, place)
        except LeftAloneError as reason:
            self.counted.left_alone = self.counted.left_alone or f"{spot}: {reason}"
            return tensor
        self.counted.compare(tensor, changed)
        return changed

    def _look(self, tensor: Tensor, spot: HookSpot) -> None:
        if self.spec.action == "raise-on-nan":
            if n_nan := int(tensor.isnan().sum()):
                message = f"--hook '{self.spec}': {n_nan:,} of {tensor.numel():,} values are NaN: {spot}"
                cure = str(self.spec).replace("raise-on-nan", "nan-to-num", 1)
                raise CannotRunError(message, f"--hook '{cure}'   continues with zeros in their place")
        elif self.counted is not self.tally:
            return  # printed and saved the first time
        elif self.spec.action == "print":
            self.target.say(f"{self.spec.head} {spot.key}: {describe(tensor)}")
        else:
            again = f"/{self.current.number}" if self.current.number > 1 else ""
            self.counted.saved[spot.key + again] = tensor.detach().clone(
                memory_format=torch.contiguous_format
            )

    def call_function(self, arguments: tuple[Any, ...], given: Any, spot: HookSpot) -> Any:
        """Return the result of the user's function; if that is None, `given` with what it wrote into it.

        The function is handed copies, so what it writes into them reaches no other tensor that shares their memory,
        as after `Identity` or dropout.

        Args:
            arguments: PyTorch's arguments for a hook of this kind, `given` among them.
        """
        function = self.target.function
        assert function is not None
        copies: dict[int, Tensor] = {}

        def copied(_: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.clone()
            return copies[id(tensor)]

        handed = (one if isinstance(one, nn.Module) else map_tensors(one, copied) for one in arguments)
        result = answer = function(*handed)
        if answer is None:
            written = map_tensors(given, copied)
            pairs = zip(tensors_in(given), tensors_in(written), strict=True)
            result = written if any(bool(differs(old, new).any()) for (_, old), (_, new) in pairs) else given
        elif self.spec.kind == "pre" and not isinstance(answer, tuple):
            result = (answer,)
        if _form(result) != _form(given):
            what = f"{_source(function)} returned {_words(answer)}, not {_words(given)}"
            raise CannotRunError(
                f"--hook '{self.spec}': at {spot} {what}",
                "return None to keep it, or a new one of the same shape and dtype",
            )
        for (_, old), (_, new) in zip(tensors_in(given), tensors_in(result), strict=True):
            self.counted.compare(old, new.detach())
        return result
