"""The fingerprint of a run, which travels in a small file, and what it is compared with on another machine."""

import hashlib
import math
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.distance import plain_values
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.stats import (
    N_OF_WEIGHTS,
    N_PROJECTIONS,
    Fingerprint,
    PrintedOutput,
    PrintedWeight,
)

_SEED = 20
_BLOCK = 1 << 20


def project(values: "np.ndarray[Any, np.dtype[np.float64]]", start: int = 0) -> "np.ndarray[Any, Any]":
    """Return 64 projections of a sequence: each value is added to one of 64 sums, or taken from it.

    The byte of a value says which: its lower six bits the sum, the seventh the sign. The bytes are those of NumPy's
    bit generator PCG64, whose stream is the same in every version and on every machine. The distance of the
    projections of two sequences is that of the sequences, within about a tenth: `E|P(a) - P(b)|^2 = |a - b|^2`,
    with a relative standard deviation of at most `sqrt(2 / 64)`.

    Args:
        start: how many values came before: the projections of the parts of a sequence add up to those of all of it.
    """
    total = np.zeros(N_PROJECTIONS)
    for at in range(0, len(values), _BLOCK):
        block = values[at : at + _BLOCK]
        skipped = (start + at) % 8
        generator = np.random.PCG64(_SEED).advance((start + at) // 8)
        words = np.atleast_1d(generator.random_raw((skipped + len(block) + 7) // 8))
        chosen = words.astype("<u8").view(np.uint8)[skipped : skipped + len(block)]
        signed = np.where(chosen & 64, -block, block)
        total += np.bincount(chosen & 63, weights=signed, minlength=N_PROJECTIONS)
    return total


@dataclass(slots=True)
class _Sums:
    """What is added up of one output, over all batches."""

    first: PrintedOutput
    projections: "np.ndarray[Any, Any]"
    n: int = 0
    nonfinite: int = 0
    squares: float = 0.0
    total: float = 0.0

    def add(self, tensor: Tensor) -> None:
        values = _numbers(tensor)
        is_finite = np.isfinite(values)
        n_finite = int(np.count_nonzero(is_finite))
        if n_finite < len(values):
            values = np.where(is_finite, values, 0.0)
            self.nonfinite += len(values) - n_finite
        self.projections += project(values, self.n)
        self.squares += float(values @ values)
        self.total += float(values.sum())
        self.n += len(values)

    def printed(self) -> PrintedOutput:
        n = max(self.n - self.nonfinite, 1)
        mean = self.total / n
        return replace(
            self.first,
            numel=self.n,
            nonfinite=self.nonfinite,
            norm=math.sqrt(self.squares),
            mean=mean,
            std=math.sqrt(max(self.squares / n - mean * mean, 0.0)),
            projections=_rounded(self.projections),
        )


def _numbers(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the values in order as float64, on the CPU; complex ones as pairs."""
    return plain_values(tensor).cpu().contiguous().reshape(-1).to(torch.float64).numpy()


class Prints(Observer):
    """Adds up what is kept of each output, in the order in which they are made."""

    def __init__(self, selection: Selection) -> None:
        self.sums: dict[tuple[str, int, str], _Sums] = {}
        self._selection = selection

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if not self._selection.means(call.name, call.index, is_innermost) and call.name:
            return
        for path, tensor in tensors_in(output):
            if not tensor.is_meta:
                self.add((call.name, call.index, path), tensor, call.type, call.order)

    def add(self, key: tuple[str, int, str], tensor: Tensor, kind: str = "input", order: int = 0) -> None:
        if key not in self.sums:
            name, index, path = key
            shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
            first = PrintedOutput(name, kind, order, index, path, shape, dtype, 0, 0, 0.0, 0.0, 0.0, ())
            self.sums[key] = _Sums(first, np.zeros(N_PROJECTIONS))
        self.sums[key].add(tensor)

    def printed(self) -> tuple[PrintedOutput, ...]:
        return tuple(sums.printed() for sums in self.sums.values())


def take_fingerprint(
    loaded: LoadedModel,
    batches: Iterable[Batch],
    selection: Selection,
    *,
    is_training: bool = False,
    interventions: Iterable[Intervention] = (),
) -> Fingerprint:
    given, layers, digest = Prints(Selection()), Prints(selection), hashlib.sha256()
    names = None if selection.names is None else selection.names | {""}
    with HookSession(
        loaded.module, [layers], names=names, is_training=is_training, interventions=interventions
    ) as session:
        for batch in batches:
            args = training_args(loaded.module, loaded.family, batch.args) if is_training else batch.args
            for path, tensor in tensors_in(args):
                given.add(("", 0, path), tensor)
                digest.update(_bytes(tensor))
            session.run(args)
    return Fingerprint(
        inputs=given.printed(),
        inputs_sha256=digest.hexdigest(),
        layers=layers.printed(),
        weights=_weights(loaded.module),
        settings=settings_of(loaded),
    )


def _bytes(tensor: Tensor) -> Any:
    data = tensor.detach().cpu().contiguous().reshape(-1)
    return data.view(torch.uint8).numpy().data if data.numel() else b""


def _weights(module: nn.Module) -> dict[str, PrintedWeight]:
    prints = {}
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_quantized:
            digest = hashlib.sha256(f"{tuple(tensor.shape)} {dtype_name(tensor.dtype)}".encode())
            digest.update(_bytes(tensor))
            values = np.nan_to_num(_numbers(tensor), posinf=0.0, neginf=0.0)
            few = project(values).reshape(N_OF_WEIGHTS, -1).sum(1)
            prints[name] = PrintedWeight(
                digest.hexdigest()[:16], math.sqrt(float(values @ values)), _rounded(few)
            )
    return prints


def _rounded(projections: Any) -> tuple[float, ...]:
    return tuple(float(f"{value:.10g}") for value in projections.tolist())


def settings_of(loaded: LoadedModel) -> dict[str, str]:
    """Return what decides which kernels compute, in words; settings of CUDA only where the model is on it."""
    settings = {
        "device": loaded.device.type,
        "machine": platform.machine(),
        "kernels of the CPU": torch.backends.cpu.get_cpu_capability(),
        "ATEN_CPU_CAPABILITY": os.environ.get("ATEN_CPU_CAPABILITY", ""),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "oneDNN": str(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "threads": str(torch.get_num_threads()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    if loaded.device.type == "cuda":
        settings["device"] = torch.cuda.get_device_name(loaded.device)
        settings["TF32 in matmul"] = str(torch.backends.cuda.matmul.allow_tf32)
        settings["TF32 in cuDNN"] = str(torch.backends.cudnn.allow_tf32)
        settings["cuDNN"] = str(torch.backends.cudnn.version())
        settings["cuDNN benchmark"] = str(torch.backends.cudnn.benchmark)
        settings["CUDA"] = str(torch.version.cuda)
    if loaded.info.source == "onnx":
        import onnxruntime

        settings["onnxruntime"] = onnxruntime.__version__
    return settings
