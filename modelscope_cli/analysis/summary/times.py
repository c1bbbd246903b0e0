"""How long each call takes."""

import time
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.summary.memory import Key
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.records.run import Args, Arguments, Kwargs

_PASSES = 5  # timed, after a warm-up


def measure_times(model: nn.Module, args: Arguments) -> tuple[dict[Key, float], str]:
    """Return the milliseconds of every call with everything in it, medians of several forwards after a warm-up, and
    what measured them, in words.

    The hooks of the calls inside a call are included in its time. An accelerator records events and is waited for
    at the end of each pass; without events, and several of them, at the beginning and the end of each call.
    """
    times: dict[Key, list[float]] = defaultdict(list)
    clock = _Clock([*model.parameters(), *model.buffers(), *(tensor for _, tensor in tensors_in(args))])
    watch = _PassTimer(clock)
    with HookSession(model, [watch]) as session:
        for n in range(_PASSES + 1):
            watch.begin()
            session.run(args)
            spent = watch.forward()
            for key, milliseconds in spent.items() if n else ():
                times[key].append(milliseconds)
    return {key: median(of_call) for key, of_call in times.items()}, clock.words


class _Clock:
    """Reads the time of the CPU or, without waiting for it, of the accelerator that has these tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        devices = {tensor.device for tensor in tensors}
        self._devices = sorted((one for one in devices if one.type not in ("cpu", "meta")), key=str)
        self._has_events = len(self._devices) == 1
        try:
            self.mark()
        except RuntimeError:  # this backend has no events
            self._has_events = False

    @property
    def words(self) -> str:
        names = " and ".join(map(str, self._devices))
        if self._has_events:
            return f"events of {names}"
        return "the clock of the CPU" + f", which waits for {names} around each call" * bool(names)

    def mark(self) -> Any:
        if not self._has_events:
            self.wait()
            return time.perf_counter()
        event = torch.Event(self._devices[0], enable_timing=True)
        event.record(torch.accelerator.current_stream(self._devices[0]))
        return event

    def wait(self) -> None:
        """Wait for all accelerators."""
        for device in self._devices:
            torch.get_device_module(device).synchronize(device)

    def ms(self, begun: Any, ended: Any) -> float:
        """Return the milliseconds between two moments, waited for."""
        return float(begun.elapsed_time(ended) if self._has_events else 1000 * (ended - begun))


class _PassTimer(Observer):
    """Records when each call of a forward begins and ends."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._started: list[Any] = []
        self.begin()

    def begin(self) -> None:
        self._spans: list[tuple[Key, Any, Any]] = []

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self._started[call.depth :] = [self._clock.mark()]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self._spans.append(((call.name, call.index), self._started[call.depth], self._clock.mark()))

    def forward(self) -> dict[Key, float]:
        """Return the milliseconds of the forward by call, with everything inside it."""
        self._clock.wait()
        return {key: self._clock.ms(begun, ended) for key, begun, ended in self._spans}
