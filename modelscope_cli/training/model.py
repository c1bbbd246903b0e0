"""What is frozen in a model before it is trained."""

from collections.abc import Sequence

from torch import nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.records.run import Notice

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def freeze_layers(
    model: nn.Module, freeze: Sequence[str] = (), train_only: Sequence[str] = ()
) -> tuple[Notice, ...]:
    """Freeze as requested, in place."""
    set_trainable(model, freeze, train_only)
    if not trainable(model):
        hint = "leave out --freeze" if freeze else "--train-only '*'   trains them anyway"
        state = "every parameter is frozen" if list(model.parameters()) else "the model has no parameters"
        raise UsageError(f"{state}, so there is nothing to train", hint)
    return frozen_statistics(model)


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
