"""Where the time of a script goes, and whether its memory grows step by step."""

import builtins
import ctypes
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, distributed
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import in_backward, left_alone_by_compiler
from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.source_location import place_of_caller
from modelscope_cli.watching.steps import is_running

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
VALIDATION, PRINTING, SAVING, WATCHING, REST = "validation", "printing", "saving", "watching", "rest"
DEVICE, RANKS = "device", "ranks"
_VALIDATION_DATA = "validation data"
_COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, VALIDATION)
# Functions of tensors that wait for what an accelerator computes.
_WAITING = ("item", "tolist", "cpu", "numpy", "to", "__bool__", "__float__", "__int__", "__index__")
_COLLECTIVE = ("all_reduce", "barrier")
_COLLECTING = 16  # forward passes before the first step, such as those of an agent
_PLACED = 8  # steps in which the line that waits is looked up


def has_accelerator() -> bool:
    """Tell whether tensors may be on a device that computes while the script goes on."""
    return torch.accelerator.is_available()


def is_on_accelerator(tensor: Tensor) -> bool:
    """Tell whether a tensor is computed while the script goes on."""
    return tensor.device.type not in ("cpu", "meta")


class StepTime:
    """Credits each moment to the innermost part that has begun, in the thread that made this.

    An accelerator is not waited for: what it still computes counts where the script waits for it.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.perf_counter
        self._thread = threading.get_ident()
        self._open: list[str] = []
        self._since: float | None = None
        self._now: dict[str, float] = defaultdict(float)  # since the last step
        self._later: dict[str, float] = defaultdict(float)  # of all steps but the first
        self._before: dict[str, float] | None = None  # the first batch or pass: imports, reading files
        self._first: dict[str, float] | None = None
        self._n_steps = self._n_passes = self._n_images = 0
        self._workers: int | None = None
        self._frames: list[FrameType] = []
        self._idle_since: float | None = None  # an accelerator, which has done all it was given
        self._idle = 0.0
        self._n_waited = 0
        self._has_waited = False
        self._places: Counter[str] = Counter()
        self.memory = MemoryGrowth()
        self.is_resting = False
        self._is_rest_due = False

    def rest(self) -> None:
        """Look at no clock from the end of the running step on."""
        self._is_rest_due = True

    def resume(self, n_missed: int) -> None:
        """Look at the clock again, after this many steps that are left out of all sums."""
        self.is_resting = self._is_rest_due = False
        self._since = self._clock()
        self.memory.miss(n_missed)

    @left_alone_by_compiler
    def begin(self, part: str) -> None:
        """Begin a part; the one around it pauses."""
        if threading.get_ident() == self._thread and not self.is_resting:
            self._credit()
            if self._before is None and part in (DATA, FORWARD, BACKWARD, OPTIMIZER):
                self._before, self._now = self._now, defaultdict(float)
            self._open.append(part)
            if self._idle_since is not None and part in _COMPUTING:
                self._idle += (self._since or 0.0) - self._idle_since
                self._idle_since = None

    @left_alone_by_compiler
    def end(self, part: str) -> None:
        """End a part, and what an exception left open inside it."""
        if threading.get_ident() == self._thread and part in self._open and not self.is_resting:
            self._credit()
            while self._open.pop() != part:
                pass

    def begin_pass(self, *, is_inside: bool = False) -> None:
        """Begin a forward of a model; nothing happens inside one."""
        if not is_inside:
            self._n_passes += 1
            self.begin(FORWARD if torch.is_grad_enabled() else VALIDATION)

    def end_pass(self, *, is_inside: bool = False) -> None:
        """End a forward, begun with or without gradients; nothing happens inside one."""
        last = next((part for part in reversed(self._open) if part in (FORWARD, VALIDATION)), None)
        if last is not None and not is_inside:
            self.end(last)

    def end_step(self) -> None:
        """End a step of an optimizer: what comes now belongs to the next one."""
        self._credit()
        if self._first is None:
            self._first = dict(self._now)
            if self._n_passes > _COLLECTING:  # what it learns from is made between them
                self._first.pop(REST, None)
        else:
            for part, seconds in self._now.items():
                self._later[part] += seconds
            self._n_waited += self._has_waited
        if self._first is not None and not self._n_steps:
            self._idle = 0.0
        self._n_steps += 1
        self._has_waited = False
        self._now.clear()
        self.memory.end_step()

    def _credit(self) -> None:
        now = self._clock()
        if self._since is not None:
            self._now[self._open[-1] if self._open else REST] += now - self._since
        self._since = now

    def to_dict(self) -> dict[str, Any]:
        """Return the sums so far: of all steps but the first, and of a script without steps of everything."""
        seconds = dict(self._later)
        for earlier in (self._before or {}, self._now) if not self._n_steps else ():
            for part, spent in earlier.items():
                seconds[part] = seconds.get(part, 0.0) + spent
        waiting, running = seconds.pop(_VALIDATION_DATA, 0.0), seconds.pop(VALIDATION, 0.0)
        if self._n_steps and waiting + running:
            seconds[VALIDATION] = waiting + running
        elif not self._n_steps:  # nothing is trained, so nothing is validated
            seconds[DATA] = seconds.get(DATA, 0.0) + waiting
            seconds[FORWARD] = seconds.get(FORWARD, 0.0) + running
        return {
            "steps": max(self._n_steps - 1, 0),
            "passes": self._n_passes,
            "seconds": seconds,
            "first": sum((self._first or {}).values()),
            "workers": self._workers,
            "images": self._n_images,
            "waited": self._n_waited,
            "idle": self._idle,
            "place": next((place for place, _ in self._places.most_common(1)), None),
        }

    @contextmanager
    def installed(self, is_evaluating: Callable[[], bool]) -> Iterator[None]:
        """Look at the clock while open.

        Args:
            is_evaluating: whether the script validates.
        """
        iterator, loader = dataloader._BaseDataLoaderIter, dataloader.DataLoader
        timed = self._timed

        def part_of_data() -> str:
            return _VALIDATION_DATA if not torch.is_grad_enabled() or is_evaluating() else DATA

        def count(loading: Any, batch: Any) -> None:
            if part_of_data() == DATA:
                self._workers = max(self._workers or 0, loading._num_workers)
                first = batch[0] if isinstance(batch, list | tuple) and batch else batch
                if not isinstance(first, torch.Tensor) or not first.ndim:  # which takes longer than to look
                    first = next((x for _, x in tensors_in(batch) if x.ndim), None)
                self._n_images += len(first) if first is not None and self._n_steps else 0

        with ExitStack() as stack:
            stack.callback(optim.register_optimizer_step_pre_hook(self._before_step).remove)
            stack.callback(optim.register_optimizer_step_post_hook(self._after_step).remove)
            stack.enter_context(
                replaced(
                    (
                        iterator,
                        "__next__",
                        timed(self.memory.of_data(iterator.__next__), part_of_data, count),
                    ),
                    (loader, "__iter__", timed(loader.__iter__, part_of_data)),
                    (
                        torch.autograd,
                        "backward",
                        timed(torch.autograd.backward, lambda: BACKWARD, self.memory.see_loss),
                    ),
                    (torch, "save", timed(torch.save, lambda: SAVING)),
                    (builtins, "print", timed(print, lambda: PRINTING)),
                    (logging.Logger, "handle", timed(logging.Logger.handle, lambda: PRINTING)),
                    *(
                        (distributed, name, timed(getattr(distributed, name), lambda: RANKS))
                        for name in _COLLECTIVE
                        if hasattr(distributed, name)
                    ),
                    *((Tensor, name, self._waiting(name)) for name in _WAITING if has_accelerator()),
                )
            )
            yield

    def _timed(
        self,
        function: Callable[..., Any],
        part_of: Callable[[], str],
        see: Callable[[Any, Any], None] | None = None,
    ) -> Callable[..., Any]:
        """Wrap a function: its time is that of a part; `see` is given its first argument and its result."""
        of = left_alone_by_compiler(part_of)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.is_resting or torch.compiler.is_compiling() or in_backward():
                return function(*args, **kwargs)
            part = of()
            self.begin(part)
            try:
                result = function(*args, **kwargs)
            finally:
                self.end(part)
            if see is not None:
                see(args[0] if args else None, result)
            return result

        return left_alone_by_compiler(timed, with_callees=False)

    def _waiting(self, name: str) -> Callable[..., Any]:
        """Wrap a function of tensors that waits for an accelerator, if it is given one of its tensors."""
        function = getattr(Tensor, name)

        @functools.wraps(function)
        def waiting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            is_skipped = torch.compiler.is_compiling() or not self._is_waited_for(tensor, name, args, kwargs)
            if is_skipped or in_backward():
                return function(tensor, *args, **kwargs)
            if self._n_steps < _PLACED and (place := place_of_caller()) is not None:
                self._places[place] += 1
            self.begin(DEVICE)
            try:
                return function(tensor, *args, **kwargs)
            finally:
                self.end(DEVICE)
                self._has_waited = True
                self._idle_since = self._since

        return left_alone_by_compiler(waiting, with_callees=False)

    def _is_waited_for(self, tensor: Tensor, name: str, args: Any, kwargs: Any) -> bool:
        if not is_on_accelerator(tensor) or (self._open and self._open[-1] in (WATCHING, DEVICE)):
            return False
        return name != "to" or "cpu" in (*map(str, args[:1]), str(kwargs.get("device")))

    # An optimizer may call another one's step, or its parent class's: the outermost counts.

    @left_alone_by_compiler
    def _before_step(self, *given: Any) -> None:
        if not (self.is_resting or torch.compiler.is_compiling()):
            self._frames = [frame for frame in self._frames if is_running(frame)]
            if not self._frames:
                self.begin(OPTIMIZER)
            self._frames.append(sys._getframe(1))

    @left_alone_by_compiler
    def _after_step(self, *given: Any) -> None:
        if self._frames and not torch.compiler.is_compiling():
            self._frames.pop()
            if not self._frames:
                self.end(OPTIMIZER)
                self.end_step()
                if self._is_rest_due:
                    self.is_resting = True
                    self.memory.miss(0)


_MOST = 64  # samples; with more, every other one is dropped
_SPLIT = 4  # of as many samples, one is followed by another in the next step
_RECENT = 2  # steps whose loss may still be in a variable
_KEY = "modelscope"


class _StepMark:
    """Exists as long as the node of the graph in whose metadata it is."""


class MemoryGrowth:
    """Reads the memory in use, which takes tenths of a millisecond, at the end of at most 64 steps of a run.

    Args:
        read: returns the bytes in use; None if unknown.
    """

    def __init__(self, read: Callable[[], int | None] | None = None) -> None:
        self._read = read or bytes_in_use
        self._stride = 2
        self._n_steps = self._due = 0
        self._samples: list[tuple[int, int]] = []
        self._marks: list[tuple[int, weakref.ref[_StepMark]]] = []
        self._marked = self._kept = 0
        self._before: int | None = None  # the step that is looked at more closely
        self._in_data = self._in_steps = 0

    def end_step(self) -> None:
        step = self._n_steps
        self._n_steps += 1
        if self._before is None and step < self._due:
            return
        now = self._read()
        if self._before is not None and now is not None:
            self._in_steps += now - self._before
        self._before = None
        if step < self._due:
            return
        self._due = step + self._stride
        if now is None:
            return
        self._samples.append((step, now))
        self._before = now if len(self._samples) % _SPLIT == 0 else None
        older = [mark for at, mark in self._marks if at <= step - _RECENT]
        self._marked, self._kept = len(older), sum(mark() is not None for mark in older)
        if len(self._samples) > _MOST:
            self._stride *= 2
            self._samples = self._samples[::2]
            self._due = self._samples[-1][0] + self._stride
            steps = {at for at, _ in self._samples}
            self._marks = [one for one in self._marks if one[0] in steps]

    def miss(self, n_steps: int) -> None:
        """Count steps that were not seen."""
        self._n_steps, self._before = self._n_steps + n_steps, None

    def see_loss(self, loss: Any, _: Any = None) -> None:
        """Mark the graph of a loss of some steps."""
        if self._n_steps < self._due or (self._marks and self._marks[-1][0] == self._n_steps):
            return
        metadata = getattr(loss.grad_fn, "metadata", None) if isinstance(loss, Tensor) else None
        if metadata is not None:
            metadata[_KEY] = mark = _StepMark()
            self._marks.append((self._n_steps, weakref.ref(mark)))

    def of_data(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what returns a batch, whose data set may keep what it has loaded."""

        @functools.wraps(function)
        def loading(*args: Any, **kwargs: Any) -> Any:
            before = self._read() if self._before is not None else None
            result = function(*args, **kwargs)
            if before is not None and self._before is not None:
                batch = sum(tensor.nbytes for _, tensor in tensors_in(result))
                self._in_data += max((self._read() or before) - before - batch, 0)
            return result

        return loading

    def to_dict(self) -> dict[str, Any]:
        """Return the samples, and what is known about the growth."""
        return {
            "step": [step for step, _ in self._samples],
            "bytes": [n_bytes for _, n_bytes in self._samples],
            "in_data": self._in_data / self._in_steps if self._in_steps > 0 else 0.0,
            "marked": self._marked,
            "kept": self._kept,
        }


class _Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` returns: ten numbers, of which two count."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcd", "mapped", *"ef", "used", *"gh"))


@functools.cache
def _allocated() -> Callable[[], Any] | None:
    """Return glibc's function if it manages most memory; another allocator may have replaced it."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = _Allocated
    found = function()
    return function if 4 * (found.used + found.mapped) > (_resident() or 0) else None


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            resident, shared = file.read().split()[1:3]
            return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def bytes_in_use() -> int | None:
    """Return the bytes that are allocated, else those in memory, and those of tensors on an accelerator."""
    function = _allocated()
    if function is not None:
        found = function()
        n_bytes = found.used + found.mapped
    elif (n_bytes := _resident()) is None:
        return None
    on_device = _on_device()
    return int(n_bytes + (on_device() if on_device is not None else 0))


@functools.cache  # asking takes longer than reading
def _on_device() -> Callable[[], int] | None:
    """Return torch's function for the memory of tensors on an accelerator; None without one."""
    is_available = torch.accelerator.is_available()
    return getattr(torch.get_device_module(), "memory_allocated", None) if is_available else None
