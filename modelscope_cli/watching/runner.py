"""Run a script as Python would, with its own `argv`, `sys.path`, `__main__`, exit code and traceback."""

import importlib.machinery
import importlib.util
import io
import shlex
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelscope_cli import interrupts
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.paths import look_for

_OURS = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class StartedScript:
    """How a script was started, so that it can be run again.

    Attributes:
        target, arguments: what was typed.
        file: of the script, whose folder is copied; cwd: the working folder.
        at: time of the clock.
    """

    target: str
    arguments: tuple[str, ...]
    module: bool
    file: str
    cwd: str
    at: float


class Script:
    """A compiled script or module.

    Args:
        target: a file, or with `is_module` the dotted name of a module or of a package with a `__main__`.
    """

    def __init__(self, target: str, arguments: list[str], is_module: bool) -> None:
        self.spec: importlib.machinery.ModuleSpec | None = None
        if is_module:
            self._folder = str(Path.cwd())
            self.spec = _find_module(target, self._folder)
            assert self.spec.origin is not None
            self.file = self.spec.origin
        else:
            self.file = str(_find_file(target).absolute())
            self._folder = str(Path(target).resolve().parent)
        self.name = target if is_module else Path(target).name
        self.target, self.arguments, self.is_module = target, tuple(arguments), is_module
        self.argv = [self.file if is_module else target, *arguments]
        self.typed = shlex.join([*["-m"] * is_module, target, *arguments])
        self._code = _compile(self.file, target)
        self.crash: str | None = None  # the exception that ended it, in words

    def run(self, report: Callable[[str], object]) -> int:
        """Run it and return its exit code; a traceback goes to `report`, without frames of this package.

        `StopScript` is raised.
        """
        with interrupts.as_python_has_it(), _as_main(self._module(), self.argv, self._folder):
            try:
                exec(self._code, sys.modules["__main__"].__dict__)
            except SystemExit as left:
                if type(left).__name__ == "StopScript":
                    raise
                return _code_of(left, report)
            except BaseException as error:
                from modelscope_cli.watching.crash import crash_of  # it imports torch, as the recorder has

                self.crash = crash_of(error)
                _show(error, report)
                return interrupts.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        return 0

    def _module(self) -> types.ModuleType:
        module = types.ModuleType("__main__")
        module.__file__ = self.file
        module.__spec__ = self.spec
        module.__dict__["__builtins__"] = __builtins__
        module.__dict__["__cached__"] = None
        if self.spec is not None:
            module.__package__ = self.spec.parent
            module.__loader__ = self.spec.loader
        else:
            module.__loader__ = importlib.machinery.SourceFileLoader("__main__", self.file)
        return module


def _find_file(target: str) -> Path:
    path = Path(target)
    if path.is_dir():
        path = path / "__main__.py"
    if not path.is_file():
        hint = look_for(target)
        hint += "   for a module: -m package.train" if hint.startswith("ls ") else ""
        raise UsageError(f"there is no script '{target}'", hint)
    return path


def _find_module(name: str, folder: str) -> importlib.machinery.ModuleSpec:
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError, AttributeError):
        spec = None
    finally:
        sys.path.remove(folder)
    if spec is None or spec.origin is None or not spec.has_location:
        raise UsageError(f"there is no module '{name}' to run", f"python -m {name}")
    return spec


def _compile(file: str, target: str) -> types.CodeType:
    try:
        with io.open_code(file) as source:
            return compile(source.read(), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise CannotRunError(
            f"'{target}' is not Python: {reason}{line}", f"python {shlex.quote(target)}"
        ) from error
    except OSError as error:
        raise CannotRunError(
            f"'{target}' cannot be read: {error.strerror}", f"ls -l {shlex.quote(target)}"
        ) from error


@contextmanager
def _as_main(module: types.ModuleType, argv: list[str], folder: str) -> Iterator[None]:
    """Make a module `__main__` while open; restore `sys.argv`, the streams and so on afterwards."""
    before = {name: getattr(sys, name) for name in ("argv", "path", "stdout", "stderr", "excepthook")}
    main = sys.modules["__main__"]
    sys.modules["__main__"], sys.argv, sys.path = module, list(argv), [folder, *_without_our_entry()]
    sys.excepthook = sys.__excepthook__
    if not sys.stdout.writable():  # closed from the beginning, which Python represents by None
        sys.stdout = None
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            setattr(sys, name, value)


def _without_our_entry() -> list[str]:
    """Return `sys.path` without the folder of the `modelscope` script, which the script's own folder replaces."""
    main = sys.modules["__main__"]
    started_from = getattr(main, "__file__", None)
    is_script = started_from is not None and getattr(main, "__spec__", None) is None
    if is_script and sys.path and sys.path[0] == str(Path(str(started_from)).resolve().parent):
        return sys.path[1:]
    return list(sys.path)


@contextmanager
def gentle_sigterm() -> Iterator[Callable[[], None]]:
    """Turn SIGTERM and SIGHUP into an exit that runs `finally` blocks, unless they are handled already.

    After the first one, or a call of the yielded function, they are ignored while open, so that the report is
    written: torchrun sends them to every process once one has failed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in interrupts.ENDS if is_main and interrupts.is_unclaimed(number)]
    before = {number: signal.getsignal(number) for number in ours}
    is_over = False

    def hold_off() -> None:
        nonlocal is_over
        is_over = True

    def leave(number: int, frame: Any) -> None:
        if not is_over:
            hold_off()
            raise SystemExit(interrupts.ENDS[number])

    for number in ours:
        signal.signal(number, leave)
    try:
        yield hold_off
    finally:
        for number in ours:
            if signal.getsignal(number) is leave:
                signal.signal(number, before[number])


def _code_of(exit_: SystemExit, report: Callable[[str], object]) -> int:
    """Return the exit code of a `SystemExit` as Python would, and report its message."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code & 0xFF
    report(f"{exit_.code}\n")
    return 1


def _show(error: BaseException, report: Callable[[str], object]) -> None:
    """Print the traceback by the script's own excepthook, else as Python would, without frames of this package."""
    _strip(error, set())
    if sys.excepthook is sys.__excepthook__:
        report("".join(traceback.format_exception(error)))
    else:
        sys.excepthook(type(error), error, error.__traceback__)


def _strip(error: BaseException, visited: set[int]) -> None:
    """Remove frames of this package, also from the causes of the error."""
    if id(error) in visited:
        return
    visited.add(id(error))
    traceback, frames = None, []
    frame = error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    for frame in reversed(frames):
        if not frame.tb_frame.f_code.co_filename.startswith(_OURS):
            traceback = types.TracebackType(traceback, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = traceback
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *parts):
        if other is not None:
            _strip(other, visited)
