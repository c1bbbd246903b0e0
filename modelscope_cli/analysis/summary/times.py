"""How long each call takes."""

import time
from collections import defaultdict
from statistics import median
from typing import Any

import torch
from torch import nn

from modelscope_cli.analysis.summary.memory import Key
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.records.run import Args, Arguments, Kwargs

_PASSES = 5  # timed, after a warm-up


def measure_times(model: nn.Module, args: Arguments) -> dict[Key, float]:
    """Return the milliseconds of every call with everything in it, medians of several forwards after a warm-up.

    The hooks of the calls inside a call are included in its time. An accelerator records events and is waited for
    at the end of each pass; several of them, at the beginning and the end of each call.
    """
    times: dict[Key, list[float]] = defaultdict(list)
    watch = _PassTimer(_Clock(model))
    with HookSession(model, [watch]) as session:
        for n in range(_PASSES + 1):
            watch.begin()
            session.run(args)
            spent = watch.forward()
            for key, milliseconds in spent.items() if n else ():
                times[key].append(milliseconds)
    return {key: median(of_call) for key, of_call in times.items()}


class _Clock:
    """Reads the time of the CPU or, without waiting for it, of the accelerator of a model."""

    def __init__(self, model: nn.Module) -> None:
        devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
        self._devices = [device for device in devices if device.type not in ("cpu", "meta")]
        module = torch.get_device_module(self._devices[0]) if len(self._devices) == 1 else None
        self._event = getattr(module, "Event", None)

    def mark(self) -> Any:
        if self._event is None:
            self.wait()
            return time.perf_counter()
        event = self._event(enable_timing=True)
        event.record(torch.get_device_module(self._devices[0]).current_stream(self._devices[0]))
        return event

    def wait(self) -> None:
        """Wait for all accelerators."""
        for device in self._devices:
            torch.get_device_module(device).synchronize(device)

    def ms(self, begun: Any, ended: Any) -> float:
        """Return the milliseconds between two moments, waited for."""
        return float(1000 * (ended - begun) if self._event is None else begun.elapsed_time(ended))


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
