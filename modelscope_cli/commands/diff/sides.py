"""Load the two sides that `diff` compares, and say what they are."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelscope_cli.errors import CannotRunError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell.run import load, open_for, tell

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from modelscope_cli.inputs.batch import Inputs
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.load import LoadedModel
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.records.diff import DiffSide
    from modelscope_cli.records.run import InputInfo, Notice, Run


def load_both(a: "ModelRequest", b: "ModelRequest") -> tuple["LoadedModel", "LoadedModel"]:
    """Load both models and say what was decided; of B, what was not said of A.

    Raises:
        CannotRunError: both are one module object, which cannot be in two states at once (4).
    """
    from modelscope_cli.models.load import load_model

    ours = load_model(a)
    tell(ours.notes, ours.warnings)
    theirs = load_model(b)
    notes = tuple(f"B: {note}" for note in theirs.notes if note not in ours.notes)
    tell(notes, tuple(notice for notice in theirs.warnings if notice not in ours.warnings))
    shared = {id(parameter) for parameter in ours.module.parameters()}
    if any(id(parameter) in shared for parameter in theirs.module.parameters()):
        message = f"'{a.model}' gives the same module each time, so A and B share their weights"
        raise CannotRunError(message, "name a class or a factory, which makes a new one")
    return ours, theirs


def open_shared(given: "InputRequest", a: "LoadedModel") -> "Inputs":
    """Open the input as A wants it, in float32 on the CPU, from where it goes to both."""
    import torch

    return open_for(given, replace(a, device=torch.device("cpu"), dtype=torch.float32))


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of one side, without a run."""

    side: "DiffSide"
    tensors: dict[str, "Tensor"]
    warnings: tuple["Notice", ...] = ()


def open_weights(request: "ModelRequest | None", path: "Path | None") -> Weights:
    """Load a model and take its state dict; without a request, map the tensors of the checkpoint at `path`."""
    from torch import Tensor

    from modelscope_cli.checkpoints.entries import in_order
    from modelscope_cli.models.checkpoint import read_checkpoint
    from modelscope_cli.records.diff import DiffSide
    from modelscope_cli.records.run import ModelInfo, WeightsInfo

    if request is not None:
        loaded = load(request)
        state = loaded.module.state_dict()
        tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        return Weights(describe(loaded, request.seed, None), tensors, loaded.warnings)
    assert path is not None
    held = read_checkpoint(path)
    tell(held.notes, ())
    state = held.state
    if path.suffix.lower() == ".safetensors":  # which has no order of its own
        state = {name: state[name] for name in sorted(state, key=in_order)}
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in state.values()}
    weights = WeightsInfo(str(path), path.name, "checkpoint", held.sha256)
    side = DiffSide(ModelInfo("file", str(path), "", weights), "cpu", ", ".join(sorted(dtypes)), 0, None)
    return Weights(side, state)


def describe(loaded: "LoadedModel", seed: int, mode: str | None) -> "DiffSide":
    """Say what a side is."""
    from modelscope_cli.records.diff import DiffSide

    dtype = str(loaded.dtype).removeprefix("torch.")
    return DiffSide(loaded.info, str(loaded.device), dtype, seed, mode)


def head(a: "DiffSide", given: "InputInfo | None", warnings: tuple["Notice", ...]) -> "Run":
    """Fill the header, which tells of A."""
    from modelscope_cli.records.run import Run, versions

    return Run(
        command="diff",
        argv=_console.settings.argv,
        model=a.model,
        input=given,
        device=a.device,
        dtype=a.dtype,
        seed=a.seed,
        versions=versions(),
        warnings=tuple(dict.fromkeys(warnings)),
        elapsed_ms=(time.monotonic() - _console.settings.started) * 1000,
    )
