"""Recursion limit for deeply nested models, whose forward takes several Python frames per level."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from modelscope_cli.errors import CannotRunError

_FRAMES, _STACK = (
    10_000,
    8 * 2**20,
)  # far more than any model needs, and less than half of the capacity of such a stack


@contextmanager
def room_for_depth() -> Iterator[None]:
    """Raise the recursion limit inside the context; hooks need additional frames.

    Only in the main thread: the stack of another one may be so small that the process would crash.
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
    """Return the number of frames that fit the stack of this process; 0 if its size is unknown."""
    try:
        import resource
    except ImportError:  # Windows, whose stacks are small
        return 0
    size = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _FRAMES if size == resource.RLIM_INFINITY else min(_FRAMES, _FRAMES * size // _STACK)
