"""Resolve layer patterns to exact calls; parameters used without a call count as a use."""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, UntypedStorage, nn, strided
from torch.nn.parameter import is_lazy

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers, map_tensors, tensors_in
from modelscope_cli.hooks.other_shapes import on_twin
from modelscope_cli.hooks.patterns import (
    EVERY_LAYER,
    Layer,
    Pattern,
    explain,
    falls_short,
    match_layers,
    parse_pattern,
    pick_calls,
)
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.hooks.torch_private import operators_shown_to
from modelscope_cli.records.naming import layer_of
from modelscope_cli.records.run import Args, Arguments, Kwargs


def storages_in(value: Any) -> list[UntypedStorage]:
    """Return the storages of the tensors that an operator takes or returns, alone or in lists.

    They are compared by identity, as all meta storages have address 0.
    """
    if isinstance(value, Tensor):
        try:
            return [] if is_lazy(value) or value.layout is not strided else [value.untyped_storage()]
        except RuntimeError:  # a tensor subclass without storage
            return []
    parts = value if isinstance(value, list | tuple) else ()
    return [storage for one in parts for storage in storages_in(one)]


class TensorUse:
    """Records which layers' tensors are used by operators."""

    def __init__(self, model: nn.Module) -> None:
        # Names of the layers with a used parameter or buffer of their own, tied ones included
        self.layers: set[str] = set()
        self._owners: dict[int, tuple[UntypedStorage, set[str]]] = {}
        named = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        for name, tensor in named:
            for storage in storages_in(tensor):  # kept alive, so that its id is not reused
                self._owners.setdefault(id(storage), (storage, set()))[1].add(layer_of(name))

    def see(self, storages: list[UntypedStorage]) -> None:
        """Record the arguments of an operator."""
        for storage in storages:
            if id(storage) in self._owners:
                self.layers |= self._owners[id(storage)][1]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected layers and calls."""

    names: frozenset[str] | None = None  # the selected layers; None for all
    # The exact calls, if known before the pass; the forward can stop after the last
    wanted: frozenset[tuple[str, int]] | None = None
    is_innermost_only: bool = False  # whether to skip blocks, whose output is that of an inner layer
    notes: tuple[str, ...] = ()  # how ambiguous patterns were read
    is_by_call: bool = False  # whether the patterns name calls

    def means(self, name: str, index: int, is_innermost: bool) -> bool:
        """Tell whether a call is selected: by layer name, call index and whether no other call is inside it."""
        if self.is_innermost_only and not is_innermost:
            return False
        if self.wanted is not None:
            return (name, index) in self.wanted
        return self.names is None or name in self.names


def select(
    model: nn.Module,
    layers: Sequence[str],
    exclude: Sequence[str],
    args: Arguments,
    *,
    is_feedforward: bool = False,
) -> Selection:
    """Resolve `--layer` (a union; none means every layer) less `--exclude`.

    Args:
        args: arguments of the model, whose shapes decide the order of calls.
        is_feedforward: every layer that has parameters of its own runs at most once, as in torchvision's
            classifiers. Then the last selected call is known without a trial run.
    """
    if not layers and not exclude:
        return Selection(is_innermost_only=True)
    present = list_layers(model)
    every = [layer for layer, _ in present]
    take = [parse_pattern(text) for text in layers] or [EVERY_LAYER]
    leave = [parse_pattern(text) for text in exclude]
    excluded = _names(leave, every)
    names = _names(take, every)
    names -= excluded if not any(pattern.is_positional for pattern in leave) else frozenset()
    if not names:
        raise _nothing_left(exclude)
    notes = tuple(filter(None, (explain(pattern, every) for pattern in take)))
    is_positional = any(pattern.is_positional for pattern in (*take, *leave))
    by_name = Selection(names, None, not layers, notes, is_positional)
    modules = {layer.name: module for layer, module in present}
    if not is_positional:
        if not layers:
            return by_name
        if is_feedforward and all(
            (next(modules[name].parameters(recurse=False), None) is not None) for name in names
        ):
            return replace(by_name, wanted=frozenset((name, 0) for name in names))
    calls = trace_calls(model, args, may_run=is_positional)
    if calls is None:
        return by_name
    order = [(call.name, call.index) for call in calls]
    wanted = {pair for pattern in take for pair in pick_calls(pattern, every, order)}
    short = tuple(filter(None, (falls_short(pattern, every, order) for pattern in take)))
    by_name = replace(by_name, notes=(*notes, *short))
    wanted -= {pair for pattern in leave for pair in pick_calls(pattern, every, order)}
    if not wanted and leave:
        raise _nothing_left(exclude)
    if not wanted:  # only layers that do not run, which takes a full pass to show
        return by_name
    # Drop layers that run, but not at a selected position; layers that do not run have none.
    names_at_positions = {name for name, _ in wanted}
    idle = _names([pattern for pattern in take if not pattern.is_positional], every) - {
        name for name, _ in order
    }
    return replace(by_name, wanted=frozenset(wanted), names=names & (names_at_positions | idle))


def _nothing_left(exclude: Sequence[str]) -> UsageError:
    return UsageError(f"--exclude '{exclude[0]}' leaves no layer", "leave out --exclude")


def names_of(
    model: nn.Module,
    layers: Sequence[str],
    exclude: Sequence[str],
    is_offered: Callable[[nn.Module], bool] = lambda module: True,
) -> frozenset[str]:
    """Return the names of the layers matched by patterns without positions; no `layers` means all.

    Args:
        is_offered: whether the error for a pattern without a match may propose a layer.
    """
    present = list_layers(model)
    offered = [layer for layer, module in present if is_offered(module)]
    return names_among([layer for layer, _ in present], layers, exclude, offered)


def names_among(
    every: Sequence[Layer],
    layers: Sequence[str],
    exclude: Sequence[str],
    offered: Sequence[Layer] | None = None,
) -> frozenset[str]:
    """Return the matching names among `every`, which may be the layers of several models; see `match_layers`."""
    take = [parse_pattern(text) for text in layers] or [EVERY_LAYER]
    leave = [parse_pattern(text) for text in exclude]
    for pattern in (*take, *leave):
        if pattern.is_positional:
            message = f"layer pattern '{pattern}' names calls, which are not known here yet"
            raise UsageError(message, f"try {shlex.quote(pattern.body or '*')}")
    return _names(take, every, offered) - _names(leave, every)


def _names(
    patterns: Sequence[Pattern], layers: Sequence[Layer], offered: Sequence[Layer] | None = None
) -> frozenset[str]:
    return frozenset(layer.name for pattern in patterns for layer in match_layers(pattern, layers, offered))


def uncalled(
    model: nn.Module, selection: Selection, called_names: Iterable[str], args: Arguments
) -> tuple[str, ...]:
    """Return the names of the selected layers that are not among `called_names`.

    If no layers were requested, of all leaf layers unused in a forward with `args`: a layer whose `.weight` is used
    without calling it is not reported.
    """
    called = set(called_names)
    missing = {
        layer.name: module
        for layer, module in list_layers(model)
        if (layer.is_leaf or not selection.is_innermost_only)
        and (selection.names is None or layer.name in selection.names)
        and layer.name not in called
    }
    owned = (
        x for one in missing.values() for x in (*one.parameters(recurse=False), *one.buffers(recurse=False))
    )
    if selection.is_innermost_only and next(owned, None) is not None:
        used = _used_directly(model, args)
        return tuple(name for name in missing if name not in used)
    return tuple(missing)


def _used_directly(model: nn.Module, args: Arguments) -> set[str]:
    """Return the layers whose own tensors a forward uses; empty if it cannot be run again."""
    with suppress(Exception):  # errors of the forward were already reported
        return _on_twin(model, args, _watch_use)
    with suppress(Exception):
        return _watch_use(model, args)
    return set()


def _watch_use(model: nn.Module, args: Arguments) -> set[str]:
    use = TensorUse(model)

    def see(operator: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        use.see(storages_in((*args, *kwargs.values())))

    with HookSession(model) as session, operators_shown_to(see):
        session.run(args)
    return use.layers


class _CallRecorder(Observer):
    def __init__(self) -> None:
        self.calls: list[Call] = []

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self.calls.append(call)


def trace_calls(model: nn.Module, args: Arguments, *, may_run: bool = True) -> list[Call] | None:
    """Return the calls of one pass in the order they begin.

    Tried first on a meta copy of the model, which is cheap and leaves the model untouched; if the forward needs
    real values, the model itself is run.

    Returns:
        None if the copy does not run and `may_run` is False.
    """
    try:
        return _on_twin(model, args, _watch_calls)
    except Exception:  # copying may run any code of the model's attributes
        return _watch_calls(model, args) if may_run else None


def _watch_calls(model: nn.Module, args: Arguments) -> list[Call]:
    recorder = _CallRecorder()
    with HookSession(model, [recorder]) as session:
        session.run(args)
    return recorder.calls


def _on_twin(model: nn.Module, args: Arguments, watch: Callable[[nn.Module, Arguments], T]) -> T:
    on_meta: Arguments = map_tensors(args, lambda _, tensor: tensor.to("meta"))
    return on_twin(model, lambda twin: watch(twin, on_meta))


# Nodes of the graph of autograd after which probabilities are the same ones.
_COPIES = re.compile(
    "Cat|Stack|Clone|ToCopy|Clamp|Slice|Select|Unbind|Split|Alias|Expand|T|(Unsafe)?View|.*Reshape.*|(Un)?[Ss]queeze|Transpose|Permute"
)


def made_by_sigmoid(model: nn.Module, args: Arguments, path: str) -> bool:
    """Tell whether the tensor at `path` of the output is that of a sigmoid, by a copy on the meta device, else with
    values. Its graph tells, or without one, as of a quantized model, the layer that returned it."""
    returned: list[Any] = []

    def is_one(node: Any) -> bool:
        kind = node.name().partition("Backward")[0] if node is not None else ""
        return kind == "Sigmoid" or (
            _COPIES.fullmatch(kind) is not None and all(is_one(one) for one, _ in node.next_functions)
        )

    def watch(on_meta: bool, twin: nn.Module) -> bool:
        for module in twin.requires_grad_().modules():
            module.__dict__.pop("forward", None)  # a session may have wrapped that of the model itself
            if isinstance(module, nn.Sigmoid):
                module.register_forward_hook(lambda *call: returned.append(call[2]))
        given: Arguments = map_tensors(
            args, lambda _, one: one.to("meta") if on_meta else one.detach().clone()
        )
        output = twin(**given) if isinstance(given, dict) else twin(*given)
        found = dict(tensors_in(output))[path]
        return is_one(found.grad_fn) or any(found is one for one in returned)

    for on_meta in (True, False):
        with suppress(Exception), torch.enable_grad():  # of the model, such as on meta tensors
            return on_twin(model, partial(watch, on_meta), with_hooks=False, on_meta=on_meta)
    return False


def gets_through(model: nn.Module, args: Arguments, layer: str) -> bool:
    """Tell whether a forward with `args` gets through a layer, on a meta copy."""

    class ThroughError(Exception):
        pass

    def stop(layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dtype == torch.uint8:
            raise TypeError  # on meta, a layer without a bias takes bytes
        raise ThroughError

    def run(twin: nn.Module, args: Arguments) -> bool:
        twin.get_submodule(layer).register_forward_hook(stop)
        with torch.no_grad():
            twin(*args)
        return True

    try:
        return _on_twin(model, args, run)
    except ThroughError:
        return True
    except Exception:  # the forward may raise anything for unsuitable inputs
        return False
