"""Ctrl-C, SIGTERM and SIGHUP: each ends a command through its `finally`, and clean-up is not interrupted.

Standard library. Imports next to nothing, so that it can stand before everything else. Until `raise_signals`, and
again once the command is over, a signal ends the process at once, as there is nothing to clean up.
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
"""Exit codes of the signals that end a process, but for Ctrl-C."""
if hasattr(signal, "SIGHUP"):  # the terminal was closed, or the connection to it lost; not on Windows
    ENDS[signal.SIGHUP] = HUNG_UP
_CODES = {signal.SIGINT: INTERRUPTED, **ENDS}


class Terminated(BaseException):
    """SIGTERM or SIGHUP, as KeyboardInterrupt is SIGINT; `code` is the exit code."""

    def __init__(self, code: int = TERMINATED) -> None:
        super().__init__(code)
        self.code = code


class _State:
    """What there is one of in a process.

    Attributes:
        process: its number; a child that was forked off, perhaps by a library, has nothing of ours to clean up.
        raised: the signal that was raised last; None before any.
        has_guests: whether the user's own code has run here.
    """

    process = os.getpid()
    raised: int | None = None
    has_guests = False


def end_at_once() -> None:
    """Let a signal end the process, without a traceback and with the exit code that goes with it."""
    _handle(_leave)


def raise_signals() -> None:
    """Let a signal raise `KeyboardInterrupt` or `Terminated` in the main thread."""
    _handle(_raise)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _say_of_others


def _say_of_others(lost: "sys.UnraisableHookArgs") -> None:
    """Say of an exception that Python can raise nowhere; of a signal not, as `obey` raises it once more."""
    if lost.exc_type not in (KeyboardInterrupt, Terminated):
        sys.__unraisablehook__(lost)


def obey() -> None:
    """Raise the signal once more that came earlier and was swallowed, as C++ code does that imports Python modules.

    Stands where a command is about to write something or goes round a loop.
    """
    if _State.raised is not None:
        raise _exception(_State.raised)


def is_unclaimed(number: int) -> bool:
    """Tell whether nobody but this module deals with a signal."""
    return signal.getsignal(number) in (signal.SIG_DFL, _raise)


@contextmanager
def as_python_has_it() -> Iterator[None]:
    """Run the user's program in here: it finds, and may replace, what Python itself does at Ctrl-C."""
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
    """Hold signals off while something short is finished or cleaned up; what came meanwhile comes afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: handler for number in _CODES if (handler := signal.getsignal(number)) is not None}
    for held in before:
        signal.signal(held, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
        if came:
            signal.raise_signal(came[0])


def expect_guests() -> None:
    """Remember that the user's own code runs in this process, whose open files Python closes as it winds down."""
    _State.has_guests = True


def last_words(code: int | None) -> None:
    """End the process with `code` before Python winds down, when a signal would no longer be ours to answer.

    Where the user's code has run, or a tracer measures ours, Python has to wind down; then signals are ignored from
    here on.
    """
    is_alone = not _State.has_guests and sys.gettrace() is None
    if code is not None and is_alone and os.getpid() == _State.process:
        os._exit(code)
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Put a handler in place, but not where a signal is ignored: that is how shells start background jobs."""
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
