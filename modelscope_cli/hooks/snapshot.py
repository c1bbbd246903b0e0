"""Remember everything a forward pass may change about a model, and put it back."""

from typing import Any

import torch
from torch import nn

# Hooks, parameters, buffers and submodules stand in dicts; a user's caches and histories in any of these.
_CONTAINERS = (dict, list, set)


class Snapshot:
    """The state of a model and of torch at one moment; `restore` brings both back.

    Kept: every attribute of every module (training flags among them) and the entries of those that are dicts,
    lists and sets (hooks, parameters, buffers, submodules among them), the values of buffers, `requires_grad`
    and `grad` of every parameter, the attention fast-path flag, and the random state of the CPU and of the
    devices in use.
    Parameter values are not copied: nothing in the tool writes to them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = [(module, dict(module.__dict__)) for module in model.modules()]
        self._contents = [
            (held, dict(held) if isinstance(held, dict) else list(held))
            for _, attributes in self._attributes
            for held in attributes.values()
            if isinstance(held, _CONTAINERS)
        ]
        # TorchScript keeps its training flags where `__dict__` does not show them.
        self._training = [(module, module.training) for module in model.modules() if _is_script(module)]
        # Meta tensors have no values, and those of inference mode cannot be written to.
        self._buffers = [
            (buffer, buffer.detach().clone())
            for buffer in model.buffers()
            if not buffer.is_meta and not buffer.is_inference()
        ]
        self._parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
        self._has_fastpath = torch.backends.mha.get_fastpath_enabled()
        self._rng = RandomState(model)

    def restore(self) -> None:
        for module, attributes in self._attributes:
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for held, entries in self._contents:
            held.clear()
            held.extend(entries) if isinstance(held, list) else held.update(entries)
        for script, is_training in self._training:
            script.train(is_training)
        for parameter, requires_grad, grad in self._parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        torch.backends.mha.set_fastpath_enabled(self._has_fastpath)
        self._rng.restore()
        # Batch norm writes to its statistics without counting up `_version`, so only the values can tell. What
        # did not change is not written to: a graph that saved it can still go backward.
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _is_script(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


class RandomState:
    """The random state of the CPU and of every accelerator that holds a part of `model`."""

    def __init__(self, model: nn.Module) -> None:
        self._cpu = torch.random.get_rng_state()
        tensors: list[Any] = [*model.parameters(), *model.buffers()]
        devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self._states = {d: torch.get_device_module(d).get_rng_state(d) for d in devices}

    def has_moved(self) -> bool:
        """Tell whether random numbers were drawn since."""
        now = {device: torch.get_device_module(device).get_rng_state(device) for device in self._states}
        is_cpu_same = torch.equal(torch.random.get_rng_state(), self._cpu)
        return not is_cpu_same or any(not torch.equal(now[d], state) for d, state in self._states.items())

    def restore(self) -> None:
        torch.random.set_rng_state(self._cpu)
        for device, state in self._states.items():
            torch.get_device_module(device).set_rng_state(state, device)
