"""Where in the user's own code something is called from: `train.py:31`."""

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    {
        _OURS,
        str(Path(torch.__file__).parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


def place_of_caller() -> str | None:
    """Return the innermost line that is no library's, the outermost one of any file where every line is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_own(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    """Tell whether a file is the user's: not of Python, of torch, of an installed package or of ours."""
    return not file.startswith(("<frozen", "<string>", "<@", *_LIBRARIES)) and "site-packages" not in file
