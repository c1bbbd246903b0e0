"""Run special forward passes: differentiable in the images, with masked weights, or output by output."""

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.random_states import RandomState
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.hooks.torch_private import without_checkpointing
from modelscope_cli.records.run import Arguments

Run = Callable[[Tensor], Any]
"""From images `(N, C, H, W)` to the model's output."""


@contextmanager
def opened(
    model: nn.Module,
    arrange: Callable[[Tensor], Arguments],
    interventions: Sequence[Intervention] = (),
    observers: Sequence[Observer] = (),
) -> Iterator[Run]:
    """Yield the model as a function of images, in eval mode with gradients enabled; restore it afterwards.

    No parameter requires a gradient while this is open, so the graph begins at other tensors that do.

    Args:
        arrange: turns images into the arguments of one forward.
        interventions: change every pass alike, and count the first.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        without_checkpointing(),
        HookSession(model, observers, with_gradients=True, interventions=interventions) as session,
    ):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        is_again = itertools.chain([False], itertools.repeat(True))

        def run(images: Tensor) -> Any:
            repeats = next(is_again)
            for intervention in interventions:
                intervention.begin(is_again=repeats)
            return session.run(arrange(images))

        yield run


# After Ctrl-C a layer may run on for a while; its thread then ends with no hook left on it.
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class StreamedOutput:
    """One tensor of one call's output. The forward is paused, so `tensor` is still unchanged."""

    call: Call
    path: str
    tensor: Tensor

    @property
    def key(self) -> tuple[str, int, str]:
        """Layer name, call and path, equal in other models."""
        return self.call.name, self.call.index, self.path

    def copied(self) -> "StreamedOutput":
        """Return a copy that outlives the pass."""
        return StreamedOutput(self.call, self.path, self.tensor.detach().clone())


class _AbandonedError(Exception):
    """Raised inside the forward when the rest is not needed."""


class OutputStream(Observer):
    """Observer that yields one output at a time and pauses the forward until the next is requested.

    Args:
        model: its devices' random states are used.
        seed: of the passes' random numbers, independent of those drawn by others while this waits.
        blocks: names of layers with inner calls whose outputs are yielded, too; None for all.
    """

    def __init__(self, model: nn.Module, *, seed: int, blocks: Set[str] | None) -> None:
        self._model = model
        self._seed = seed
        self._blocks = blocks
        self._random: RandomState | None = None
        self._handed: SimpleQueue[StreamedOutput | BaseException | None] = SimpleQueue()
        self._may_go_on: SimpleQueue[bool] = SimpleQueue()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if not is_innermost and self._blocks is not None and call.name not in self._blocks:
            return
        for path, tensor in tensors_in(output):
            self._random = RandomState()
            self._handed.put(StreamedOutput(call, path, tensor))
            if not self._may_go_on.get():
                raise _AbandonedError
            self._random.restore()

    def follow(self, run: Callable[[], object]) -> Generator[StreamedOutput]:
        """Yield the outputs of a pass made by `run` in the observed session.

        Either the pass or the consumer runs at any time. Closing the generator ends the pass.
        """
        # Discard what an earlier pass left.
        self._handed, self._may_go_on = SimpleQueue(), SimpleQueue()
        start = copy_context().run  # with the invocation, for hints
        thread = threading.Thread(None, start, "modelscope forward", (self._work, run), daemon=True)
        thread.start()
        try:
            while (handed := self._handed.get()) is not None:
                if isinstance(handed, BaseException):
                    raise handed
                yield handed
                del handed  # else each activation would be kept until the next one
                self._may_go_on.put(True)
        finally:
            self._may_go_on.put(False)
            thread.join(_PATIENCE_S)

    def _work(self, run: Callable[[], object]) -> None:
        end: BaseException | None = None
        try:
            if self._random is None:
                torch.manual_seed(self._seed)
            else:
                self._random.restore()
            run()
            self._random = RandomState()
        except _AbandonedError:
            pass
        except BaseException as error:  # raised where the outputs are awaited
            end = error
        self._handed.put(end)
