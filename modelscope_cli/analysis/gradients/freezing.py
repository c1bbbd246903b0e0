"""Which parameters are trained, and the backward pass."""

import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError, ModelscopeError, UsageError, failed_device
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.plain_text import in_one_line


def set_trainable(model: nn.Module, freeze: Sequence[str], train_only: Sequence[str] = ()) -> None:
    """Set `requires_grad` of every parameter: off under `freeze`, and off outside `train_only` where it is given.

    A layer that is named means everything below it as well.
    """
    only = _parameters_under(model, "--train-only", train_only)
    frozen = _parameters_under(model, "--freeze", freeze)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue  # of quantized layers: never trained
        if train_only:
            parameter.requires_grad_(parameter in only)
        if parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def flags_kept(model: nn.Module) -> Iterator[None]:
    """Restore `requires_grad` of every parameter on exit."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _parameters_under(model: nn.Module, option: str, patterns: Sequence[str]) -> set[Tensor]:
    selected: set[Tensor] = set()
    for pattern in patterns:
        try:
            names = names_of(model, [pattern], (), lambda module: any(True for _ in module.parameters()))
        except UsageError as error:
            raise UsageError(error.message, (error.hint or "").replace("--layer", option)) from None
        layers = [module for layer, module in list_layers(model) if layer.name in names]
        parameters = {parameter for module in layers for parameter in module.parameters()}
        if not parameters:
            message = f"'{option} {pattern}' matches only layers without parameters"
            raise UsageError(message, f"modelscope summary ... --layer {shlex.quote(pattern)}   shows them")
        selected |= parameters
    return selected


def run_backward(loss: Tensor) -> None:
    """Differentiate `loss` into the `grad` of every parameter that is trained; explain what that raises."""
    try:
        with warnings.catch_warnings():
            # Fires for the first layer, as images need no gradient; the results are complete.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            loss.backward()
    except ModelscopeError:
        raise
    except Exception as error:
        reason = in_one_line(error, 300) or "no message"
        hint = "modelscope stats ...   needs no gradients"
        if (failed := failed_device(error)) is not None:
            reason, hint = failed
        raise CannotRunError(f"backward raised {type(error).__name__}: {reason}", hint) from error
