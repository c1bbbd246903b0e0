"""Where the time of a script goes."""

import functools
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import dataloader

from modelscope_cli.hooks.torch_private import in_backward, left_alone_by_compiler
from modelscope_cli.watching.error_isolation import around_steps, replaced
from modelscope_cli.watching.steps import is_running

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
VALIDATION, DEVICE, WATCHING, REST = "validation", "device", "watching", "rest"
_VALIDATION_DATA = "validation data"
# Functions of tensors that wait for what an accelerator computes.
_WAITING = ("item", "tolist", "cpu", "numpy", "to", "__bool__", "__float__", "__int__", "__index__")


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
        self._n_steps = self._n_passes = 0
        self._workers: int | None = None
        self._frames: list[FrameType] = []
        self.is_resting = False
        self._is_rest_due = False

    def rest(self) -> None:
        """Look at no clock from the end of the running step on."""
        self._is_rest_due = True

    def resume(self) -> None:
        """Look at the clock again, after steps that are left out of all sums."""
        self.is_resting = self._is_rest_due = False
        self._since = self._clock()

    @left_alone_by_compiler
    def begin(self, part: str) -> None:
        """Begin a part; the one around it pauses."""
        if threading.get_ident() == self._thread and not self.is_resting:
            self._credit()
            self._open.append(part)

    @left_alone_by_compiler
    def end(self, part: str) -> None:
        """End a part, and what an exception left open inside it."""
        if threading.get_ident() == self._thread and part in self._open and not self.is_resting:
            self._credit()
            while self._open.pop() != part:
                pass

    def begin_pass(self, is_training: bool) -> None:
        """Begin the outermost forward of a model."""
        self._n_passes += 1
        self.begin(FORWARD if is_training else VALIDATION)

    def end_pass(self) -> None:
        last = next((part for part in reversed(self._open) if part in (FORWARD, VALIDATION)), None)
        if last is not None:
            self.end(last)

    def end_step(self) -> None:
        """End a step of an optimizer: what comes now belongs to the next one."""
        self._credit()
        for part, seconds in self._now.items() if self._n_steps else ():
            self._later[part] += seconds
        self._n_steps += 1
        self._now.clear()

    def _credit(self) -> None:
        now = self._clock()
        if self._since is not None:
            self._now[self._open[-1] if self._open else REST] += now - self._since
        self._since = now

    def to_dict(self) -> dict[str, Any]:
        """Return the sums so far: of all steps but the first, and of a script without steps of everything."""
        seconds = dict(self._later if self._n_steps else self._now)
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
            "workers": self._workers,
        }

    @contextmanager
    def installed(self, is_evaluating: Callable[[], bool]) -> Iterator[None]:
        """Look at the clock while open; `is_evaluating` tells whether the script validates."""
        iterator, loader = dataloader._BaseDataLoaderIter, dataloader.DataLoader
        timed = self._timed

        def part_of_data() -> str:
            return _VALIDATION_DATA if not torch.is_grad_enabled() or is_evaluating() else DATA

        def count(loading: Any) -> None:
            if part_of_data() == DATA:
                self._workers = max(self._workers or 0, loading._num_workers)

        with ExitStack() as stack:
            stack.enter_context(around_steps(self._before_step, self._after_step))
            stack.enter_context(
                replaced(
                    (iterator, "__next__", timed(iterator.__next__, part_of_data, count)),
                    (loader, "__iter__", timed(loader.__iter__, part_of_data)),
                    (torch.autograd, "backward", timed(torch.autograd.backward, lambda: BACKWARD)),
                    *((Tensor, name, self._waiting(name)) for name in _WAITING if has_accelerator()),
                )
            )
            yield

    def _timed(
        self,
        function: Callable[..., Any],
        part_of: Callable[[], str],
        see: Callable[[Any], None] | None = None,
    ) -> Callable[..., Any]:
        """Wrap a function: its time is that of a part; `see` is given its first argument."""
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
                see(args[0])
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
            self.begin(DEVICE)
            try:
                return function(tensor, *args, **kwargs)
            finally:
                self.end(DEVICE)

        return left_alone_by_compiler(waiting, with_callees=False)

    def _is_waited_for(self, tensor: Tensor, name: str, args: Any, kwargs: Any) -> bool:
        if not is_on_accelerator(tensor) or (self._open and self._open[-1] in (WATCHING, DEVICE)):
            return False
        target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
        # It may be a tensor to be like
        return name != "to" or str(getattr(target, "device", target)) == "cpu"

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
                self.is_resting = self._is_rest_due
