"""Change a model before it is trained: its activations, its norms, its initial weights."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.run import Notice
from modelscope_cli.training.layers import GeneralReLU, RunningBatchNorm
from modelscope_cli.training.lsuv import init_lsuv
from modelscope_cli.training.request import TrainRequest

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
        raise UsageError("nothing is left to train: every parameter is frozen", hint)
    return frozen_statistics(model)


def swap_activations(model: nn.Module, request: TrainRequest) -> None:
    """Replace every `nn.ReLU` by a leaky or generalised ReLU, in place."""
    is_general = request.activation == "general"

    def make(old: nn.Module) -> nn.Module:
        if is_general:
            return GeneralReLU(request.leak, request.subtract, request.maximum)
        return nn.LeakyReLU(request.leak, inplace=bool(old.inplace))

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
        elif norm == "running":
            new = RunningBatchNorm(n, old.momentum or 0.1, old.eps)
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
    made: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        # named_children() omits the second use of a shared module.
        for name, child in list(parent.named_modules(remove_duplicate=False)):
            if name and "." not in name and type(child) in kinds:
                if child not in made:
                    made[child] = make(child)
                setattr(parent, name, made[child])
    return len(made)


def initialise(model: nn.Module, request: TrainRequest, inputs: Tensor) -> None:
    """Give convolutions and linear layers new weights and biases of zero; `default` leaves them as built.

    Kaiming: He et al. 2015, for the ReLU in use. Xavier: Glorot & Bengio 2010, uniform. LSUV: Mishkin & Matas 2016.
    """
    if request.init == "default":
        return
    slope = 0.0 if request.activation == "relu" else request.leak
    layers = [(layer.name, module) for layer, module in list_layers(model) if isinstance(module, _WEIGHTED)]
    with seeded(request.seed):
        for _, module in layers:
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if request.init == "kaiming-normal":
                nn.init.kaiming_normal_(module.weight, slope, nonlinearity="leaky_relu")
            elif request.init == "kaiming-uniform":
                nn.init.kaiming_uniform_(module.weight, slope, nonlinearity="leaky_relu")
            elif request.init == "xavier":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.orthogonal_(module.weight)
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
    message = f"{len(frozen)} frozen batch norms ({frozen[0]} ...) still move their running statistics"
    return (Notice("frozen_statistics", message),)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters to optimize."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
