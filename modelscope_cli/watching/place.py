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


def frame_of_caller() -> FrameType | None:
    """Return the innermost frame that is not a library's; None where every one is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of_caller() -> str | None:
    """Return the innermost line that is not a library's; None where every one is."""
    frame = frame_of_caller()
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else None


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    """Tell whether a file is the user's: not of Python, of torch, of an installed package or of ours."""
    return not file.startswith(("<frozen", "<string>", "<@", *_LIBRARIES)) and "site-packages" not in file
