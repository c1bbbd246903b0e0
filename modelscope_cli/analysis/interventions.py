"""The `hook` option: parsed before anything is loaded, bound to the model, reported afterwards."""

import contextlib
import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.output_files import check_file
from modelscope_cli.records.naming import some
from modelscope_cli.records.progress import Progress, tell
from modelscope_cli.records.run import Arguments, invocation

if TYPE_CHECKING:
    from modelscope_cli.hooks.binding import BoundHooks
    from modelscope_cli.hooks.spec import HookSpec
    from modelscope_cli.models.load import LoadedModel
    from modelscope_cli.records.run import HookReport, Notice

GivenHook = tuple[str, str, Callable[..., Any]]  # kind, pattern, function
ReadHook = tuple["HookSpec", Callable[..., Any] | None]  # the function of a `call`
HookFindings = tuple[tuple["HookReport", ...], tuple["Notice", ...]]


def read_hooks(
    requests: Sequence[str | GivenHook] | None, command: str, *, has_backward: bool = False
) -> list[ReadHook]:
    """Parse every `--hook`, in order, and import the functions; those handed over in Python stay as they are."""
    from modelscope_cli.hooks.spec import parse_hook

    hooks: list[ReadHook] = []
    files: set[Path] = set()
    for text in requests or ():
        spec, function = (parse_hook(text), None) if isinstance(text, str) else _parse_function_hook(text)
        if spec.is_backward and not has_backward:
            hint = f"modelscope grads ... --hook {shlex.quote(str(text))}"
            raise UsageError(f"--hook '{text}': {command} runs no backward pass", hint)
        if spec.action == "save":
            file = Path(str(spec.arguments[0]))
            if file.resolve() in files:
                raise UsageError(
                    f"--hook '{spec}': another hook saves to '{file}', too",
                    f"--hook '{str(spec).replace(file.stem, f'{file.stem}-2', 1)}'",
                )
            check_file(file, invocation().is_forced)
            files.add(file.resolve())
        hooks.append((spec, _import(spec) if spec.action == "call" and function is None else function))
    return hooks


def _parse_function_hook(hook: GivenHook) -> ReadHook:
    from modelscope_cli.hooks.spec import function_hook

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


def _import(spec: "HookSpec") -> Callable[..., Any]:
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
_CALLED_WITH = {
    "forward": "module, args, output",
    "pre": "module, args",
    "grad": "grad",
    "param-grad": "grad",
    "full-backward": "module, grad_input, grad_output",
}


def _check_signature(spec: "HookSpec", where: str, function: Callable[..., Any]) -> None:
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


def _example(spec: "HookSpec", function: str = "") -> str:
    return f"--hook 'call={function or 'path/to/hooks.py:fn'}@{spec.pattern}'"


def _explained(spec: "HookSpec", function: Callable[..., Any]) -> Callable[..., Any]:
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
    hooks: Sequence[ReadHook], loaded: "LoadedModel", args: Arguments, seed: int, progress: Progress
) -> "BoundHooks":
    """Bind the hooks to a model; `args` is what it will be called with."""
    from modelscope_cli.hooks.binding import bind_hooks

    bound = bind_hooks(hooks, loaded.module, args, seed=seed, say=progress.say)
    tell(progress, bound.notes)
    return bound


def conclude(bound: "BoundHooks", progress: Progress) -> HookFindings:
    """Write the saved tensors, print the warnings, and return reports and warnings."""
    for file, tensors in bound.saved().items():
        from modelscope_cli.report.tensor_file import write_tensors

        write_tensors(Path(file), tensors)
        progress.note(f"wrote {file} ({len(tensors)} tensors)")
    reports = bound.reports()
    warnings = tuple(warning for report in reports for warning in _warnings(report))
    tell(progress, (), warnings)
    return reports, warnings


def _warnings(report: "HookReport") -> list["Notice"]:
    from modelscope_cli.records.run import Notice

    hook = f"--hook '{report.spec}'"
    notices = []
    if report.never_fired:
        where = some(report.never_fired, 4)
        notices.append(Notice("hook_never_fired", f"{hook} never ran at {where}: {_WHY_NOT[report.kind]}"))
    if report.left_alone:
        message = f"{hook} skips some tensors, such as {report.left_alone}"
        notices.append(Notice("hook_left_alone", message))
    if report.moved:
        message = (
            f"{hook} works in place: {some(report.moved, 4)} changed with it; return a new tensor instead"
        )
        notices.append(Notice("hook_in_place", message))
    return notices


_NO_GRADIENT = "no gradient went through"
_WHY_NOT = {
    "forward": "not called",
    "pre": "not called",
    "grad": _NO_GRADIENT,
    "param-grad": "no parameters, or no gradient for them",
    "full-backward": _NO_GRADIENT,
}
