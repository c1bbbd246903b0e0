"""Room for models that are nested deeply, whose forward takes several frames of Python for every level."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from modelscope_cli.errors import CannotRunError

_FRAMES, _STACK = (
    10_000,
    8 * 2**20,
)  # far more than any model needs, and less than half of what such a stack holds


@contextmanager
def room_for_depth() -> Iterator[None]:
    """Let Python recurse deeper while open; hooks need more frames than a model has by itself.

    Other threads than the main one may have so small a stack that the process would die of it; there nothing
    changes.
    """
    before = sys.getrecursionlimit()
    if threading.current_thread() is threading.main_thread():
        sys.setrecursionlimit(max(before, _frames()))
    try:
        yield
    except RecursionError as error:
        message = f"something nested too deeply, or that calls itself without end: {error}"
        raise CannotRunError(message, "wrap fewer modules in one another   --debug shows where") from error
    finally:
        sys.setrecursionlimit(before)


def _frames() -> int:
    """Return how many frames the stack of this process has room for; 0 where it does not say how large it is."""
    try:
        import resource
    except ImportError:  # Windows, whose stacks are small
        return 0
    size = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _FRAMES if size == resource.RLIM_INFINITY else min(_FRAMES, _FRAMES * size // _STACK)
