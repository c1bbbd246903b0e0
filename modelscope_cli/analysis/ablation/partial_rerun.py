"""Rerun a model from the middle: calls before a given one return stored outputs, the rest is computed."""

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
from modelscope_cli.records.run import Args, Arguments, CallInputs, Kwargs

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A stored call: a private copy of its output, and the number of calls it stands for, nested ones included."""

    name: str
    output: Any
    n_calls: int


class Replay(Intervention):
    """Reruns of a forward in which the output of one call is changed.

    A forward is Python code, so its beginning cannot be skipped. But a layer that finishes before the changed call
    can return its stored output: its `forward` is wrapped for the session, and only the operations between such
    layers (additions, reshapes) are computed again. For a stateless model the results equal those of a full
    rerun, bit for bit.

    Each rerun stores what it computes before the changed call, so no extra pass is needed. Change the calls of one
    input in the order in which they finish, each any number of times; call `forget` before the next input.
    Memory holds the outputs of finished calls; of a finished block, only its own output.

    Args:
        skips_blocks: whether to skip whole blocks. Otherwise every layer is still called, because other
            interventions count calls.
    """

    def __init__(self, *, skips_blocks: bool = True) -> None:
        self.is_whole = False  # whether every rerun computes everything
        self._skips_blocks = skips_blocks
        self.forget()

    def forget(self) -> None:
        """Drop the stored outputs."""
        self._finished: dict[int, _Finished] = {}  # by place: the order in which calls begin, from 1
        self._begin(None, None)

    def _begin(self, place: int | None, change: Change | None) -> None:
        self._goal = place
        self._change = change
        self._place = 1  # of the call that begins next; meaningless after the goal
        self._is_before_goal = place is not None
        self._is_due = False
        self._is_called = False

    def rerun(self, session: HookSession, args: Arguments, place: int, change: Change) -> Any:
        """Run the model with the output of one call changed, and return the model's output.

        Args:
            place: `Call.order` of that call in a pass without reruns.
            change: maps the call's output to the new one, a new object.
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

        module.__dict__["forward"] = forward  # removed by the session's snapshot
        return ()

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        self._is_called = True
        if self._is_before_goal:
            finished = self._finished.get(self._place)
            if finished is not None and finished.name != call.name:
                raise took_another_way()
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: CallInputs, output: Any) -> Any:
        if not self._is_due:
            return output
        self._is_due = False
        assert self._change is not None
        return self._change(output)

    def _forward(self, name: str, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        is_called, self._is_called = self._is_called, False
        # A direct `layer.forward(x)` fires no hooks.
        if not is_called or not self._is_before_goal:
            return original(*args, **kwargs)
        place = self._place
        finished = self._finished.get(place)
        if finished is not None:
            self._place += finished.n_calls
            output = cloned(finished.output)
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
    """Checks that a call had no effect but to return new tensors.

    A call that writes into its inputs, or returns a view of them, cannot be replaced by its stored output. Such
    calls are cheap and run again.
    """

    def __init__(self, args: Args, kwargs: Kwargs) -> None:
        self._inputs = (args, kwargs)
        self._leaves = leaves_of(self._inputs)
        self._versions = _versions(self._leaves)

    def stands_apart(self, output: Any) -> bool:
        """Check that a copy of `output` can replace the call."""
        leaves = leaves_of(self._inputs)
        is_untouched = len(leaves) == len(self._leaves) and all(map(operator.is_, leaves, self._leaves))
        if not is_untouched or self._versions is None or _versions(leaves) != self._versions:
            return False
        outputs = leaves_of(output)
        if not all(map(_is_plain, outputs)):
            return False
        tensors = [leaf for leaf in outputs if isinstance(leaf, Tensor)]
        output_memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        input_memory = {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor)}
        is_new = len(set(output_memory)) == len(output_memory) and not input_memory & set(output_memory)
        # A contiguous copy of a tensor with gaps has the same values, but may select another kernel.
        return is_new and all(torch.empty_like(tensor).stride() == tensor.stride() for tensor in tensors)


class Holdings:
    """The attributes of all modules of a model at one moment, by identity, and the versions of its buffers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._values, self._versions = _values_of(model)

    def are_same(self) -> bool:
        """Check that since then no attribute was set, no cache filled and no buffer written."""
        values, versions = _values_of(self._model)
        is_same = len(values) == len(self._values) and all(map(operator.is_, values, self._values))
        return is_same and versions == self._versions


def _values_of(model: nn.Module) -> tuple[list[Any], list[int]]:
    values: list[Any] = []
    for module in model.modules():
        for value in module.__dict__.values():
            values.append(value)
            if isinstance(value, (dict, list, set)):
                values.extend(value.values() if isinstance(value, dict) else value)
    return values, [version_of(buffer) for buffer in model.buffers()]


def _is_plain(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.layout is torch.strided and not leaf.is_nested and not leaf.is_inference()
    return leaf is None or isinstance(leaf, (bool, int, float, str))


def _versions(leaves: list[Any]) -> list[int] | None:
    """Return the version counter of each tensor, None if any leaf has none."""
    if not all(map(_is_plain, leaves)):
        return None
    return [version_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


def took_another_way() -> CannotRunError:
    return CannotRunError(
        "the model calls different layers in each run, so calls cannot be matched",
        "modelscope stats ...   runs it once",
    )
