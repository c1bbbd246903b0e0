"""A forward pass as an iterator: the model waits in a thread of its own while somebody looks at each output."""

import threading
from collections.abc import Callable, Generator, Set
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.hooks.snapshot import RandomState

# After Ctrl-C a layer may still be busy for a while. Its thread runs out by itself, with no hook left on it.
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of one call's output. The model has not gone on: `tensor` still has the value it was given."""

    call: Call
    path: str
    tensor: Tensor

    @property
    def key(self) -> tuple[str, int, str]:
        """The same in another model: layer name, call, path."""
        return self.call.name, self.call.index, self.path

    def copied(self) -> "Output":
        """Return one that outlives the pass."""
        return Output(self.call, self.path, self.tensor.detach().clone())


class _AbandonedError(Exception):
    """Raised inside the forward when nobody wants the rest."""


class OutputStream(Observer):
    """The observer that hands over one output at a time, and waits until the next is asked for.

    Args:
        model: whose devices' random numbers it draws.
        seed: of the random numbers of the passes. They are this stream's own: while it waits, others may draw.
        blocks: names of those handed over although other layers ran inside; None for all.
    """

    def __init__(self, model: nn.Module, *, seed: int, blocks: Set[str] | None) -> None:
        self._model = model
        self._seed = seed
        self._blocks = blocks
        self._random: RandomState | None = None
        self._handed: SimpleQueue[Output | BaseException | None] = SimpleQueue()
        self._may_go_on: SimpleQueue[bool] = SimpleQueue()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if not is_innermost and self._blocks is not None and call.name not in self._blocks:
            return
        for path, tensor in tensors_in(output):
            self._random = RandomState(self._model)
            self._handed.put(Output(call, path, tensor))
            if not self._may_go_on.get():
                raise _AbandonedError
            self._random.restore()

    def follow(self, run: Callable[[], object]) -> Generator[Output]:
        """Yield the outputs of a pass of the session this observes; `run` makes it.

        Only one side runs at any time: the pass, or whoever holds the output. Closing the generator ends the pass.

        Raises:
            Whatever the pass raises.
        """
        self._handed, self._may_go_on = (
            SimpleQueue(),
            SimpleQueue(),
        )  # what an earlier pass left means nothing
        thread = threading.Thread(target=self._work, args=(run,), name="modelscope forward", daemon=True)
        thread.start()
        try:
            while (handed := self._handed.get()) is not None:
                if isinstance(handed, BaseException):
                    raise handed
                yield handed
                del handed  # or an activation would live until the next one is there
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
            self._random = RandomState(self._model)
        except _AbandonedError:
            pass
        except BaseException as error:  # raised where the outputs are awaited
            end = error
        self._handed.put(end)
