"""From what was typed as `--hook` to interventions in a model, and from those to what is reported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.backward_hooks import FullBackwardHook, GradHook, ParamGradHook
from modelscope_cli.hooks.forward_hooks import ForwardHook, PreHook
from modelscope_cli.hooks.hooked import Hooked, HookedAt, Pass
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.patterns import explain, parse_pattern
from modelscope_cli.hooks.selection import names_of, select
from modelscope_cli.hooks.session import Intervention
from modelscope_cli.hooks.spec import HookSpec, about_pattern
from modelscope_cli.hooks.tally import differs
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Arguments, HookReport

_KINDS: dict[str, type[Hooked]] = {
    "forward": ForwardHook,
    "pre": PreHook,
    "grad": GradHook,
    "param-grad": ParamGradHook,
    "full-backward": FullBackwardHook,
}


class ParametersKept(Intervention):
    """Puts back what a function of the user's writes to the parameters of the layer it is handed."""

    def __init__(self, hooks: Sequence[Hooked]) -> None:
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
    """The hooks of one command.

    Attributes:
        interventions: for `HookSession`, in order; empty where there are no hooks.
        notes: how a pattern was understood where it could mean two things.
    """

    interventions: tuple[Intervention, ...] = ()
    hooks: tuple[Hooked, ...] = ()
    notes: tuple[str, ...] = ()

    def reports(self) -> tuple[HookReport, ...]:
        """Return what each hook did, in the order they were typed."""
        return tuple(_report(hook) for hook in self.hooks)

    def saved(self) -> dict[str, dict[str, Tensor]]:
        """Return what `save` collected: tensors by label, by file."""
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
    """Find the layers every hook means.

    Args:
        typed: the hooks in order; those that are a `call` with the user's function.
        args: what the model will be called with; its shapes decide the order of calls.
        say: is given the lines of `print`.

    Raises:
        UsageError: a pattern that matches nothing (exit 2).
    """
    if not typed:
        return BoundHooks()
    current = Pass(model, seed, is_watching=any(function is not None for _, function in typed))
    hooks = []
    for number, (spec, function) in enumerate(typed):
        try:
            names, calls = _meant(model, spec.pattern, args)
        except UsageError as error:
            raise about_pattern(str(spec), error) from None
        hooks.append(_KINDS[spec.kind](HookedAt(spec, number, names, calls, function, say), current))
    layers = [layer for layer, _ in list_layers(model)]
    notes = dict.fromkeys(filter(None, (explain(parse_pattern(spec.pattern), layers) for spec, _ in typed)))
    return BoundHooks((current, *hooks, ParametersKept(hooks)), tuple(hooks), tuple(notes))


def _meant(
    model: nn.Module, pattern: str, args: Arguments
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...] | None]:
    """Return the layers a pattern means and, where it speaks of calls, those; both in the order of the model."""
    order = [layer.name for layer, _ in list_layers(model)]
    if not parse_pattern(pattern).is_positional:
        names = names_of(model, [pattern], ())
        return tuple(name for name in order if name in names), None
    wanted = select(model, [pattern], (), args).wanted or frozenset()
    calls = tuple(sorted(wanted, key=lambda call: (order.index(call[0]), call[1])))
    return tuple(dict.fromkeys(name for name, _ in calls)), calls


def _report(hook: Hooked) -> HookReport:
    spec, tally, target = hook.spec, hook.tally, hook.target
    fired = {label(*call) for call in tally.fired_at}
    layers = tuple(label(*call) for call in target.calls or ())
    if target.calls is None or spec.kind == "param-grad":  # a parameter is a layer's, not a call's
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
