"""Whether the numbers in a model are numbers, and what its batch norms have stored."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from modelscope_cli.analysis.activations.batch_norm import is_fresh
from modelscope_cli.records.check_evidence import BatchNormState, TensorHealth
from modelscope_cli.records.naming import layer_of


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
    """Return what every batch norm that keeps running statistics has stored."""
    rows = []
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) or module.running_var is None or module.running_mean is None:
            continue
        variance = module.running_var
        negative, zero = int((variance < 0).sum()), int((variance == 0).sum())
        rows.append(BatchNormState(name, variance.numel(), negative, zero, is_fresh(module)))
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
