"""How long each call takes."""

import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import nn

from modelscope_cli.analysis.summary.memory import Key
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Args, Arguments, Kwargs

_PASSES = 5  # timed, after a warm-up
_MUCH = 0.8  # of the time: how many calls take it is reported


def measure_times(model: nn.Module, args: Arguments) -> tuple[dict[Key, float], dict[Key, float]]:
    """Return the milliseconds of every call, medians over several forwards after a warm-up: with everything inside
    the call, and without the calls inside it.

    The hooks of the calls inside a call are included in its time. An accelerator records events and is waited for
    at the end of each pass; several of them, at the beginning and the end of each call.
    """
    whole: dict[Key, list[float]] = defaultdict(list)
    own: dict[Key, list[float]] = defaultdict(list)
    watch = _PassTimer(_Clock(model))
    with HookSession(model, [watch]) as session:
        for n in range(_PASSES + 1):
            watch.begin()
            session.run(args)
            spent = watch.forward()
            for key, milliseconds in watch.without_inner(spent).items() if n else ():
                whole[key].append(spent[key])
                own[key].append(milliseconds)
    return {key: median(of) for key, of in whole.items()}, {key: median(of) for key, of in own.items()}


def slowest(own: Mapping[Key, float], model: str) -> tuple[str, ...]:
    """Return the labels of the fewest calls that take 80 % of the time; `model` is that of the model itself."""
    labels: list[str] = []
    missing = _MUCH * sum(own.values())
    for (name, call), spent in sorted(own.items(), key=lambda one: -one[1]):
        if missing <= 0:
            break
        missing -= spent
        labels.append(label(name or model, call))
    return tuple(labels)


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
        self._open: list[tuple[Key, Any]] = []
        self.begin()

    def begin(self) -> None:
        self._around: dict[Key, Key] = {}
        self._spans: list[tuple[Key, Any, Any]] = []

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        key = call.name, call.index
        if call.depth:
            self._around[key] = self._open[call.depth - 1][0]
        self._open[call.depth :] = [(key, self._clock.mark())]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        key, started = self._open[call.depth]
        self._spans.append((key, started, self._clock.mark()))

    def forward(self) -> dict[Key, float]:
        """Return the milliseconds of the forward by call, with everything inside it."""
        self._clock.wait()
        return {key: self._clock.ms(begun, ended) for key, begun, ended in self._spans}

    def without_inner(self, spent: Mapping[Key, float]) -> dict[Key, float]:
        """Return times by call without those of the calls inside it."""
        own = dict(spent)
        for key, outer in self._around.items():
            if key in own and outer in own:  # else it raised, and the model went on
                own[outer] -= spent[key]
        return own
