"""Import a model or function named by `package.module:attr` or `path/to/file.py:attr`.

Errors in the user's code become one line: the message and its place in their files.
"""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from PIL import Image
from torch import nn

from modelscope_cli.checkpoints.safety.scan import scan_checkpoint
from modelscope_cli.errors import (
    CannotRunError,
    ModelscopeError,
    UsageError,
    nearest_names,
    quoted,
    with_nearest,
)
from modelscope_cli.interrupts import expect_guests
from modelscope_cli.models.architecture import Architecture, seeded
from modelscope_cli.models.names import refuse_missing_file
from modelscope_cli.paths import look_for
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import with_article
from modelscope_cli.source_location import is_own

_OURS = Path(__file__).parents[1]


def user_code_failed(doing: str, error: BaseException) -> CannotRunError:
    """Describe `error`, raised while `doing`, by its type, message and the innermost line of user code."""
    message = in_one_line(error, 300)
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = _innermost_line(error)
    at = f" at {where[0]}:{where[1]}" if where else ""
    is_theirs = where is not None and is_own(where[0])
    hint = f"python {shlex.quote(where[0])}" if where and is_theirs else "--debug   shows the traceback"
    return CannotRunError(f"{doing} raised {summary}{at}", hint)


def _innermost_line(error: BaseException) -> tuple[str, int] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    frames = [
        (frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not Path(frame.filename).is_relative_to(_OURS)
    ]
    theirs = [frame for frame in frames if is_own(frame[0])]
    chosen = theirs or frames
    return chosen[-1] if chosen else None


def check_arguments(found: Callable[..., Any], kwargs: dict[str, Any], spec: str) -> None:
    """Refuse unknown or missing arguments of a builder."""
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # builtins without a signature: the call will fail
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        near = nearest_names(unknown, signature.parameters) if unknown else []
        variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        defaults = {name: p.default for name, p in signature.parameters.items() if p.kind not in variadic}
        typed = {near[0] if near and key == unknown else key: value for key, value in kwargs.items()}
        missing = [name for name in defaults if defaults[name] is signature.empty and name not in typed]
        values: dict[str, Any] = {name: name.upper() for name in missing}
        if unknown and not near:
            values = {name: value for name, value in defaults.items() if name not in missing} | values
        elif isinstance(found, type):
            values = _working_numbers(found, typed, missing)
        values = typed | values if near else values
        hint = " ".join(f"--model-arg {shlex.quote(f'{name}={value}')}" for name, value in values.items())
        told = f"; did you mean {', '.join(near)}" if near else ""
        message = f"'{spec}' cannot be called like this: {error}{told}"
        if missing and not values:
            file, _, name = spec.rpartition(":")
            call = f"{name}({', '.join(missing)})"
            hint = f"--model {shlex.quote(f'{file}:NAME')}   once it has def NAME(): return {call}"
        raise UsageError(message, hint or "leave out --model-arg") from error


def _working_numbers(kind: type, kwargs: dict[str, Any], missing: Sequence[str]) -> dict[str, int]:
    """Return numbers for the missing arguments with which a class can be built and takes images; empty if those
    tried do not work."""
    for number, side in product((3, 64), (224, 32)):
        numbers = {name: 10 if _NUM_CLASSES.fullmatch(name) else number for name in missing}
        quiet = contextlib.redirect_stdout(None)
        with contextlib.suppress(Exception), quiet, seeded(0), torch.no_grad(), torch.device("meta"):
            kind(**kwargs, **numbers).eval()(torch.empty(1, 3, side, side))
            return numbers
    return {}


def _parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(builder).parameters
    except (ValueError, TypeError):
        return {}


def takes(builder: Callable[..., Any], name: str) -> bool:
    parameters = _parameters(builder)
    takes_any = any(param.kind is param.VAR_KEYWORD for param in parameters.values())
    # nn.Module declares keywords to refuse them.
    return name in parameters or (takes_any and getattr(builder, "__init__", None) is not nn.Module.__init__)


_NUM_CLASSES = re.compile("(n|nb|num|number_of)_?(class|classes|labels)")
_GUARD = "if __name__ == '__main__':"


def imported_architecture(spec: str, model_args: dict[str, Any], seed: int) -> Architecture:
    """Import the object `spec` names and describe how to build it; an instance is used unchanged."""
    refuse_missing_file(spec)
    module, obj = _import(spec, seed)
    if _is_program(obj):
        obj = obj.module()
    if isinstance(obj, nn.Module):
        if model_args:
            name = next(iter(model_args))
            message = f"'{spec}' is a module that is already built; it does not take '{name}'"
            raise UsageError(message, "leave out --model-arg")
        return Architecture("import", spec, "custom", lambda _: obj, False, is_instance=True, is_factory=True)
    if not callable(obj):
        kind = f"of type {type(obj).__name__}"
        message = f"'{spec}' is {kind}: it is not a torch.nn.Module and does not make one"
        raise UsageError(message, _suggest(module, spec))

    is_class = isinstance(obj, type) and issubclass(obj, nn.Module)
    classes = next(filter(_NUM_CLASSES.fullmatch, _parameters(obj)), "num_classes")

    def build(num_classes: int | None) -> nn.Module:
        kwargs = {**model_args} if num_classes is None else {**model_args, classes: num_classes}
        check_arguments(obj, kwargs, spec)
        with _running(spec, seed, "building"):
            result = obj(**kwargs)
            if _is_program(result):
                result = result.module()
        if not isinstance(result, nn.Module):
            message = f"'{spec}' made {with_article(type(result).__name__)}, not a torch.nn.Module"
            raise UsageError(message, _suggest(module, spec))
        return result

    takes_num_classes = classes not in model_args and takes(obj, classes)
    return Architecture("import", spec, "custom", build, takes_num_classes, is_factory=not is_class)


def saved_architecture(file: str) -> Architecture:
    """Describe how to read a model that was saved whole, after `recognise` has found only layers of torch in it."""

    def build(_: int | None) -> nn.Module:
        names = (name.rpartition(".") for name in scan_checkpoint(Path(file)).weights_only.names)
        layers = [getattr(importlib.import_module(module), name) for module, _, name in names]
        with torch.serialization.safe_globals(layers):
            module: nn.Module = torch.load(file, map_location="cpu", weights_only=True)
        return module.train()

    return Architecture("import", file, "custom", build, takes_num_classes=False)


def _is_program(value: Any) -> bool:
    """Tell whether this is an `ExportedProgram`, without importing torch.export."""
    return type(value).__name__ == "ExportedProgram" and type(value).__module__.startswith("torch.export")


def import_object(spec: str, option: str) -> Any:
    """Return the function named by `package.module:attr` or `path/to/file.py:attr`, the value of `option`."""
    return _import(spec, seed=0, hint=lambda module: _suggest_function(module, spec, option))[1]


def _import(spec: str, seed: int, hint: Callable[[ModuleType], str] | None = None) -> tuple[ModuleType, Any]:
    where, _, attribute = spec.rpartition(":")
    with _running(spec, seed, "importing"):
        module = _import_file(where, spec) if where.endswith(".py") else _import_module(where, spec)
        return module, _find_attribute(
            module, attribute, spec, hint or (lambda module: _suggest(module, spec))
        )


@contextmanager
def _running(spec: str, seed: int, doing: str) -> Iterator[None]:
    """Run the user's code: its folder importable, seeded, its prints on stderr, its exceptions explained."""
    expect_guests()
    opened, saved = Image.open, torch.save  # which ultralytics replaces, by ones that install packages
    where = spec.rpartition(":")[0]
    folder = str(_package_of(Path(where))[0]) if where.endswith(".py") else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        with seeded(seed), contextlib.redirect_stdout(sys.stderr):
            yield
    except ModelscopeError:
        raise
    except (Exception, SystemExit) as error:
        failed = user_code_failed(f"{doing} '{spec}'", error)
        if doing == "building":  # which running the file need not do
            failed.hint = "--debug   shows the traceback"
        is_run = not isinstance(error, (SyntaxError, ImportError))  # by code that an import need not run
        if doing == "importing" and is_run and where.endswith(".py") and not _is_guarded(Path(where)):
            failed.hint = f"{failed.hint}   to make it importable, move what runs on import under {_GUARD}"
        raise failed from error
    finally:
        Image.open, torch.save = opened, saved
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _is_guarded(path: Path) -> bool:
    """Tell whether a file can be imported without running as a script."""
    try:
        return "__main__" in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def _import_file(path: str, spec: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise CannotRunError(f"no file '{path}' (from '{spec}')", look_for(file))
    _, name = _package_of(file)
    if name is not None:
        return _import_of_package(name, file, spec)
    # A private name, so that `json.py:Net` shadows nothing; registered for dataclasses and pickle.
    name = f"_mscope_{file.stem}_{abs(hash(file.resolve())):x}"
    loading = importlib.util.spec_from_file_location(name, file)
    assert loading is not None  # a .py file has a loader
    assert loading.loader is not None
    module = importlib.util.module_from_spec(loading)
    sys.modules[name] = module
    try:
        loading.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package_of(file: Path) -> tuple[Path, str | None]:
    """Return the folder to import from and the module's name in its package, if it has relative imports."""
    file = file.resolve()
    level = _relative_level(file)
    if not level:
        return file.parent, None
    folders = [file.parent]
    while len(folders) < level or (folders[-1] / "__init__.py").is_file():
        folders.append(folders[-1].parent)
    root = folders.pop() if not (folders[-1] / "__init__.py").is_file() and len(folders) > level else None
    parts = [folder.name for folder in reversed(folders)]
    stem = [] if file.stem == "__init__" else [file.stem]
    return root or folders[-1].parent, ".".join((*parts, *stem))


def _relative_level(file: Path) -> int:
    """Return the highest level of relative imports in a file; 0 without any."""
    if not file.is_file():  # reading a pipe could block
        return 0
    try:
        return _most_dots(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the import will report the error
        return 0


@lru_cache(maxsize=8)  # called several times per file
def _most_dots(source: bytes) -> int:
    tree = ast.parse(source)
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def _import_of_package(name: str, file: Path, spec: str) -> ModuleType:
    module = importlib.import_module(name)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != file.resolve():
        package, attribute = name.partition(".")[0], spec.rpartition(":")[2]
        message = f"'{file}' is a part of the package '{package}', but '{found}' has the same name"
        root = shlex.quote(str(file.parents[name.count(".")]))
        raise UsageError(message, f"cd {root}   and give --model {name}:{attribute} there")
    return module


def _import_module(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The typed module or one of its parents is missing, rather than something it imports.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            root = name.partition(".")[0]
            hint = f'python -c "import {root}"' if root.isidentifier() else "--model FILE.py:NAME"
            raise UsageError(f"no module '{error.name}' to import (from '{spec}')", hint) from error
        raise
    except (ValueError, TypeError) as error:  # from import_module for "" and ".x"
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(
                f"'{name}' is not a module to import (from '{spec}')", "--model FILE.py:NAME"
            ) from error
        raise


def _find_attribute(module: ModuleType, attribute: str, spec: str, hint: Callable[[ModuleType], str]) -> Any:
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            known = [name for name in dir(target) if not name.startswith("_")]
            near = nearest_names(part, known)
            message = with_nearest(f"'{spec}' has no attribute '{part}'", part, known)
            whole = "did you mean " + quoted(spec.removesuffix(part) + name for name in near)
            raise UsageError(message, whole if near and spec.endswith(part) else hint(module))
        target = getattr(target, part)
    return target


def _suggest(module: ModuleType, spec: str) -> str:
    """Return a hint with the model (class or instance) that the module defines, nearest to `spec`."""
    where, _, attribute = spec.rpartition(":")
    there = [
        name
        for name, value in vars(module).items()
        if isinstance(value, nn.Module)
        or (isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__)
    ]
    near = get_close_matches(attribute, there, n=1, cutoff=0.5)
    name = next(iter(near or there), "NAME")
    return f"--model {shlex.quote(f'{where}:{name}')}"


def _suggest_function(module: ModuleType, spec: str, option: str) -> str:
    every = [(name, value) for name, value in vars(module).items() if inspect.isfunction(value)]
    functions = (name for name, value in every if value.__module__ == module.__name__)
    function_spec = f"{spec.rpartition(':')[0]}:{next(functions, 'NAME')}"
    return f"{option} {shlex.quote(function_spec)}"
