"""What has to be the same for blocks to belong together: the list of files, the model, what was asked for."""

import hashlib
import inspect
import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.certificate import Machine

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Whose source goes with the version of torch, which the blocks note anyway.
_PUBLISHED = ("torch.", "torchvision.", "timm.", "transformers.")


def options_sha256(options: Mapping[str, Any]) -> str:
    """Return the hash of what was asked for, plain values by name."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


def model_sha256(model: nn.Module) -> str:
    """Return the hash of the architecture as torch prints it, the source of classes that are not published ones,
    and every parameter and buffer, to the bit."""
    digest = hashlib.sha256(_ADDRESS.sub("", str(model)).encode())
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        if not kind.__module__.startswith(_PUBLISHED):
            digest.update(_source(kind).encode())
    for name, value in _values(model):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a notebook, or made of C
        return kind.__qualname__


def _values(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters, buffers, those too that no checkpoint holds, and the weights of quantized layers."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    packed = {name: value for name, value in model.state_dict().items() if name not in named}
    every = {**named, **packed}
    return [
        (f"{name}{n or ''}", one)
        for name, value in every.items()
        for n, one in enumerate(value if isinstance(value, tuple) else (value,))
        if isinstance(one, Tensor)
    ]


def _bytes(value: Tensor) -> Any:
    whole = value.detach()
    whole = (whole.int_repr() if whole.is_quantized else whole).cpu().contiguous()
    return whole.view(-1).view(torch.uint8).numpy().data if whole.numel() else b""


def this_machine(loaded: LoadedModel) -> Machine:
    """Describe what computes here."""
    device, version = loaded.device, str(torch.__version__)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        return Machine(device.type, name, f"sm_{major}{minor}", 0, version)
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(device.type, _processor(), capability, torch.get_num_threads(), version)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
