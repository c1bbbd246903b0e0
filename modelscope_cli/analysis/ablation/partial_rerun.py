"""Run a model again from the middle: what came before a call is given from memory, what follows is computed."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import cloned
from modelscope_cli.hooks.session import Call, HookSession, Intervention
from modelscope_cli.hooks.torch_private import leaves_of, version_of
from modelscope_cli.records.run import Arguments

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A call that need not run again: its output, a copy nobody else holds, and how many calls it is with those
    inside it."""

    name: str
    output: Any
    n_calls: int


class Replay(Intervention):
    """Reruns of a forward in which the output of one call is changed.

    A forward is Python code, so its beginning cannot be left out. But a layer that had finished before the changed
    call can give again what it gave the first time: its `forward` is wrapped for the session, and only what lies
    between such layers (additions, reshapes) is computed again. The results are those of a whole rerun, bit for
    bit, for a model that keeps nothing of a pass.

    A rerun remembers what it computes on its way to the changed call, so no pass is spent on remembering. Go
    through the calls of one input in the order in which they finish, each as often as wanted; `forget` before
    another input. In memory are the outputs of finished calls, of a finished block only its own.

    Args:
        skips_blocks: give again whole blocks. Otherwise every layer is still called, for the sake of other
            interventions, which count calls.

    Attributes:
        is_whole: remember nothing: every rerun computes everything.
    """

    def __init__(self, *, skips_blocks: bool = True) -> None:
        self.is_whole = False
        self._skips_blocks = skips_blocks
        self.forget()

    def forget(self) -> None:
        """Drop what is remembered of an input."""
        self._finished: dict[int, _Finished] = {}  # by place: the order in which calls begin, from 1
        self._begin(None, None)

    def _begin(self, place: int | None, change: Change | None) -> None:
        self._goal = place
        self._change = change
        self._place = 1  # of the call that begins next; without meaning once the goal is behind
        self._is_before_goal = place is not None
        self._is_due = False
        self._is_called = False

    def rerun(self, session: HookSession, args: Arguments, place: int, change: Change) -> Any:
        """Run the model once more with the output of one call changed, and return what it gives.

        Args:
            place: `Call.order` of that call in a pass without reruns.
            change: from what the call gives to what it shall give, which is a new object.
        """
        self._begin(place, change)
        try:
            output = session.run(args)
            if self._is_before_goal:
                raise took_another_way()
        finally:
            self._begin(None, None)
        return output

    def attach(self, name: str, module: nn.Module) -> tuple[RemovableHandle, ...]:
        original = module.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._forward(name, original, args, kwargs)

        module.__dict__["forward"] = forward  # which the snapshot of the session takes away again
        return ()

    def change_inputs(
        self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._is_called = True
        if self._is_before_goal:
            known = self._finished.get(self._place)
            if known is not None and known.name != call.name:
                raise took_another_way()
        return args, kwargs

    def change_output(
        self, call: Call, module: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], output: Any
    ) -> Any:
        if not self._is_due:
            return output
        self._is_due = False
        assert self._change is not None
        return self._change(output)

    def _forward(
        self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        is_called, self._is_called = self._is_called, False
        # `layer.forward(x)` written by hand is not a call as hooks see it.
        if not is_called or not self._is_before_goal:
            return original(*args, **kwargs)
        place = self._place
        known = self._finished.get(place)
        if known is not None:
            self._place += known.n_calls
            output = cloned(known.output)
        else:
            self._place += 1
            inputs = _Witness(args, kwargs)
            output = original(*args, **kwargs)
            if self._is_before_goal:
                self._remember(name, place, inputs, output)
        if place == self._goal:
            self._is_before_goal, self._is_due = False, True
        return output

    def _remember(self, name: str, place: int, inputs: "_Witness", output: Any) -> None:
        n_calls = self._place - place
        if self.is_whole or (n_calls > 1 and not self._skips_blocks) or not inputs.stands_apart(output):
            return
        for inside in range(place + 1, self._place):
            self._finished.pop(inside, None)
        self._finished[place] = _Finished(name, cloned(output), n_calls)


class _Witness:
    """Sees whether a call did anything but return something new.

    One that wrote into its inputs, or returns a view of them, is not a value that could be given again: whoever
    holds the input sees the difference. Such calls are cheap and run again.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs = (args, kwargs)
        self._leaves = leaves_of(self._inputs)
        self._versions = _versions(self._leaves)

    def stands_apart(self, output: Any) -> bool:
        """Tell whether a copy of `output` can stand for the call."""
        leaves = leaves_of(self._inputs)
        is_untouched = len(leaves) == len(self._leaves) and all(map(operator.is_, leaves, self._leaves))
        if not is_untouched or self._versions is None or _versions(leaves) != self._versions:
            return False
        outputs = leaves_of(output)
        if not all(map(_is_plain, outputs)):
            return False
        tensors = [leaf for leaf in outputs if isinstance(leaf, Tensor)]
        memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        given = {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor)}
        is_new = len(set(memory)) == len(memory) and not given & set(memory)
        # A copy with its gaps closed is the same value, but may be computed with by another kernel.
        return is_new and all(torch.empty_like(tensor).stride() == tensor.stride() for tensor in tensors)


class Holdings:
    """Everything the modules of a model hold on to at one moment, by identity, and how often buffers were
    written."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held, self._versions = _held_by(model)

    def are_same(self) -> bool:
        """Tell whether the model still holds the same: no attribute set, no cache filled, no buffer written."""
        held, versions = _held_by(self._model)
        is_same = len(held) == len(self._held) and all(map(operator.is_, held, self._held))
        return is_same and versions == self._versions


def _held_by(model: nn.Module) -> tuple[list[Any], list[int]]:
    held: list[Any] = []
    for module in model.modules():
        for value in module.__dict__.values():
            held.append(value)
            if isinstance(value, (dict, list, set)):
                held.extend(value.values() if isinstance(value, dict) else value)
    return held, [version_of(buffer) for buffer in model.buffers()]


def _is_plain(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.layout is torch.strided and not leaf.is_nested and not leaf.is_inference()
    return leaf is None or isinstance(leaf, (bool, int, float, str))


def _versions(leaves: list[Any]) -> list[int] | None:
    """Return how often each tensor was written to, None where that cannot be known of all of them."""
    if not all(map(_is_plain, leaves)):
        return None
    return [version_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


def took_another_way() -> CannotRunError:
    return CannotRunError(
        "the model calls different layers each time it runs, so no call can be found again",
        "modelscope stats ...   runs it once",
    )
