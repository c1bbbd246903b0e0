"""Save and restore everything a training changes, verified by hashes."""

import copy
import hashlib
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PARTS = ("weights", "buffers", "optimizer", "rng")


class TrainingState:
    """The values of a model and an optimizer, and the random states, at one moment."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        tensors = [*model.parameters(), *model.buffers()]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._training = [(module, module.training) for module in model.modules()]
        self._optimizer = copy.deepcopy(optimizer.state_dict())
        self._random = random_states()
        self.hashes = hashes_of(model, optimizer)  # of `PARTS`, at that moment

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for module, is_training in self._training:
            module.training = is_training
        self.optimizer.load_state_dict(self._optimizer)
        set_random_states(self._random)


def hashes_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return 16 hex digits of SHA-256 of each of `PARTS`, as they are now."""
    state = optimizer.state_dict()
    rates = repr([{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]])
    state_values = [
        (key, name, value) for key, values in state["state"].items() for name, value in values.items()
    ]
    return {
        "weights": _digest(list(model.named_parameters())),
        "buffers": _digest(list(model.named_buffers())),
        "optimizer": _digest([rates, *state_values]),
        "rng": _digest(list(random_states().items())),
    }


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Restore all random states on exit."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)


def _digest(values: list[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        for part in value if isinstance(value, tuple) else (value,):
            digest.update(_bytes(part))
    return digest.hexdigest()[:16]


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        whole = value.detach().cpu().contiguous()
        return (
            str((whole.dtype, tuple(whole.shape))).encode()
            + whole.flatten().view(torch.uint8).numpy().tobytes()
        )
    return pickle.dumps(value)


def random_states() -> dict[str, Any]:
    """Return the state of every generator that a training may draw from, by its name."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        states[f"cuda:{index}"] = torch.cuda.get_rng_state(index)
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Restore what `random_states` returned."""
    for name, state in states.items():
        if name == "torch":
            torch.set_rng_state(state)
        elif name == "python":
            random.setstate(state)
        elif name == "numpy":
            sys.modules["numpy"].random.set_state(state)
        else:
            torch.cuda.set_rng_state(state, torch.device(name))
