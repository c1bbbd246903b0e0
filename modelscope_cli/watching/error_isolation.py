"""Isolate the recorder: its errors never stop the training, and forked processes are ignored."""

import functools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch.optim import optimizer as optim

from modelscope_cli.errors import UsageError, failed_device
from modelscope_cli.hooks.torch_private import left_alone_by_compiler, unseen_by_modes
from modelscope_cli.plain_text import in_one_line

_CAPTURED = "captured", "a CUDA graph was captured: the steps that it replays are not visible"
_APART = "unwatched", "modelscope trained in this run: such a training has a record of its own"
_watching: set[int] = set()  # processes with a recorder; a fork inherits this


@contextmanager
def alone() -> Iterator[None]:
    """Allow only one recorder in this process."""
    process = os.getpid()
    if process in _watching:
        hint = "end the first watch before the next, or pass it several models; ms.train records its own runs"
        raise UsageError("this process is already being watched", hint)
    _watching.add(process)
    try:
        yield
    finally:
        _watching.discard(process)


def apart(own: "Guard") -> AbstractContextManager[None]:
    """Have every recorder but `own` look at nothing, while open."""
    others = [one for one in Guard.all if one is not own and one.is_open]
    return replaced(*[(one, "paused_by", _APART) for one in others])


class Guard:
    """Calls functions of the recorder.

    Args:
        tell: called with `(kind, message)` of an event.
        clock: returns seconds.

    Attributes:
        is_open: False in a forked process, after an error, while a CUDA graph is captured, and in `apart`.
        spent: seconds spent in the calls while `is_timed`.
    """

    all: ClassVar["weakref.WeakSet[Guard]"] = weakref.WeakSet()

    def __init__(
        self, tell: Callable[[str, str], object], clock: Callable[[], float] = time.process_time
    ) -> None:
        self._tell, self._clock = tell, clock
        self.spent, self.is_timed = 0.0, True
        self._depth = 0
        self._is_broken = False
        self.paused_by: tuple[str, str] | None = None  # the event that says why it looks at nothing
        Guard.all.add(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=functools.partial(_close, weakref.ref(self)))
        self._told: set[str] = set()
        self.step_time: Any = None  # a `StepTime`, which counts what the calls take

    @property
    def is_open(self) -> bool:
        return not self._is_broken and self.paused_by is None

    def close(self) -> None:
        self._is_broken = True

    @left_alone_by_compiler
    def __call__(self, look: Callable[..., object], *args: Any) -> None:
        """Call `look`; after an error report it and do nothing from then on."""
        if not self.is_open:
            if not self._is_broken and self.paused_by is not None:
                self.tell_once(*self.paused_by)
            return
        begun = self._clock() if self.is_timed and not self._depth else None
        if begun is not None and self.step_time is not None:
            self.step_time.begin("watching")
        self._depth += 1
        try:
            with unseen_by_modes():
                look(*args)
        except Exception as error:
            self.close()
            bug = in_one_line(f"this is a bug in modelscope: {type(error).__name__}: {error}", 300)
            why, _ = failed_device(error) or (f"the training continues; {bug}", "")
            self._tell("broken", f"recording stopped: {why}")
        finally:
            self._depth -= 1
            if begun is not None:
                self.spent += self._clock() - begun
                if self.step_time is not None:
                    self.step_time.end("watching")

    def paused_by_captures(self) -> AbstractContextManager[None]:
        """Look at nothing while a CUDA graph is captured, which a number that is read would end; while open."""
        graph = torch.cuda.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end

        def capture_begin(self_: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_broken:
                self.tell_once(*_CAPTURED)
            begin(self_, *args, **kwargs)
            self.paused_by = _CAPTURED

        def capture_end(self_: Any) -> None:
            self.paused_by = None
            end(self_)

        return replaced((graph, "capture_begin", capture_begin), (graph, "capture_end", capture_end))

    def tell_once(self, kind: str, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._tell(kind, message)

    def tell_all(self, events: Iterable[tuple[str, str]]) -> None:
        """Tell each of several events once."""
        for event in events:
            self.tell_once(*event)


def _close(guard: "weakref.ref[Guard]") -> None:
    if (known := guard()) is not None:
        known.close()


@contextmanager
def replaced(*functions: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes by functions, `(owner, name, function)` each, while open.

    An attribute that was replaced again in the meantime is left alone.
    """
    originals = [getattr(owner, name) for owner, name, _ in functions]
    for owner, name, function in functions:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, function), original in zip(functions, originals, strict=True):
            if getattr(owner, name) is function:
                setattr(owner, name, original)


def after(kind: type, then: Callable[[Any], object], name: str = "__init__") -> tuple[type, str, Any]:
    """Return for `replaced` a method of a class that calls `then` with the object afterwards."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(one: Any, *args: Any, **kwargs: Any) -> None:
        original(one, *args, **kwargs)
        then(one)

    return kind, name, left_alone_by_compiler(method, with_callees=False)


StepHook = Callable[[Any, Any, Any], None]
"""Called with an optimizer, and the arguments of its step."""


@contextmanager
def around_steps(begin: StepHook | None = None, end: StepHook | None = None) -> Iterator[None]:
    """Call `begin` before and `end` after every step of an optimizer of torch, while open."""
    with ExitStack() as stack:
        if begin is not None:
            stack.callback(optim.register_optimizer_step_pre_hook(begin).remove)
        if end is not None:
            stack.callback(optim.register_optimizer_step_post_hook(end).remove)
        yield
