"""What a run computes: `--resume` continues only blocks of the same files, model and options."""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli import __version__
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.records.naming import dtype_name

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Packages whose source is not hashed: their version is part of the key, or changes the printed architecture.
_PUBLISHED = ("torch.", "torchvision.", "timm.", "transformers.")


def run_key(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run computes, as plain values.

    Args:
        options: everything but the model and the images that changes a number.
    """
    inputs = subject.inputs
    all_options = {
        "batch": inputs.block_size,
        "preprocessing": inputs.info.preprocessing,
        "dtype": dtype_name(subject.loaded.dtype),
        "seed": subject.seed,
        "torch": torch.__version__,
        **options,
    }
    return {
        "command": subject.command,
        "version": __version__,
        "files": len(inputs.files),
        "files_sha256": inputs.files.sha256(),
        "model_sha256": model_sha256(subject.loaded.module),
        "options": json.loads(json.dumps(all_options, default=str)),
    }


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Describe how the run in a folder differs from this one; empty if their blocks belong together."""
    if here.keys() != there.keys():
        return ["the version of modelscope: run.json has different keys"]
    changes = [
        f"the {word} ('{there[name]}' there, '{here[name]}' here)"
        for name, word in (("command", "command"), ("version", "version of modelscope"))
        if here[name] != there[name]
    ]
    if changes:  # whose options mean something else
        return changes
    if here["files_sha256"] != there["files_sha256"]:
        changes.append(
            f"the list of files ({there['files']:,} there, {here['files']:,} here, with their sizes)"
        )
    if here["model_sha256"] != there["model_sha256"]:
        changes.append("the model")
    for name in {**there["options"], **here["options"]}:
        was, now = there["options"].get(name), here["options"].get(name)
        if was != now:
            changes.append(f"{name} ({_shown(was)} there, {_shown(now)} here)")
    return changes


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def model_sha256(model: nn.Module) -> str:
    """Hash the printed architecture, the source of classes outside published packages, and all tensors."""
    digest = hashlib.sha256(_ADDRESS.sub("", str(model)).encode())
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        if not kind.__module__.startswith(_PUBLISHED):
            digest.update(_source(kind).encode())
    # The state has the packed weights of quantized layers, which are tuples, but not every buffer.
    values = {**model.state_dict(), **dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in values.items():
        for tensor in value if isinstance(value, tuple) else (value,):
            if isinstance(tensor, Tensor):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(_bytes(tensor))
    return digest.hexdigest()


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a notebook, or made of C
        return kind.__qualname__


def _bytes(value: Tensor) -> Any:
    whole = value.detach()
    whole = (whole.int_repr() if whole.is_quantized else whole).cpu().contiguous()
    return whole.view(-1).view(torch.uint8).numpy().data if whole.numel() else b""
