"""Find workers of a data loader that draw the same random numbers, from the states of their generators.

A forked worker has a copy of every generator. Torch seeds its own, Python's and NumPy's in each worker, but no
others. Each worker sends checksums of the states before and after its first batches through a pipe.
"""

import contextlib
import functools
import inspect
import json
import os
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data._utils import fetch as fetching
from torch.utils.data._utils import worker as working

from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.source_location import walk_named

_BATCHES = 4  # of each worker that are reported
_MOST_WORKERS = 64
_MOST_GENERATORS, _DEPTH = 8, 5  # of a data set, and depth of the search


class WorkerWatch:
    """The reports of the workers of a process."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None
        self._text = b""
        # States by generator and worker, one more than batches.
        self._states: dict[str, dict[tuple[int, int], list[int | None]]] = {}

    @contextmanager
    def installed(self, is_ours: Callable[[], bool], is_validating: Callable[[], bool]) -> Iterator[None]:
        """Make every worker forked while open report; spawned workers are not changed.

        Args:
            is_ours: returns whether this process is not a fork.
            is_validating: returns whether the script validates.
        """
        if not hasattr(os, "fork"):  # Windows: workers are spawned
            yield
            return
        self._pipe = read, write = os.pipe()
        for end in (read, write):
            os.set_blocking(end, False)
        original = working._worker_loop

        @functools.wraps(original)  # pickled by name, so that a spawned worker gets the original
        def watched(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                arguments = inspect.signature(original).bind(*args, **kwargs).arguments
                if not is_ours():  # a forked process
                    is_training = torch.is_grad_enabled() and not is_validating()
                    _report_batches((arguments["base_seed"], arguments["worker_id"]), write, is_training)
            return original(*args, **kwargs)

        try:
            with replaced((working, "_worker_loop", watched)):
                yield
        finally:
            self._pipe = None
            os.close(read)
            os.close(write)

    def take(self) -> str | None:
        """Read the reports; describe what repeats, None if nothing does."""
        while self._pipe is not None:
            try:
                chunk = os.read(self._pipe[0], 1 << 16)
            except BlockingIOError:
                break
            self._text += chunk
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            seed, number, is_training, is_ordered, states = json.loads(line)
            for name, state in states.items():
                courses = self._states.setdefault(name, {})
                if len(courses) < _MOST_WORKERS:
                    course = courses.setdefault((seed, number), [])
                    course.append(state)
                    if is_ordered and len(course) > _BATCHES:  # the same order each time, as in validation
                        course.append(seed if is_training else None)
        return next((words for name in self._states if (words := self._repeats(name)) is not None), None)

    def _repeats(self, name: str) -> str | None:
        first_worker: dict[tuple[int | None, ...], tuple[int, int]] = {}
        for worker, states in self._states[name].items():
            drawn = states[: _BATCHES + 1]
            is_used = len(drawn) > _BATCHES and all(before != after for before, after in pairwise(drawn))
            if (
                is_used
                and None not in states
                and (other := first_worker.setdefault(tuple(states), worker)) != worker
            ):
                workers = (
                    "workers of a DataLoader" if other[0] == worker[0] else "the workers of several epochs"
                )
                return f"{workers} draw the same random numbers for different samples, from copies of {name}"
        return None


def _report_batches(worker: tuple[int, int], pipe: int, is_training: bool) -> None:
    """Write the states of all generators in a worker before the first batch, and after each of the first few."""
    original: Callable[..., Any] = fetching._MapDatasetFetcher.fetch
    generators: dict[str, Any] = {}
    last, n_batches, is_ordered = -1, 0, True

    def report(dataset: Any, index: Any, n_behind: int) -> None:
        nonlocal last, is_ordered
        indices = index if isinstance(index, (list, tuple)) else [index]
        if n_behind:
            is_ordered &= list(indices) == sorted(indices) and indices[0] > last
            last = indices[-1]
        generators.update({} if generators else _find_generators(dataset))
        states = {name: _state_of(one) for name, one in generators.items()}
        os.write(pipe, json.dumps([*worker, is_training, is_ordered, states]).encode() + b"\n")

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        nonlocal n_batches
        n_batches += 1
        with contextlib.suppress(Exception):
            if n_batches == 1:
                report(self.dataset, index, 0)
        result = original(self, index)
        with contextlib.suppress(Exception):
            if n_batches <= _BATCHES:
                report(self.dataset, index, n_batches)
        return result

    fetching._MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def _find_generators(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators of torch, Python and NumPy, and those in a data set and its functions."""
    yield "torch", torch.default_generator
    yield "random", random
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if (numpy := sys.modules.get("numpy")) is not None:
        yield "numpy.random", numpy.random.get_state.__self__
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    contents = {id(value): (name, value) for _, name, value in walk_named([("dataset", dataset)], _DEPTH)}
    yield from [pair for pair in contents.values() if isinstance(pair[1], kinds)][:_MOST_GENERATORS]


def _state_of(generator: Any) -> int:
    """Return a checksum of a state, without changing it."""
    if isinstance(generator, torch.Generator):
        return zlib.crc32(generator.get_state().numpy().tobytes())
    if hasattr(generator, "getstate"):
        return zlib.crc32(pickle.dumps(generator.getstate()))
    bits = getattr(generator, "bit_generator", None)
    return zlib.crc32(pickle.dumps(bits.state if bits is not None else generator.get_state()))
