"""Bind each `--hook` to the layers of a model, on forward or backward, and report its effects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.actions import TensorPlace
from modelscope_cli.hooks.hook_base import BoundHook, HookBase, HookPass, HookSpot, name_of_call
from modelscope_cli.hooks.layers import list_layers, map_tensors, tensors_in
from modelscope_cli.hooks.patterns import explain, parse_pattern
from modelscope_cli.hooks.selection import names_of, select
from modelscope_cli.hooks.session import Call, Intervention
from modelscope_cli.hooks.spec import HookSpec, about_pattern
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Args, Arguments, CallInputs, HookReport, Kwargs


class _OnValues(HookBase):
    """A hook on values."""

    def _change(
        self, value: Any, call: Call, module: nn.Module, words: str, arguments: tuple[Any, ...]
    ) -> Any:
        spot = HookSpot(words, name_of_call(call))
        self.counted.fire(call)
        if self.target.function is not None:
            return self.call_function(arguments, value, spot)

        def place(tensor: Tensor, n: int) -> TensorPlace:
            return self.current.place(module, tensor, self.target.number, spot.label, n)

        return self.act_on_each(value, spot, place)


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


class GradHook(HookBase):
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
        inputs_given = [tensor for _, tensor in tensors_in(inputs)]

        def listen(path: str, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            # A layer that returns its input shares that tensor with other readers.
            mine = tensor.view_as(tensor) if any(tensor is other for other in inputs_given) else tensor
            spot = HookSpot("the gradient at the output of", name_of_call(call), path)
            place = self.current.place(module, mine, self.target.number, spot.key)
            self._handles.append(mine.register_hook(partial(self._arrive, spot, call, place)))
            return mine

        return map_tensors(output, listen)

    def _arrive(self, spot: HookSpot, call: Call, place: TensorPlace, grad: Tensor) -> Tensor | None:
        """Handle a gradient as a tensor hook, whose result PyTorch uses instead."""
        self.counted.fire(call)
        if self.target.function is not None:
            changed = self.call_function((grad,), grad, spot)
        else:
            changed = self.act(grad, place, spot)
        return None if changed is grad else changed

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


_KINDS: dict[str, type[HookBase]] = {"forward": ForwardHook, "pre": PreHook, "grad": GradHook}


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
    current = HookPass(seed)
    hooks = []
    for number, (spec, function) in enumerate(typed):
        try:
            names, calls = _meant(model, spec.pattern, args)
        except UsageError as error:
            raise about_pattern(str(spec), error) from None
        hooks.append(_KINDS[spec.kind](BoundHook(spec, number, names, calls, function, say), current))
    layers = [layer for layer, _ in list_layers(model)]
    notes = dict.fromkeys(filter(None, (explain(parse_pattern(spec.pattern), layers) for spec, _ in typed)))
    return BoundHooks((current, *hooks), tuple(hooks), tuple(notes))


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
    if target.calls is None:
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
        file=str(spec.arguments[0]) if spec.action == "save" else None,
    )
