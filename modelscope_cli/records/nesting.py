"""Room for models that are nested deeply, whose forward takes several frames of Python for every level."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from modelscope_cli.errors import CannotRunError

_FRAMES = 10_000  # far more than any model needs, and less than the 8 MiB of stack of a main thread hold


@contextmanager
def room_for_depth() -> Iterator[None]:
    """Let Python recurse deeper while open; hooks need more frames than a model has by itself.

    Other threads than the main one may have so small a stack that the process would die of it; there nothing
    changes.

    Raises:
        CannotRunError: that was not enough (exit 4).
    """
    before = sys.getrecursionlimit()
    if threading.current_thread() is threading.main_thread():
        sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    except RecursionError as error:
        message = f"something nested too deeply, or that calls itself without end: {error}"
        raise CannotRunError(message, "wrap fewer modules in one another   --debug shows where") from error
    finally:
        sys.setrecursionlimit(before)
