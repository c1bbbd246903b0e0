"""`hook`: the interventions of `--hook` in a model that the caller runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from modelscope_cli.analysis.interventions import GivenHook, conclude, read_hooks
from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.hooks.binding import BoundHooks, ParametersKept, bind_hooks
from modelscope_cli.hooks.patterns import parse_pattern
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.forward_signature import arrange_named
from modelscope_cli.records.progress import SILENT
from modelscope_cli.records.run import HookReport, Notice

if TYPE_CHECKING:
    from modelscope_cli.models.load import LoadedModel


class ActiveHooks:
    """The hooks of an open `with hook(...)` block; afterwards, what they did.

    Attributes:
        notes: how a pattern was understood where it could mean two things.
        warnings: after the block: hooks that never fired, tensors that were left alone.
    """

    def __init__(self, bound: BoundHooks) -> None:
        self._bound = bound
        self.notes = bound.notes
        self.warnings: tuple[Notice, ...] = ()

    @property
    def reports(self) -> tuple[HookReport, ...]:
        """What each hook did so far, over all passes, in the order they were given."""
        return self._bound.reports()


@contextmanager
def hook(
    model: "nn.Module | LoadedModel",
    *hooks: str | GivenHook,
    args: Any = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Iterator[ActiveHooks]:
    """Change what flows in a model while you run it yourself, forward and backward; then every hook is gone.

    Args:
        hooks: as `--hook` takes them, `"zero@layer3"` or `"grad:clamp=-1,1@conv"`; or a function of yours as
            `(kind, pattern, function)`: `("forward", "conv", fn)`, called as PyTorch calls hooks of that kind.
        args: example inputs: a tensor, a tuple of them, or a dict of them by name. Only patterns with a position
            (`relu#1`, `conv@3`) need them: which call is meant is found out in a run beforehand.
        seed: of noise and shuffling.
        say: is given the lines of `print`; they go to stderr otherwise.

    The model keeps its mode, and what your function or your optimizer writes to its parameters stays. What a hook
    raises during a forward leaves the block; an `except` inside of it does not see it. `save=FILE` writes when the
    block ends without an exception.

    Raises:
        UsageError: a hook or a pattern that means nothing, or a position without `args`.
        CannotRunError: a file cannot be written; `raise-on-nan` found one.
    """
    try:
        module = model if isinstance(model, nn.Module) else model.module
        parsed = read_hooks(hooks, "hook", has_backward=True)
        for spec, _ in parsed:
            if args is None and parse_pattern(spec.pattern).is_positional:
                message = f"hook '{spec}' selects calls by number, but their order is not known yet"
                raise UsageError(message, "give example inputs: args=x")
        arguments = args if isinstance(args, tuple) else (args,)
        example = arrange_named(module, args) if isinstance(args, Mapping) else arguments
        bound = bind_hooks(parsed, module, example, seed=seed, say=say or SILENT.say)
        active = ActiveHooks(bound)
        # The parameters are the caller's, who may be training them.
        acting = [one for one in bound.interventions if not isinstance(one, ParametersKept)]
        with HookSession(module, interventions=acting, is_restoring=False):
            yield active
        _, active.warnings = conclude(bound, SILENT)
    except ModelscopeError as error:
        error.speak_python()
        raise
