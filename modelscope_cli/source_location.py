"""The line of the user's code that makes a call, `train.py:31`, and the names of variables there."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from types import CellType, FrameType, ModuleType
from typing import Any

import torch

_MOST_OBJECTS, _MOST_PARTS = 1024, 64
_OURS = str(Path(__file__).parent)
_LIBRARIES = tuple(
    {
        _OURS,
        str(Path(torch.__file__).parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


def frame_of_caller(made: object = None) -> FrameType | None:
    """Return the innermost frame outside libraries, and outside the methods of `made`; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (not is_own(frame.f_code.co_filename) or _is_method(frame, made)):
        frame = frame.f_back
    return frame


def _is_method(frame: FrameType, made: object) -> bool:
    return made is not None and any(frame.f_locals.get(name) is made for name in frame.f_code.co_varnames[:1])


def place_of_caller(made: object = None) -> str | None:
    """Return the innermost line outside libraries, and outside the methods of `made`; None without one."""
    frame = frame_of_caller(made)
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else None


def place_of_error(error: BaseException) -> str | None:
    """Return the innermost line outside libraries that an exception passed; None without one."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [f"{os.path.basename(file)}:{line}" for file, line in places if is_own(file)]
    return own[-1] if own else None


@lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Tell whether a file is the user's: not of Python, torch, an installed package or this one."""
    return not file.startswith(("<frozen", "<string>", "<@", *_LIBRARIES)) and "site-packages" not in file


def walk_named(roots: Iterable[tuple[str, Any]], depth: int) -> Iterator[tuple[int, str, Any]]:
    """Yield depth, expression (`net[0].w`, `params['w']`) and value of the contents of variables, nearest first.

    Of a function, these are the variables that it uses of its module and of the enclosing function.
    """
    queue, visited = [(0, *root) for root in roots], set[int]()
    while queue and len(visited) < _MOST_OBJECTS:
        level, name, value = queue.pop(0)
        yield level, name, value
        if (
            level < depth
            and id(value) not in visited
            and not isinstance(value, (torch.Tensor, ModuleType, type))
        ):
            visited.add(id(value))
            queue += [(level + 1, *part) for part in _parts_of(name, value)]


def _parts_of(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{index}]", part) for index, part in enumerate(value[:_MOST_PARTS])]
    if isinstance(value, dict):
        return [
            (f"{name}[{key!r}]", part)
            for key, part in list(value.items())[:_MOST_PARTS]
            if type(key) in (int, str)
        ]
    if (code := getattr(value, "__code__", None)) is not None:
        global_values = getattr(value, "__globals__", {})
        cells = zip(code.co_freevars, getattr(value, "__closure__", None) or (), strict=False)
        filled = [(part, cell.cell_contents) for part, cell in cells if cell != CellType()]
        return [*((part, global_values[part]) for part in code.co_names if part in global_values), *filled]
    attributes = list(getattr(value, "__dict__", {}).items())[:_MOST_PARTS]
    calls = ((call, getattr(type(value), call, None)) for call in ("__getitem__", "__call__", "forward"))
    return [
        *((f"{name}.{key}", part) for key, part in attributes),
        *((call, part) for call, part in calls if part is not None),
    ]
