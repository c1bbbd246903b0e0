"""How long each call takes, forward and backward."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn

from modelscope_cli.analysis.summary.memory import Key, NodeOwners, Owner, loss_of
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.session import Call, HookSession
from modelscope_cli.hooks.torch_private import sequence_of
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Args, Arguments, Kwargs

_PASSES = 5  # timed, after a warm-up
_MUCH = 0.8  # of the time: how many calls take it is reported


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds by call."""

    # forward, backward: with everything inside the call
    forward: Mapping[Key, float]
    backward: Mapping[Key, float]
    own: Mapping[Key, float]  # of both, without the calls inside it

    def slowest(self, model: str) -> tuple[str, ...]:
        """Return the labels of the fewest calls that take 80 % of the time; `model` is that of the model itself."""
        labels: list[str] = []
        missing = _MUCH * sum(self.own.values())
        for (name, call), spent in sorted(self.own.items(), key=lambda one: -one[1]):
            if missing <= 0:
                break
            missing -= spent
            labels.append(label(name or model, call))
        return tuple(labels)


def measure_times(
    model: nn.Module, args: Arguments, *, with_backward: bool = False, is_training: bool = False
) -> Times:
    """Return the times of every call: medians over several passes after a warm-up.

    The hooks of the calls inside a call are included in its time. An accelerator records events and is waited for
    at the end of each pass; several of them, at the beginning and the end of each call.

    Args:
        with_backward: also of the backward of the sum of all outputs.
        is_training: in train mode.
    """
    clock = _Clock(model)
    forward, own, around = _passes(model, args, clock, is_training, with_gradients=False)
    backward: dict[Key, float] = defaultdict(float)
    if with_backward:
        for key, spent in _passes(model, args, clock, is_training, with_gradients=True)[1].items():
            own[key] = own.get(key, 0.0) + spent
            place: Key | None = key
            while place is not None:
                backward[place] += spent
                place = around.get(place)
    return Times(forward, backward, own)


def _passes(
    model: nn.Module, args: Arguments, clock: "_Clock", is_training: bool, *, with_gradients: bool
) -> tuple[dict[Key, float], dict[Key, float], dict[Key, Key]]:
    """Return milliseconds by call: of forwards with everything inside it, of forwards or backwards by itself; and
    the call around each."""
    whole: dict[Key, list[float]] = defaultdict(list)
    own: dict[Key, list[float]] = defaultdict(list)
    watch = _PassTimer(clock)
    with HookSession(model, [watch], is_training=is_training, with_gradients=with_gradients) as session:
        for n in range(_PASSES + 1):
            watch.begin()
            output = session.run(args)
            if with_gradients:
                watch.run_backward(output)
                for parameter in model.parameters():
                    parameter.grad = None
            del output
            forward, alone = watch.forward(), watch.backward()
            for key, spent in forward.items() if n else ():
                whole[key].append(spent)
            for key, spent in (
                (alone if with_gradients else watch.without_inner(forward)).items() if n else ()
            ):
                own[key].append(spent)
    forward, alone = ({key: median(spent) for key, spent in times_of.items()} for times_of in (whole, own))
    return forward, alone, watch.around


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


class _PassTimer(NodeOwners):
    """Records when each call of a forward begins and ends, and when each node of its backward begins."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock
        self._started: list[Any] = []
        self.begin()

    def begin(self) -> None:
        self.around: dict[Key, Key] = {}
        self._spans: list[tuple[Key, Any, Any]] = []
        self._nodes: list[tuple[Owner, Any]] = []

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        super().enter(call, module, args, kwargs)
        if call.depth:
            self.around[self.open[-1]] = self.open[-2]
        self._started[call.depth :] = [self._clock.mark()]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self._spans.append(((call.name, call.index), self._started[call.depth], self._clock.mark()))
        super().leave(call, module, inputs, output, is_innermost)

    def run_backward(self, output: Any) -> None:
        """Run the backward of the sum of an output. The time of a node lasts until the next one begins; one that
        accumulates a gradient belongs to the one before it."""
        loss = loss_of(output)
        if loss is None:
            raise CannotRunError("no output depends on anything trainable", "leave out the column backward")
        visited: set[Any] = set()
        todo = [loss.grad_fn]
        while todo:
            node = todo.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            todo += [after for after, _ in node.next_functions]
            if (number := sequence_of(node)) is not None:
                node.register_prehook(partial(self._node_begins, self.owner_of(number)))
        loss.backward()
        self._nodes.append(((), self._clock.mark()))

    def _node_begins(self, owner: Owner, gradients: Any) -> None:
        self._nodes.append((owner, self._clock.mark()))

    def forward(self) -> dict[Key, float]:
        """Return the milliseconds of the forward by call, with everything inside it."""
        self._clock.wait()
        return {key: self._clock.ms(begun, ended) for key, begun, ended in self._spans}

    def without_inner(self, spent: Mapping[Key, float]) -> dict[Key, float]:
        """Return times by call without those of the calls inside it."""
        own = dict(spent)
        for key, outer in self.around.items():
            if key in own and outer in own:  # else it raised, and the model went on
                own[outer] -= spent[key]
        return own

    def backward(self) -> dict[Key, float]:
        """Return the milliseconds of the backward by call, without the calls inside it."""
        self._clock.wait()
        milliseconds: dict[Key, float] = defaultdict(float)
        for (owner, begun), (_, ended) in pairwise(self._nodes):
            if owner:
                milliseconds[owner[-1]] += self._clock.ms(begun, ended)
        return milliseconds
