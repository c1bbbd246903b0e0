"""Random generators that every worker process of a data loader gets as the same copy."""

import dis
import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from modelscope_cli.records.watch import SAME_NOISE
from modelscope_cli.watching.guard import Guard, replaced

_DEEP = 4  # data sets and transforms inside each other
_CALLED = "__getitem__", "__getitems__", "__call__", "forward", "__iter__"


@contextmanager
def watched_loaders(guard: Guard) -> Iterator[None]:
    """Look at a loader's data set when its workers are about to start."""
    original = DataLoader.__iter__

    @functools.wraps(original)
    def iterate(loader: Any) -> Any:
        guard(_look, loader, guard.tell_once)
        return original(loader)

    with replaced((DataLoader, "__iter__", iterate)):
        yield


def _look(loader: Any, tell: Callable[[str, str], object]) -> None:
    if loader.num_workers < 2 or loader.worker_init_fn is not None:
        return  # torch gives each worker other seeds for what is global
    for owner, name in _generators(loader.dataset, _DEEP):
        kind = type(owner).__name__
        tell(
            SAME_NOISE,
            f"{kind} draws from {name}, which was made before the {loader.num_workers} workers start: each of "
            "them, and each epoch, begins with a copy of it and draws the same numbers",
        )


def _generators(owner: Any, deep: int) -> Iterator[tuple[Any, str]]:
    """Give each data set and transform whose code draws from a generator, and its name."""
    numpy = sys.modules.get("numpy.random")
    kinds = (random.Random, torch.Generator) + ((numpy.Generator, numpy.RandomState) if numpy else ())
    for method in _CALLED:
        function = getattr(type(owner), method, None)
        code = getattr(function, "__code__", None)
        made = (
            {one.argval for one in dis.get_instructions(code) if one.opname.startswith("STORE")}
            if code
            else set()
        )
        for name in code.co_names if code is not None else ():
            if name in made:
                continue  # anew, in each worker
            found = getattr(owner, name, None)
            found = found if isinstance(found, kinds) else getattr(function, "__globals__", {}).get(name)
            if isinstance(found, kinds):
                yield owner, name
    if deep:
        held = vars(owner).values() if hasattr(owner, "__dict__") else ()
        parts = [
            part
            for one in held
            for part in (one if isinstance(one, (list, tuple)) and len(one) < 100 else [one])
        ]
        for part in parts:
            if type(part).__module__ not in ("builtins", "torch", "numpy") and hasattr(part, "__dict__"):
                yield from _generators(part, deep - 1)
