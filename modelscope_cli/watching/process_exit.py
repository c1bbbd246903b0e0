"""End a process whose background threads may still hold Python objects."""

import atexit
import contextlib
import gc
import io
import os
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process like a child of `multiprocessing`: with all exit handlers, but without finalising Python.

    A thread of gloo may keep the tensors of its last collective a moment longer. If it releases them during
    finalisation, C++ ends the process with SIGABRT ("terminate called without an active exception",
    pytorch/pytorch#190489), even if the script has destroyed its process group.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for all threads but daemons
        atexit._run_exitfuncs()
        gc.collect()  # closes the files that only the script knew
        for one in gc.get_objects():  # the standard streams and every open file
            if issubclass(type(one), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
                with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has gone
                    one.flush()
    finally:
        os._exit(code)
