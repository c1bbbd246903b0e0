"""Ctrl-C, SIGTERM and SIGHUP: each ends a command through its `finally`, and clean-up is not interrupted.

Standard library only, and few imports, so that it can be imported first. Before `raise_signals`, and again after
the command, a signal ends the process at once, as there is nothing to clean up.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED, HUNG_UP = 130, 143, 129
ENDS: dict[int, int] = {signal.SIGTERM: TERMINATED}
"""Exit codes of the signals that end a process, except Ctrl-C."""
if hasattr(signal, "SIGHUP"):  # the terminal was closed, or the connection to it lost; not on Windows
    ENDS[signal.SIGHUP] = HUNG_UP
_CODES = {signal.SIGINT: INTERRUPTED, **ENDS}

resumable = ""  # the folder in which the running command stores finished parts, for --resume


class Terminated(BaseException):
    """SIGTERM or SIGHUP, like KeyboardInterrupt for SIGINT; `code` is the exit code."""

    def __init__(self, code: int = TERMINATED) -> None:
        super().__init__(code)
        self.code = code


class _State:
    """Process-wide state."""

    process = os.getpid()  # that imported this module; forked children have nothing to clean up
    raised: int | None = None  # the last signal raised; None before any
    has_guests = False  # whether the user's own code has run here
    is_cut_short = False  # whether Ctrl-C ended a loop, whose finished part is the result


def end_at_once() -> None:
    """Make a signal end the process with its exit code and no traceback."""
    _handle(_leave)


def raise_signals() -> None:
    """Make a signal raise `KeyboardInterrupt` or `Terminated` in the main thread."""
    _handle(_raise)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _say_of_others


def _say_of_others(lost: "sys.UnraisableHookArgs") -> None:
    """Report exceptions that Python cannot raise, except a signal, which `obey` raises again, and what follows it:
    an iterator of a `DataLoader` that was stopped while it started fails once more when it is deleted."""
    if _State.raised is None and lost.exc_type not in (KeyboardInterrupt, Terminated):
        sys.__unraisablehook__(lost)


def obey() -> None:
    """Raise an earlier signal again, as C++ code that imports Python modules swallows it.

    Called before a command writes something and in its loops.
    """
    if _State.raised is not None:
        raise _exception(_State.raised)


def is_unclaimed(number: int) -> bool:
    """Tell whether a signal has no handler other than this module's."""
    return signal.getsignal(number) in (signal.SIG_DFL, _raise)


@contextmanager
def as_python_has_it() -> Iterator[None]:
    """Restore Python's own Ctrl-C handler while the user's program runs."""
    expect_guests()
    is_ours = signal.getsignal(signal.SIGINT) is _raise
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _raise)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer signals during a short clean-up; one that arrived is raised afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: handler for number in _CODES if (handler := signal.getsignal(number)) is not None}
    for signum in before:
        signal.signal(signum, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed; a second one raises at once.

    For a loop that ends after the current step and returns what is finished; the exit code is 130 all the same.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    if not callable(handler):
        yield lambda: False
        return
    came: list[int] = []

    def first(number: int, frame: FrameType | None) -> None:
        came.append(number)
        _State.is_cut_short = True
        signal.signal(signal.SIGINT, handler)
        if sys.stderr.isatty():
            os.write(2, b"\nending after this step; Ctrl-C again stops at once\n")

    signal.signal(signal.SIGINT, first)
    try:
        yield lambda: bool(came)
    finally:
        if signal.getsignal(signal.SIGINT) is first:
            signal.signal(signal.SIGINT, handler)


def is_cut_short() -> bool:
    """Tell once whether a loop of this command ended by `deferred`."""
    is_so, _State.is_cut_short = _State.is_cut_short, False
    return is_so


def expect_guests() -> None:
    """Note that the user's code runs in this process; Python closes its open files at exit."""
    _State.has_guests = True


def last_words(code: int | None) -> None:
    """End the process with `code` before Python's shutdown, during which signals could not be handled.

    After user code or under a tracer Python has to shut down normally; signals are ignored from here on.
    """
    is_alone = not _State.has_guests and sys.gettrace() is None
    if code is not None and is_alone and os.getpid() == _State.process:
        os._exit(code)
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Install a handler, except for ignored signals: shells start background jobs with these."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _CODES:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_CODES[number])


def _raise(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _State.process:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    _State.raised = number
    raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(_CODES[number])
