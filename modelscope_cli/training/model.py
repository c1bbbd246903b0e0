"""Change a model before it is trained: its activations, its norms, its initial weights."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers, tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.run import Notice
from modelscope_cli.training.request import TrainRequest, slope_of

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORM = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}
_WEIGHTED = (nn.modules.conv._ConvNd, nn.Linear)


def prepare(
    model: nn.Module,
    request: TrainRequest,
    inputs: Tensor,
    freeze: Sequence[str] = (),
    train_only: Sequence[str] = (),
) -> tuple[Notice, ...]:
    """Swap activations and norms, initialise the weights, freeze; all as requested, in place.

    Args:
        inputs: one batch on the device of the model, for an initialisation that depends on data.
    """
    if request.activation != "relu":
        swap_activations(model, request)
    if request.norm != "batch":
        swap_norms(model, request.norm)
    initialise(model, request, inputs)
    set_trainable(model, freeze, train_only)
    if not trainable(model):
        hint = "leave out --freeze" if freeze else "--train-only '*'   trains them anyway"
        state = "every parameter is frozen" if list(model.parameters()) else "the model has no parameters"
        raise UsageError(f"{state}, so there is nothing to train", hint)
    return frozen_statistics(model)


def swap_activations(model: nn.Module, request: TrainRequest) -> None:
    """Replace every `nn.ReLU` by a leaky ReLU, in place."""
    slope = slope_of(request.activation)

    def make(old: nn.Module) -> nn.Module:
        return nn.LeakyReLU(slope, inplace=bool(old.inplace))

    if not _swap(model, (nn.ReLU,), make):
        raise UsageError(f"'--activation {request.activation}': this model has no ReLU", "--activation relu")


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
            new = _INSTANCE_NORM[type(old)](n, old.eps, affine=True)
        else:
            new = nn.Identity()
        like = old.weight if old.affine else old.running_mean
        return new if like is None else new.to(like.device, like.dtype)

    if not _swap(model, _BATCH_NORM, make):
        raise UsageError(f"'--norm-layer {norm}': this model has no batch norm", "--norm-layer batch")


def _swap(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], make: Callable[[nn.Module], nn.Module]
) -> int:
    """Replace every module of exactly one of `kinds`, a shared one once, and return how many."""
    replacements: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        # named_children() omits the second use of a shared module.
        for name, child in list(parent.named_modules(remove_duplicate=False)):
            if name and "." not in name and type(child) in kinds:
                if child not in replacements:
                    replacements[child] = make(child)
                setattr(parent, name, replacements[child])
    return len(replacements)


def initialise(model: nn.Module, request: TrainRequest, inputs: Tensor) -> None:
    """Give convolutions and linear layers new weights and biases of zero; `default` leaves them as built.

    Kaiming: He et al. 2015, for the ReLU in use. Xavier: Glorot & Bengio 2010, uniform. LSUV: Mishkin & Matas 2016.
    """
    if request.init == "default":
        return
    slope = slope_of(request.activation)
    layers = [(layer.name, module) for layer, module in list_layers(model) if isinstance(module, _WEIGHTED)]
    with seeded(request.seed):
        for _, module in layers:
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            weight = torch.empty_like(module.weight, device="cpu")  # a seed gives the same on every device
            if request.init in ("kaiming-normal", "kaiming"):
                nn.init.kaiming_normal_(weight, slope, nonlinearity="leaky_relu")
            elif request.init == "kaiming-uniform":
                nn.init.kaiming_uniform_(weight, slope, nonlinearity="leaky_relu")
            elif request.init == "xavier":
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.orthogonal_(weight)
            with torch.no_grad():
                module.weight.copy_(weight)
        if request.init == "lsuv":
            init_lsuv(model, dict(layers), inputs)


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


_TOLERANCE, _MOST_TRIES = 0.1, 10


class _Deviation(Observer):
    """The standard deviation of one layer's first output, and the order in which layers run."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.std = 0.0

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.order.append(call.name)
        self.std = float(tensors_in(output)[0][1].float().std())


def init_lsuv(model: nn.Module, layers: dict[str, nn.Module], inputs: Tensor) -> None:
    """Scale the weight of each layer, first to last, until its output on `inputs` has unit variance.

    D. Mishkin, J. Matas, "All you need is a good init" (2016), algorithm 1: orthonormal weights, set by the
    caller, then `W /= sqrt(Var(B))` until `|Var(B) - 1| < 0.1`, ten times at most. Runs in train mode; buffers
    and random state are restored.
    """
    first_run = _Deviation()
    with HookSession(model, [first_run], names=frozenset(layers), is_training=True) as session:
        session.run((inputs,))
    for name in dict.fromkeys(first_run.order):
        for _ in range(_MOST_TRIES):
            observer = _Deviation()
            wanted = frozenset({(name, 0)})
            with HookSession(model, [observer], wanted=wanted, is_training=True) as session:
                session.run((inputs,))
            if abs(observer.std**2 - 1) < _TOLERANCE or not observer.std > 0:
                break
            with torch.no_grad():
                layers[name].get_parameter("weight").div_(observer.std)
