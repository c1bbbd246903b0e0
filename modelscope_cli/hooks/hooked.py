"""What the hooks of all kinds share: which calls they mean, what they do to a tensor, what they know."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.actions import LeftAloneError, Place, change, part_of
from modelscope_cli.hooks.channels import ChannelFinder
from modelscope_cli.hooks.inspect_tensor import describe, refuse_nan
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, Intervention
from modelscope_cli.hooks.sharing import SharedGradients, SharedValues
from modelscope_cli.hooks.spec import HookSpec
from modelscope_cli.hooks.tally import Tally
from modelscope_cli.hooks.usercall import Moved, call_function


class Pass(Intervention):
    """Changes nothing, and stands before the hooks: it knows what they need to know of the pass they are in.

    Args:
        seed: of noise and shuffling, which are the same at the same call of the same pass of every session.
        is_watching: some function of the user's may work in place; then find out who else reads what.
    """

    def __init__(self, model: nn.Module, seed: int, is_watching: bool) -> None:
        self.number = 0  # 1 in the first pass of a session
        self.values = SharedValues()
        self.gradients = SharedGradients(model)
        self._channels = ChannelFinder()
        self._seed = seed
        self._is_watching = is_watching

    def begin(self, *, is_again: bool) -> None:
        if is_again:
            self.number -= 1  # noise and shuffling are drawn by the number of the pass

    def change_inputs(
        self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if call.depth == 0:
            self._let_go()
            self.number += 1
        if self._is_watching:
            self.values.see(name_of_call(call), "the input", (args, kwargs))
            self.gradients.see(name_of_call(call), "the input", (args, kwargs))
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        self._channels.see(module, output)
        if self._is_watching:
            self.values.see(name_of_call(call), "the output", output)
            self.gradients.see(name_of_call(call), "the output", output)
            if call.depth == 0:
                self.gradients.follow(output)
        return output

    def detach(self) -> None:
        self._let_go()
        self.number = 0

    def _let_go(self) -> None:
        self.values.clear()
        self.gradients.clear()

    def place(self, module: nn.Module, tensor: Tensor, *key: Any) -> Place:
        """Return the place of an input or output of `module`, with a seed that depends on the pass and `key`."""
        return Place(self._channels.find(module, tensor), True, self.seed_for(*key))

    def seed_for(self, *key: Any) -> int:
        return zlib.crc32(repr((self._seed, self.number, *key)).encode())


def name_of_call(call: Call) -> str:
    """Return the name a pattern understands, the type for the model itself."""
    return call.label or call.type


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a hook fires.

    Attributes:
        words: `the output of`, what stands before the label.
        label: of a call, or the name of a parameter.
        path: which tensor of several; empty for a lone one.
    """

    words: str
    label: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.words} {self.label}" + (f" [{self.path}]" if self.path else "")

    @property
    def key(self) -> str:
        """Its name in a file of tensors."""
        return f"{self.label}.{self.path}" if self.path else self.label


@dataclass(frozen=True, slots=True)
class HookedAt:
    """What one `--hook` was bound to.

    Attributes:
        number: its place on the command line, from 0.
        names: the layers it means, in the order of the model.
        calls: the exact calls in the same order, where its pattern speaks of calls; else None.
        function: the user's own, for `call`.
        say: is given the lines of `print`.
    """

    spec: HookSpec
    number: int
    names: tuple[str, ...]
    calls: tuple[tuple[str, int], ...] | None
    function: Callable[..., Any] | None
    say: Callable[[str], None]

    def means(self, call: Call) -> bool:
        if self.calls is not None:
            return (call.name, call.index) in self.calls
        return call.name in self.names


class Hooked(Intervention):
    """One `--hook` at work; a subclass for each kind says when.

    Attributes:
        tally: what it did in the first session.
    """

    def __init__(self, target: HookedAt, current: Pass) -> None:
        self.target = target
        self.spec = target.spec
        self.tally = self.counted = Tally()
        self.current = current

    def begin(self, *, is_again: bool) -> None:
        self.counted = Tally() if is_again else self.tally

    def repeat(self) -> None:
        self.counted = Tally()

    def act_on_each(self, value: Any, spot: Spot, place: Callable[[Tensor, int], Place]) -> Any:
        """Return `value`, an input or output, with the action done to each tensor that is meant."""
        tensors = tensors_in(value)
        self.check_index(len(tensors), spot)
        numbers = iter(range(len(tensors)))

        def act(path: str, tensor: Tensor) -> Tensor:
            n = next(numbers, 0)
            if self.spec.index not in (None, n):
                return tensor
            return self.act(tensor, place(tensor, n), replace(spot, path=path) if len(tensors) > 1 else spot)

        return map_tensors(value, act)

    def act(self, tensor: Tensor, place: Place, spot: Spot) -> Tensor:
        """Do the action to one tensor and count what it did."""
        self._check_channels(tensor, place, spot)
        try:
            if self.spec.is_looking:
                self._look(part_of(self.spec, tensor, place), spot)
                return tensor
            changed = change(self.spec, tensor, place)
        except LeftAloneError as reason:
            self.counted.left_alone = self.counted.left_alone or f"{spot}: {reason}"
            return tensor
        self.counted.compare(tensor, changed)
        return changed

    def _look(self, tensor: Tensor, spot: Spot) -> None:
        if self.spec.action == "raise-on-nan":
            refuse_nan(self.spec, tensor, str(spot))
        elif self.counted is not self.tally:
            return  # said and saved in the first session
        elif self.spec.action == "print":
            self.target.say(f"{self.spec.head} {spot.key}: {describe(tensor)}")
        else:
            again = f"/{self.current.number}" if self.current.number > 1 else ""
            self.counted.saved[spot.key + again] = tensor.detach().clone(
                memory_format=torch.contiguous_format
            )

    def call_function(self, arguments: tuple[Any, ...], given: Any, spot: Spot, moved: Moved) -> Any:
        """Return what the user's function makes of `given`, one of its `arguments`."""
        assert self.target.function is not None
        return call_function(
            self.spec, self.target.function, arguments, given, str(spot), self.counted, moved
        )

    def check_index(self, n: int, spot: Spot) -> None:
        """Refuse an `(INDEX)` that is not there.

        Raises:
            UsageError: there are only `n` (exit 2).
        """
        index = self.spec.index
        if index is not None and index >= n:
            self._refuse(f"({index})", n, spot, replace(self.spec, index=0 if n else None))

    def _check_channels(self, tensor: Tensor, place: Place, spot: Spot) -> None:
        last = max((last for _, last in self.spec.channels), default=-1)
        if place.channel_dim is not None and last >= tensor.shape[place.channel_dim]:
            n = tensor.shape[place.channel_dim]
            self._refuse(f"channel {last}", n, spot, replace(self.spec, channels=((0, n - 1),)))

    def _refuse(self, what: str, n: int, spot: Spot, better: HookSpec) -> NoReturn:
        there = f"only 0..{n - 1}" if n > 1 else "only 0" if n else "nothing at all"
        raise UsageError(f"--hook '{self.spec}': there is no {what} at {spot}, {there}", f"--hook '{better}'")
