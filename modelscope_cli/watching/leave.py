"""The end of a process whose background threads may still hold what belongs to Python."""

import atexit
import contextlib
import gc
import io
import os
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process as `multiprocessing` ends its own: with all that an exit does but taking Python apart.

    A thread of gloo may keep the tensors of its last collective for a moment longer. If it lets go of them while
    the interpreter is being taken apart, C++ ends the process with SIGABRT ("terminate called without an active
    exception", pytorch/pytorch#190489), also where the script has destroyed its process group.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
        atexit._run_exitfuncs()
        gc.collect()  # closes the files that only the script knew
        _flush_files()
    finally:
        os._exit(code)


def _flush_files() -> None:
    """Write what is still buffered, of the standard streams and of every file that nobody has closed."""
    for one in gc.get_objects():
        if issubclass(type(one), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has gone
                one.flush()
