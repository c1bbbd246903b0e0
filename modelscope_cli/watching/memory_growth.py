"""Whether the memory of a training grows step by step, and whether the graphs of its losses are kept."""

import ctypes
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks.layers import tensors_in

_MOST = 64  # samples; with more, every other one is dropped
_RECENT = 2  # steps whose loss may still be in a variable
_KEY = "modelscope"


class _StepMark:
    """Exists as long as the node of the graph in whose metadata it is."""


class MemoryGrowth:
    """Reads the memory in use at the end of at most 64 steps, evenly spread over the run.

    Args:
        read: returns the bytes in use; None if unknown.
    """

    def __init__(self, read: Callable[[], int | None] | None = None) -> None:
        self._read = read or bytes_in_use
        self._stride = 1
        self._n_steps = self._due = 0
        self._samples: list[tuple[int, int]] = []
        self._marks: list[tuple[int, weakref.ref[_StepMark]]] = []
        self._marked = self._kept = 0
        self._before: int | None = None  # the step that is looked at more closely
        self._in_data = self._in_steps = 0

    def end_step(self) -> None:
        """End a step of an optimizer."""
        if self._before is not None and (now := self._read()) is not None:
            self._in_steps += now - self._before
        self._before = None
        step = self._n_steps
        self._n_steps += 1
        if step < self._due:
            return
        self._due, self._before = step + self._stride, self._read()
        if self._before is None:
            return
        self._samples.append((step, self._before))
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
