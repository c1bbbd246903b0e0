"""Handle stdin, stdout and stderr that are closed, full, broken pipes, or cannot encode some characters."""

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import IO

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


class _Unheard(io.TextIOBase):
    """The stderr of a process that was started without one."""

    def write(self, text: str) -> int:
        return len(text)


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
    """Replace streams that were closed at startup, which Python sets to None."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())
    sys.stdout = sys.stdout or _Closed()
    sys.stderr = sys.stderr or _Unheard()


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
