"""The streams: closed ones, characters that they cannot write, and a status line on stderr that redraws itself."""

import codecs
import contextlib
import errno
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

from modelscope_cli.records.progress import spell_time

# ASCII replacements for the characters of tables and histograms.
_IN_ASCII = {
    **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*%#", strict=True)),
    "…": "~",
    "⋯": "...",
    "→": "->",
    "·": ".",
    "×": "x",
}
_WITHOUT = "modelscope.in_ascii"


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(mark, "?") for mark in missing), error.end


codecs.register_error(_WITHOUT, _in_ascii)


class _Closed(io.TextIOBase):
    """The stdout of a process that was started without one: writing to it is an error."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def is_drawn_over(stream: IO[str]) -> bool:
    """Tell whether a line can be redrawn: on a terminal, unless it is a dumb one."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_coloured(stream: IO[str]) -> bool:
    """Tell whether output to a stream may have colours and bold text."""
    return is_drawn_over(stream) and not os.environ.get("NO_COLOR")


def take_every_character(stream: IO[str]) -> None:
    """Make a stream replace characters that it cannot encode instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_WITHOUT)


def open_closed() -> None:
    """Replace streams that were closed at startup, which Python sets to None, or since then by a script."""
    if sys.stdout is not None and sys.stdout.closed:
        sys.stdout = None
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())
    sys.stdout = sys.stdout or _Closed()
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO())


def silence(stream: IO[str]) -> None:
    """Discard further output to a broken stream, even at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def heard_or_not() -> Iterator[None]:
    """Ignore failures while writing to stderr."""
    try:
        yield
    except (OSError, ValueError):
        silence(sys.stderr)


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class _LiveLine:
    """A status line, drawn at most a few times a second and cleared for other output."""

    _INTERVAL_S = 0.2

    def __init__(self) -> None:
        self._write = sys.stderr.write  # bypasses the wrapper that detects other output
        self._drawn_at = 0.0
        self._is_drawn = False
        self._is_free = True  # the line has no unfinished output, such as a progress bar
        self._turn = threading.Lock()

    def draw(self, text: str) -> None:
        now = time.monotonic()
        if now - self._drawn_at < self._INTERVAL_S or not self._is_free:
            return
        with self.alone():
            self._drawn_at, self._is_drawn = now, True
            self._write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}\r")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._write("\r\x1b[2K")
            sys.stderr.flush()

    def write_instead(self, write: Callable[[str], int], text: str) -> int:
        """Clear the line and write other output."""
        with self.alone():
            self.clear()
            if text:
                self._is_free = text.endswith("\n")
            return write(text)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock out writes of other threads."""
        # With a timeout: a forked process lacks the thread that holds the lock.
        is_ours = self._turn.acquire(timeout=0.1)
        try:
            yield
        finally:
            if is_ours:
                self._turn.release()


@contextlib.contextmanager
def live_line() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows one line on stderr; None if that is not a terminal, or a dumb one.

    Other output to stdout or stderr clears the line first; the stream objects are not replaced.
    """
    if not is_drawn_over(sys.stderr):
        yield None
        return
    line = _LiveLine()
    streams: list[Any] = [stream for stream in {sys.stdout, sys.stderr} if stream.isatty()]
    for stream in streams:
        stream.write = partial(line.write_instead, stream.write)
    try:
        yield line.draw
    finally:
        line.clear()
        for stream in streams:
            del stream.write


_TOGETHER_S = 0.001  # between items that are finished at the same time


class Pace:
    """Progress as lines of a log: one when the work turns out to be long, then one a minute."""

    FIRST_S, EVERY_S, LONG_S = 2.0, 60.0, 10.0

    def __init__(self, what: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.done = 0  # number of finished items
        self._what, self._total, self._clock = what, total, clock
        self._begun = self._seen = clock()
        self._first: float | None = None  # when an item was finished; `_seen` is when the last one was
        self._each: float | None = None  # seconds per item, without the first, which takes longer
        self._last: float | None = None  # when a line was written

    def __str__(self) -> str:
        return f"{self._what}: {self.done:,} of {self._total:,}"

    def advance(self) -> None:
        """Count a finished item. The images of a batch are finished together: only the first one's time counts."""
        now, self.done = self._clock(), self.done + 1
        if self._first is None:
            self._first = now
        elif now - self._seen > _TOGETHER_S:
            self._each = (now - self._first) / (self.done - 1)
        self._seen = now

    def seconds_left(self) -> float | None:
        """Return an estimate; None before the second item."""
        if self._each is None:
            return None
        return max(0.0, self._each * (self._total - self.done) - (self._clock() - self._seen))

    def line(self) -> str | None:
        """Return the line that is due after an item, if any."""
        now, left = self._clock(), self.seconds_left()
        is_early = now - self._begun < self.FIRST_S or (left is not None and left < self.LONG_S)
        if is_early if self._last is None else now < self._last + self.EVERY_S:
            return None
        self._last = now
        return str(self) if left is None else f"{self}, about {spell_time(left)} left"


class Busy:
    """Shows activity on a terminal once a command has run for some time, until it writes a result."""

    _DELAY_S = 1.5

    def __init__(self) -> None:
        self.what = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, what: str) -> None:
        """Start the timer."""
        if self._thread is None and is_drawn_over(sys.stderr):
            self.what = what
            self._over.clear()
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Clear the line."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._over.set()
            thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Give way to a progress bar."""
        was_running = self._thread is not None
        self.stop()
        try:
            yield
        finally:
            if was_running:
                self.start("working")

    def _show(self) -> None:
        started = time.monotonic()
        if self._over.wait(self._DELAY_S):
            return
        with live_line() as draw:
            is_unicode = (sys.stderr.encoding or "").lower().startswith("utf")
            frames, turn = _SPINNER if is_unicode else "|/-\\", 0
            while draw is not None and not self._over.wait(_LiveLine._INTERVAL_S):
                seconds = time.monotonic() - started
                draw(f"{frames[turn % len(frames)]} {self.what}, {seconds:.0f} s")
                turn += 1
