"""Where a pass stops being finite, which sigmoids are saturated, and other facts of a forward for `check`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from modelscope_cli.analysis.activations.batch_norm import is_fresh, running_statistics
from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.check_evidence import (
    Backward,
    BatchNormState,
    CallFlow,
    NormParameters,
    TensorHealth,
)
from modelscope_cli.records.grads import mark
from modelscope_cli.records.naming import layer_of
from modelscope_cli.records.run import Args, Kwargs

# Share of the usual size that is too small by chance: LayerScale begins at 1e-6 to 1e-4, heads at 0 to 1e-3;
# weights of standard deviation 0.02, the smallest in use, come to 0.14 in a 7 x 7 depthwise convolution.
_NEXT_TO_NOTHING = 1e-2


class ScaledZeroInit:
    """Re-scales zero-initialised parameters of a model; on exit all of them are restored to the bit."""

    def __init__(self, model: nn.Module) -> None:
        self.zero_initialised = {name: p for name, p in model.named_parameters() if _is_almost_zero(name, p)}
        self.rescaled: list[tuple[nn.Parameter, Tensor]] = []

    def rescale(self, backward: Backward) -> bool:
        """Re-scale the parameters that a step of training would move; return whether there were any.

        A parameter without a gradient is left alone: training would not move it either.
        """
        before = len(self.rescaled)
        for row in backward.parameters:
            is_moved = bool(row.grad_norm) and not mark(row.grad_norm or 0.0, backward.output_grad_norm)
            if is_moved and row.name in self.zero_initialised:
                parameter = self.zero_initialised.pop(row.name)
                self.rescaled.append((parameter, parameter.data))
                parameter.data = _usual(parameter)
        return len(self.rescaled) > before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for parameter, value in self.rescaled:
            parameter.data = value


def _is_almost_zero(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is almost zero and not a bias, which usually begins at zero."""
    is_value = parameter.is_floating_point() and not parameter.is_meta and parameter.numel() > 0
    if not is_value or "bias" in name.rpartition(".")[2]:
        return False
    rms = torch.linalg.vector_norm(parameter.detach(), dtype=torch.float32) / math.sqrt(parameter.numel())
    return bool(rms < _NEXT_TO_NOTHING * _usual_rms(parameter))


def _usual_rms(parameter: Tensor) -> float:
    """Return 1 for scales of any shape, and for weights the value that keeps the size of a signal."""
    if parameter.numel() == max(parameter.shape, default=1):
        return 1.0
    return 1 / math.sqrt(parameter.numel() / parameter.shape[0])


def _usual(parameter: Tensor) -> Tensor:
    if parameter.numel() == 1:
        return torch.ones_like(parameter)
    return torch.randn_like(parameter) * _usual_rms(parameter)


# A unit is saturated if its derivative is below this share of the maximum.
_FLAT = 0.01


@dataclass(slots=True)
class _FlowEntry:
    """One call in all batches; what was counted is still on the device."""

    call: Call
    is_finite_in: Tensor | bool = True  # of the batch that runs
    produces: Tensor | bool = False
    is_finite: Tensor | bool = True
    n_saturated: Tensor | int = 0
    n_values: int = 0  # of sigmoids and tanhs
    size_in: Tensor | None = None  # of the batch that runs, as in `_square_sum`
    sizes: Tensor | None = None  # of its input and of the change, and whether its input was overwritten

    def row(self) -> CallFlow:
        entered, change, overwritten = self.sizes.tolist() if self.sizes is not None else (0.0, 0.0, 1.0)
        is_told = entered > 0 and not overwritten and math.isfinite(change / entered)
        return CallFlow(
            **self.call.fields,
            depth=self.call.depth,
            produces=bool(self.produces),
            is_finite=bool(self.is_finite),
            saturated_fraction=int(self.n_saturated) / self.n_values if self.n_values else None,
            relative_change=math.sqrt(change / entered) if is_told else None,
        )


class FlowObserver(Observer):
    """Records for every call whether its inputs and its output were finite."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _FlowEntry] = {}

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        entry = self._entries.setdefault((call.name, call.index), _FlowEntry(call))
        floats = _floats((args, kwargs))
        entry.is_finite_in = _all_finite(floats)
        is_block = next(module.children(), None) is not None and next(module.parameters(), None) is not None
        entry.size_in = _square_sum(floats[0]) if is_block and floats else None

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        entry = self._entries[call.name, call.index]
        outputs = _floats(output)
        is_finite = _all_finite(outputs)
        entry.produces |= entry.is_finite_in & ~is_finite
        entry.is_finite &= is_finite
        for tensor in outputs:
            flat = _flat_units(module, tensor.detach())
            if flat is not None:
                entry.n_saturated += torch.count_nonzero(flat)
                entry.n_values += tensor.numel()
        if entry.size_in is not None and outputs and not is_innermost:
            x, y = _floats(inputs)[0], outputs[0]
            if x.shape == y.shape and x.device == y.device and x.data_ptr() != y.data_ptr():
                size, change = _square_sum(x), _square_sum(y.float() - x.float())
                sizes = torch.stack([size, change, (size != entry.size_in).float()])
                entry.sizes = sizes if entry.sizes is None else entry.sizes + sizes

    def rows(self) -> tuple[CallFlow, ...]:
        """Return one row per call, in execution order."""
        entries = sorted(self._entries.values(), key=lambda entry: entry.call.order)
        return tuple(entry.row() for entry in entries)


def _floats(value: Any) -> list[Tensor]:
    return [
        tensor
        for _, tensor in tensors_in(value)
        if tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_quantized
    ]


def _square_sum(x: Tensor) -> Tensor:
    return x.detach().float().square().sum()


def _all_finite(tensors: Sequence[Tensor]) -> Tensor:
    flags = [all_finite(tensor) for tensor in tensors]
    return torch.stack(flags).all() if flags else torch.tensor(True)


def _flat_units(module: nn.Module, output: Tensor) -> Tensor | None:
    """Return where the derivative is almost zero: y (1 - y) of a sigmoid, 1 - y^2 of a tanh."""
    if isinstance(module, nn.Sigmoid):
        return 4 * output * (1 - output) < _FLAT
    return 1 - output.square() < _FLAT if isinstance(module, nn.Tanh) else None


def tensor_health(model: nn.Module) -> tuple[TensorHealth, ...]:
    """Count NaN and infinite values in every parameter and buffer; shared ones once, integers not at all."""
    rows = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_quantized:
            continue
        n_nan = n_inf = 0
        if not bool(all_finite(tensor)):
            n_nan, n_inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        rows.append(TensorHealth(name, layer_of(name), tensor.numel(), n_nan, n_inf))
    return tuple(rows)


def batch_norm_states(model: nn.Module) -> tuple[BatchNormState, ...]:
    """Return the state of every batch norm that keeps running statistics."""
    rows = []
    modules = dict(model.named_modules())
    for name, (mean, variance) in running_statistics(model)().items():
        module: Any = modules[name]
        batches = int(module.num_batches_tracked) if module.num_batches_tracked is not None else 0
        share = (1 - module.momentum) ** batches if batches and module.momentum else 0.0
        if float(variance.min()) < 0.999 * share:  # then its counter is not that of its statistics
            share = 0.0
        rows.append(
            BatchNormState(
                name,
                channels=variance.numel(),
                negative=int((variance < 0).sum()),
                zero=int((variance == 0).sum()),
                is_fresh=is_fresh(mean, variance),
                batches=batches,
                start_share=share / max(float(variance.mean()), share) if share else 0.0,
            )
        )
    return tuple(rows)


def norm_parameters(model: nn.Module) -> tuple[NormParameters, ...]:
    """Return whether the parameters of each norm are as initialised, if it has a scale and a shift."""
    norms = {
        name: (module.weight, module.bias)
        for name, module in model.named_modules()
        if isinstance(module, (_NormBase, nn.GroupNorm, nn.LayerNorm)) and module.bias is not None
    }
    fetched = fetch(one.detach().flatten() for pair in norms.values() for one in pair)
    rows = []
    for name, scale, shift in zip(norms, fetched[::2], fetched[1::2], strict=True):
        is_as_made = not bool(shift.any()) and bool((scale == scale[:1]).all())
        rows.append(NormParameters(name, is_as_made, is_trained=bool((shift != shift[:1]).any())))
    return tuple(rows)


def all_finite(tensor: Tensor) -> Tensor:
    """Return, as a boolean on the tensor's device, whether there is no NaN and no infinite value in it."""
    x = tensor.detach()
    if x.device.type == "cpu" and not x.is_complex():
        # A sum reads memory once and carries every NaN and infinity; it can also overflow by itself.
        total = x.sum(dtype=torch.float32)
        if bool(total.isfinite()):
            return torch.tensor(True)
    return x.isfinite().all()


class OutputDiversity:
    """Compares the output for every image with that for the first."""

    def __init__(self) -> None:
        self._first: tuple[list[Tensor], Tensor] | None = None
        self.largest: float | None = None  # difference of an output from the first; None if no image differs

    def see(self, batch: Batch, output: Tensor | None) -> None:
        inputs = [tensor for _, tensor in tensors_in(batch.args)]
        has_rows = output is not None and output.ndim > 0 and len(output) == batch.n_images
        if not has_rows or any(tensor.ndim == 0 or len(tensor) != batch.n_images for tensor in inputs):
            return
        assert output is not None
        for i in range(batch.n_images):
            image, row = [tensor[i] for tensor in inputs], output[i].detach()
            if self._first is None:
                self._first = [tensor.clone() for tensor in image], row.clone()
            elif row.shape == self._first[1].shape and row.numel():
                pairs = zip(image, self._first[0], strict=True)
                if not any(a.shape == b.shape and not torch.equal(a, b) for a, b in pairs):
                    continue
                self.largest = max(self.largest or 0.0, float((row - self._first[1]).abs().max()))


def noise_like(batch: Batch) -> Batch:
    """Return a batch of noise of the same shapes, mean and standard deviation; integers are kept."""

    def noise(path: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        return torch.randn_like(tensor) * tensor.std(correction=0) + tensor.mean()

    return replace(batch, args=map_tensors(batch.args, noise))
