"""Change a model before it is trained: its norms, its initial weights, what is frozen."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.run import Notice
from modelscope_cli.training.request import TrainRequest

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_WEIGHTED = (nn.modules.conv._ConvNd, nn.Linear)


def prepare(
    model: nn.Module, request: TrainRequest, freeze: Sequence[str] = (), train_only: Sequence[str] = ()
) -> tuple[Notice, ...]:
    """Swap norms, initialise the weights and freeze, all as requested, in place."""
    if request.norm != "batch":
        swap_norms(model, request.norm)
    initialise(model, request)
    set_trainable(model, freeze, train_only)
    if not trainable(model):
        hint = "leave out --freeze" if freeze else "--train-only '*'   trains them anyway"
        state = "every parameter is frozen" if list(model.parameters()) else "the model has no parameters"
        raise UsageError(f"{state}, so there is nothing to train", hint)
    return frozen_statistics(model)


def swap_norms(model: nn.Module, norm: str) -> None:
    """Replace every batch norm by another norm of as many channels, freshly initialised, in place."""

    def make(old: nn.Module) -> nn.Module:
        assert isinstance(old, _BATCH_NORM)
        n = old.num_features
        new: nn.Module
        if norm == "layer":  # over channels and positions of one image
            new = nn.GroupNorm(1, n, old.eps)
        elif norm == "group":  # of 32 as in Wu & He 2018, or as many as divide the channels
            new = nn.GroupNorm(math.gcd(32, n), n, old.eps)
        elif norm == "instance":
            kind = getattr(nn, type(old).__name__.replace("Batch", "Instance"))
            new = kind(n, old.eps, affine=True)
        else:
            new = nn.Identity()
        like = old.weight if old.affine else old.running_mean
        return new if like is None else new.to(like.device, like.dtype)

    replacements: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        # named_children() omits the second use of a shared module.
        for name, child in list(parent.named_modules(remove_duplicate=False)):
            if name and "." not in name and type(child) in _BATCH_NORM:
                if child not in replacements:
                    replacements[child] = make(child)
                setattr(parent, name, replacements[child])
    if not replacements:
        raise UsageError(f"'--norm-layer {norm}': this model has no batch norm", "--norm-layer batch")


def initialise(model: nn.Module, request: TrainRequest) -> None:
    """Give convolutions and linear layers new weights and biases of zero; `default` leaves them as built.

    Kaiming: He et al. 2015, for ReLU. Xavier: Glorot & Bengio 2010, uniform.
    """
    if request.init == "default":
        return
    with seeded(request.seed):
        for _, module in list_layers(model):
            if not isinstance(module, _WEIGHTED):
                continue
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            weight = torch.empty_like(module.weight, device="cpu")  # a seed gives the same on every device
            if request.init in ("kaiming-normal", "kaiming"):
                nn.init.kaiming_normal_(weight, nonlinearity="relu")
            elif request.init == "kaiming-uniform":
                nn.init.kaiming_uniform_(weight, nonlinearity="relu")
            else:
                nn.init.xavier_uniform_(weight)
            with torch.no_grad():
                module.weight.copy_(weight)


def frozen_statistics(model: nn.Module) -> tuple[Notice, ...]:
    """Warn of batch norms whose parameters are frozen: their running statistics move in train mode all the same."""
    frozen = [
        layer.name
        for layer, module in list_layers(model)
        if isinstance(module, _BATCH_NORM)
        and module.affine
        and not any(parameter.requires_grad for parameter in module.parameters())
    ]
    if not frozen:
        return ()
    message = f"{len(frozen)} frozen batch norms ({frozen[0]} ...) still update their running statistics"
    return (Notice("frozen_statistics", message),)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters to optimize."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
