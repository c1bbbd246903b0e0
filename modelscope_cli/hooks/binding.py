"""Bind each `--hook` to the layers of a model, on forward or backward, and report its effects."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.actions import TensorPlace
from modelscope_cli.hooks.hook_base import (
    BoundHook,
    HookBase,
    HookPass,
    HookSpot,
    differs,
    memory_of,
    name_of_call,
    node_of,
)
from modelscope_cli.hooks.layers import list_layers, map_tensors, tensors_in
from modelscope_cli.hooks.patterns import explain, parse_pattern
from modelscope_cli.hooks.selection import names_of, select
from modelscope_cli.hooks.session import Call, Intervention
from modelscope_cli.hooks.spec import HookSpec, about_pattern
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Args, Arguments, CallInputs, HookReport, Kwargs


class _OnValues(HookBase):
    """A hook on values, which tracks aliases of tensors that a user's function changes in place."""

    def _change(
        self, value: Any, call: Call, module: nn.Module, words: str, arguments: tuple[Any, ...]
    ) -> Any:
        spot = HookSpot(words, name_of_call(call))
        self.counted.fire((call.name, call.index))
        if self.target.function is not None:
            return self.call_function(arguments, value, spot, partial(self._wrote_to, call))

        def place(tensor: Tensor, n: int) -> TensorPlace:
            return self.current.place(module, tensor, self.target.number, spot.label, n)

        return self.act_on_each(value, spot, place)

    def _wrote_to(self, call: Call, tensor: Tensor, version: int) -> None:
        where = f"{'the input' if self.spec.kind == 'pre' else 'the output'} of {name_of_call(call)}"
        for words in self.current.values.others(name_of_call(call), tensor, version):
            if words != where:
                self.counted.moved[words] = None


class PreHook(_OnValues):
    """`pre`: changes what a layer is called with."""

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        if not self.target.means(call):
            return args, kwargs
        if self.target.function is not None:  # PyTorch's hook signature has no keyword arguments
            return self._change(args, call, module, "the input of", (module, args)), kwargs
        named = {**{str(n): value for n, value in enumerate(args)}, **kwargs}
        changed = self._change(named, call, module, "the input of", ())
        return tuple(changed[str(n)] for n in range(len(args))), {name: changed[name] for name in kwargs}


class ForwardHook(_OnValues):
    """`forward`: changes the output of a layer."""

    def change_output(self, call: Call, module: nn.Module, inputs: CallInputs, output: Any) -> Any:
        if not self.target.means(call):
            return output
        return self._change(output, call, module, "the output of", (module, inputs[0], output))


Nodes = frozenset[Node]


class _OnGradients(HookBase):
    def _wrote_to(self, nodes: Nodes, tensor: Tensor, version: int) -> None:
        for words in self.current.gradients.others(tensor, nodes):
            self.counted.moved[words] = None

    def _arrive(
        self, spot: HookSpot, at: Sequence[tuple[str, int]], place: TensorPlace, nodes: Nodes, grad: Tensor
    ) -> Tensor | None:
        """Handle a gradient as a tensor hook, whose result PyTorch uses instead."""
        self.counted.fire(*at)
        if self.target.function is not None:
            changed = self.call_function((grad,), grad, spot, partial(self._wrote_to, nodes))
        else:
            changed = self.act(grad, place, spot)
        return None if changed is grad else changed


class GradHook(_OnGradients):
    """`grad`: changes the gradient at a layer's outputs, by a tensor hook on each."""

    def __init__(self, target: BoundHook, current: HookPass) -> None:
        super().__init__(target, current)
        self._handles: list[RemovableHandle] = []

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        if call.depth == 0:  # keep earlier passes that can still run backward
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if not self.target.means(call):
            return output
        tensors = tensors_in(output)
        self.check_index(len(tensors), HookSpot("the output of", name_of_call(call)))
        numbers = iter(range(len(tensors)))
        inputs_given = [tensor for _, tensor in tensors_in(inputs)]

        def listen(path: str, tensor: Tensor) -> Tensor:
            n = next(numbers, 0)
            if self.spec.index not in (None, n) or not tensor.requires_grad:
                return tensor
            # A layer that returns its input shares that tensor with other readers.
            mine = tensor.view_as(tensor) if any(tensor is other for other in inputs_given) else tensor
            spot = HookSpot("the gradient at the output of", name_of_call(call), path)
            place = self.current.place(module, mine, self.target.number, spot.key)
            arrive = partial(self._arrive, spot, [(call.name, call.index)], place, _nodes(mine))
            self._handles.append(mine.register_hook(arrive))
            return mine

        return map_tensors(output, listen)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class ParamGradHook(_OnGradients):
    """`param-grad`: changes the gradients of a layer's parameters, those below it included."""

    def __init__(self, target: BoundHook, current: HookPass) -> None:
        super().__init__(target, current)
        self._owners: dict[nn.Parameter, list[str]] = {}  # a block and a layer inside it may both be selected

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        return list(self._attach(name, module)) if name in self.target.names else ()

    def _attach(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        parameters = list(module.named_parameters(prefix=name))
        self.check_index(len(parameters), HookSpot("the parameters of", name))
        for n, (path, parameter) in enumerate(parameters):
            if self.spec.index in (None, n) and parameter.requires_grad:
                owners = self._owners.setdefault(parameter, [])
                owners.append(name)
                if len(owners) == 1:
                    yield parameter.register_hook(partial(self._arrive_at, parameter, path))

    def _arrive_at(self, parameter: nn.Parameter, path: str, grad: Tensor) -> Tensor | None:
        seed = self.current.seed_for(self.target.number, path)
        place = TensorPlace(0 if parameter.ndim else None, False, seed)
        owners = [(name, 0) for name in self._owners[parameter]]
        return self._arrive(HookSpot("the gradient of", path), owners, place, _nodes(parameter), grad)

    def detach(self) -> None:
        self._owners.clear()


class FullBackwardHook(_OnGradients):
    """`full-backward`: changes the gradients of a layer's inputs, by PyTorch's module hook."""

    def __init__(self, target: BoundHook, current: HookPass) -> None:
        super().__init__(target, current)
        self._calls: dict[str, deque[tuple[Call, Nodes]]] = {}
        self._entered: dict[tuple[str, int], Nodes] = {}
        self._attached: list[tuple[nn.Module, RemovableHandle, dict[str, Any]]] = []

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        if name not in self.target.names:
            return ()
        before = dict(vars(module))
        handle = module.register_full_backward_hook(partial(self._fire, name))
        written = {key: was for key, was in before.items() if vars(module)[key] is not was}
        self._attached.append((module, handle, written))
        return [handle]

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        if call.depth == 0:
            self._forget()
        if call.name in self.target.names:
            self._entered[call.name, call.index] = _nodes((args, kwargs))
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if call.name in self.target.names:
            nodes = self._entered.get((call.name, call.index), frozenset()) | _nodes(output)
            self._calls.setdefault(call.name, deque()).append((call, nodes))
        return output

    def _fire(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        if name not in self._calls:  # PyTorch also calls it after the session, for a forward made in it
            return None
        # Calls of a layer run backward in reverse order, also in a second backward pass through the same graph.
        call, nodes = self._calls[name][-1]
        self._calls[name].rotate()
        if not self.target.means(call):
            return None
        spot = HookSpot("the gradient at the input of", name_of_call(call))
        self.counted.fire((call.name, call.index))
        if not tensors_in(grad_input):
            self.counted.left_alone = f"{spot}: its inputs do not take gradients"
        if self.target.function is not None:
            arguments = (module, grad_input, grad_output)
            moved = partial(self._wrote_to_input, nodes, spot, grad_input)
            changed = self.call_function(arguments, grad_input, spot, moved)
        else:

            def place(tensor: Tensor, n: int) -> TensorPlace:
                return self.current.place(module, tensor, self.target.number, spot.label, n)

            changed = self.act_on_each(grad_input, spot, place)
        return None if changed is grad_input else changed

    def _wrote_to_input(
        self, nodes: Nodes, spot: HookSpot, grad_input: Any, tensor: Tensor, version: int
    ) -> None:
        self._wrote_to(nodes, tensor, version)
        twins = [path for path, other in tensors_in(grad_input) if memory_of(other) == memory_of(tensor)]
        for path in twins[1:]:  # an addition passes one gradient to both of its inputs
            self.counted.moved[str(replace(spot, path=path))] = None

    def _forget(self) -> None:
        self._calls.clear()
        self._entered.clear()

    def detach(self) -> None:
        self._forget()
        for module, handle, written in self._attached:
            if not handle.hooks_dict_ref():  # PyTorch does not reset its flag when the last hook is removed
                vars(module).update(written)
        self._attached.clear()


def _nodes(value: Any) -> Nodes:
    return frozenset(node for _, tensor in tensors_in(value) if (node := node_of(tensor)) is not None)


_KINDS: dict[str, type[HookBase]] = {
    "forward": ForwardHook,
    "pre": PreHook,
    "grad": GradHook,
    "param-grad": ParamGradHook,
    "full-backward": FullBackwardHook,
}


class ParametersKept(Intervention):
    """Restores parameters of a layer that a user's function has written to."""

    def __init__(self, hooks: Sequence[HookBase]) -> None:
        self._hooks = [hook for hook in hooks if hook.target.function is not None]
        self._originals: dict[str, tuple[nn.Parameter, Tensor]] = {}

    def attach(self, name: str, module: nn.Module) -> tuple[RemovableHandle, ...]:
        if any(name in hook.target.names for hook in self._hooks):
            for path, parameter in module.named_parameters(prefix=name):
                self._originals.setdefault(path, (parameter, parameter.detach().clone()))
        return ()

    def detach(self) -> None:
        for path, (parameter, value) in self._originals.items():
            if bool(differs(value, parameter.detach()).any()):
                with torch.no_grad():
                    parameter.copy_(value)
                for hook in self._hooks:
                    if path.startswith(tuple(f"{name}." for name in hook.target.names)):
                        hook.tally.moved[f"the parameter {path}"] = None
        self._originals.clear()


@dataclass(frozen=True, slots=True)
class BoundHooks:
    """The hooks of one command."""

    # For `HookSession`, in order; empty where there are no hooks
    interventions: tuple[Intervention, ...] = ()
    hooks: tuple[HookBase, ...] = ()
    notes: tuple[str, ...] = ()  # how ambiguous patterns were read

    def reports(self) -> tuple[HookReport, ...]:
        """Return the effects of each hook, in the order typed."""
        return tuple(_report(hook) for hook in self.hooks)

    def saved(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors collected by `save`: by file, then by label."""
        return {
            str(hook.spec.arguments[0]): hook.tally.saved for hook in self.hooks if hook.spec.action == "save"
        }


def bind_hooks(
    typed: Sequence[tuple[HookSpec, Callable[..., Any] | None]],
    model: nn.Module,
    args: Arguments,
    *,
    seed: int = 0,
    say: Callable[[str], None],
) -> BoundHooks:
    """Bind every hook to its layers.

    Args:
        typed: the hooks in order, with the user's function for `call`.
        args: arguments of the model, whose shapes decide the order of calls.
        say: callback for the lines of `print`.
    """
    if not typed:
        return BoundHooks()
    current = HookPass(model, seed, is_watching=any(function is not None for _, function in typed))
    hooks = []
    for number, (spec, function) in enumerate(typed):
        try:
            names, calls = _meant(model, spec.pattern, args)
        except UsageError as error:
            raise about_pattern(str(spec), error) from None
        hooks.append(_KINDS[spec.kind](BoundHook(spec, number, names, calls, function, say), current))
    layers = [layer for layer, _ in list_layers(model)]
    notes = dict.fromkeys(filter(None, (explain(parse_pattern(spec.pattern), layers) for spec, _ in typed)))
    return BoundHooks((current, *hooks, ParametersKept(hooks)), tuple(hooks), tuple(notes))


def _meant(
    model: nn.Module, pattern: str, args: Arguments
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...] | None]:
    """Return the layers a pattern selects and, if it selects calls, these; in the order of the model."""
    order = [layer.name for layer, _ in list_layers(model)]
    if not parse_pattern(pattern).is_positional:
        names = names_of(model, [pattern], ())
        return tuple(name for name in order if name in names), None
    selected = select(model, [pattern], (), args).wanted or frozenset()
    calls = tuple(sorted(selected, key=lambda call: (order.index(call[0]), call[1])))
    return tuple(dict.fromkeys(name for name, _ in calls)), calls


def _report(hook: HookBase) -> HookReport:
    spec, tally, target = hook.spec, hook.tally, hook.target
    fired = {label(*call) for call in tally.fired_at}
    layers = tuple(label(*call) for call in target.calls or ())
    if target.calls is None or spec.kind == "param-grad":  # parameters belong to layers, not to calls
        fired, layers = {name for name, _ in tally.fired_at}, target.names
    return HookReport(
        spec=str(spec),
        kind=spec.kind,
        action=spec.action,
        layers=layers,
        fired=tally.fired,
        never_fired=tuple(label for label in layers if label not in fired),
        numel=tally.numel,
        changed_fraction=tally.changed_fraction,
        max_abs_difference=tally.max_abs_difference,
        left_alone=tally.left_alone,
        moved=tuple(tally.moved),
        file=str(spec.arguments[0]) if spec.action == "save" else None,
    )
