"""The `hook` option, and `hook` in Python: parsed before anything is loaded, bound to the model, reported last."""

import contextlib
import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.hooks.binding import BoundHooks, bind_hooks
from modelscope_cli.hooks.patterns import parse_pattern
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.hooks.spec import HookSpec, function_hook, parse_hook
from modelscope_cli.inputs.forward_signature import arrange_named
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.output_files import check_file
from modelscope_cli.records.naming import some
from modelscope_cli.records.progress import SILENT, Progress, tell
from modelscope_cli.records.run import Arguments, HookReport, Notice, invocation

GivenHook = tuple[str, str, Callable[..., Any]]  # kind, pattern, function
ReadHook = tuple[HookSpec, Callable[..., Any] | None]  # the function of a `call`
HookFindings = tuple[tuple[HookReport, ...], tuple[Notice, ...]]


def read_hooks(
    requests: Sequence[str | GivenHook] | None, command: str, *, has_backward: bool = False
) -> list[ReadHook]:
    """Parse every `--hook`, in order, and import the functions; those handed over in Python stay as they are."""
    hooks: list[ReadHook] = []
    files: set[Path] = set()
    for text in requests or ():
        spec, function = (parse_hook(text), None) if isinstance(text, str) else _parse_function_hook(text)
        if spec.kind == "grad" and not has_backward:
            hint = f"modelscope grads ... --hook {shlex.quote(str(text))}"
            raise UsageError(f"--hook '{text}': {command} runs no backward pass", hint)
        if spec.action == "save":
            file = Path(str(spec.arguments[0]))
            if file.resolve() in files:
                raise UsageError(
                    f"--hook '{spec}': another hook also saves to '{file}'",
                    f"--hook '{str(spec).replace(file.stem, f'{file.stem}-2', 1)}'",
                )
            check_file(file, invocation().is_forced)
            files.add(file.resolve())
        hooks.append((spec, _import(spec) if spec.action == "call" and function is None else function))
    return hooks


def _parse_function_hook(hook: GivenHook) -> ReadHook:
    if len(hook) != 3 or not callable(hook[2]):
        raise UsageError(
            f"a hook is a text or (kind, pattern, function), not {hook!r}",
            "give ('forward', 'conv1', function)",
        )
    kind, pattern, function = hook
    name = getattr(function, "__qualname__", type(function).__name__)
    spec = function_hook(kind, pattern, name)
    _check_signature(spec, name, function)
    return spec, function


def _import(spec: HookSpec) -> Callable[..., Any]:
    from modelscope_cli.models.importspec import import_object

    where = str(spec.arguments[0])
    try:
        function = import_object(where, "--hook")
    except UsageError as error:
        hint = error.hint or ""
        existing = hint.partition("--hook ")[2]  # an existing function
        hint = _example(spec, existing) if hint.startswith("--") else hint
        raise UsageError(f"--hook '{spec}': {error.message}", hint) from error
    if not callable(function):
        message = f"--hook '{spec}': '{where}' is of type {type(function).__name__}, not a function"
        raise UsageError(message, _example(spec))
    _check_signature(spec, where, function)
    return _explained(spec, function)


# What PyTorch calls a hook of each kind with.
_CALLED_WITH = {"forward": "module, args, output", "pre": "module, args", "grad": "grad"}


def _check_signature(spec: HookSpec, where: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # builtins without a signature
        return
    names = _CALLED_WITH[spec.kind]
    try:
        signature.bind(*names.split(", "))
    except TypeError:
        message = f"--hook '{spec}': '{where}' takes {signature}, and is called with ({names})"
        raise UsageError(message, f"def {where.rpartition(':')[2]}({names}): ...") from None


def _example(spec: HookSpec, function: str = "") -> str:
    return f"--hook 'call={function or 'path/to/hooks.py:fn'}@{spec.pattern}'"


def _explained(spec: HookSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """Redirect what a function prints to stderr, and name the hook if it raises."""
    from modelscope_cli.models.importspec import user_code_failed

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return function(*arguments)
        except ModelscopeError:
            raise
        except (Exception, SystemExit) as error:
            raise user_code_failed(f"--hook '{spec}'", error) from error

    return call


def bind(
    hooks: Sequence[ReadHook], loaded: LoadedModel, args: Arguments, seed: int, progress: Progress
) -> BoundHooks:
    """Bind the hooks to a model; `args` is what it will be called with."""
    bound = bind_hooks(hooks, loaded.module, args, seed=seed, say=progress.say)
    tell(progress, bound.notes)
    return bound


def conclude(bound: BoundHooks, progress: Progress) -> HookFindings:
    """Write the saved tensors, print the warnings, and return reports and warnings."""
    for file, tensors in bound.saved().items():
        from modelscope_cli.tensor_file import write_tensors

        write_tensors(Path(file), tensors)
        progress.note(f"wrote {file} ({len(tensors)} tensors)")
    reports = bound.reports()
    warnings = tuple(warning for report in reports for warning in _warnings(report))
    tell(progress, (), warnings)
    return reports, warnings


def _warnings(report: HookReport) -> list[Notice]:
    hook = f"--hook '{report.spec}'"
    notices = []
    if report.never_fired:
        where = some(report.never_fired, 4)
        notices.append(Notice("hook_never_fired", f"{hook} never ran at {where}: {_WHY_NOT[report.kind]}"))
    if report.left_alone:
        message = f"{hook} skips some tensors, such as {report.left_alone}"
        notices.append(Notice("hook_left_alone", message))
    return notices


_WHY_NOT = {"forward": "not called", "pre": "not called", "grad": "no gradient went through"}


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
    model: nn.Module | LoadedModel,
    *hooks: str | GivenHook,
    args: Any = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Iterator[ActiveHooks]:
    """Change values inside a model while your own code runs it, forward and backward; then remove every hook.

    The model keeps its mode, and what your function or your optimizer writes to its parameters stays. An exception
    that a hook raises in a forward leaves the block; an `except` inside does not catch it. `save=FILE` writes when
    the block ends without an exception.

    Args:
        hooks: as `--hook` takes them, `"zero@layer3"` or `"grad:clamp=-1,1@conv"`; or a function of yours as
            `(kind, pattern, function)`: `("forward", "conv", fn)`, called as PyTorch calls hooks of that kind.
        args: example inputs: a tensor, a tuple of them, or a dict of them by name. Only patterns with a position
            (`relu#1`, `conv@3`) need them: a run beforehand finds the call that is meant.
        seed: seed of noise and shuffling.
        say: called with the lines of `print`, which otherwise go to stderr.

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
                raise UsageError(message, "pass example inputs: args=x")
        arguments = args if isinstance(args, tuple) else (args,)
        example = arrange_named(module, args) if isinstance(args, Mapping) else arguments
        bound = bind_hooks(parsed, module, example, seed=seed, say=say or SILENT.say)
        active = ActiveHooks(bound)
        with HookSession(module, interventions=bound.interventions, is_restoring=False):
            yield active
        _, active.warnings = conclude(bound, SILENT)
    except ModelscopeError as error:
        error.speak_python()
        raise
