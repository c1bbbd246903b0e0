"""Which parameters are trained, and what freezing the others saves."""

import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from modelscope_cli.errors import (
    LESS_MEMORY,
    OUT_OF_MEMORY,
    CannotRunError,
    ModelscopeError,
    UsageError,
    is_out_of_memory,
)
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.grads import Saving

_N_PAIRS = 3


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
        names = names_of(model, [pattern], ())
        layers = [module for layer, module in list_layers(model) if layer.name in names]
        parameters = {parameter for module in layers for parameter in module.parameters()}
        if not parameters:
            raise UsageError(
                f"'{option} {pattern}' matches only layers without parameters",
                f"modelscope summary ... --layer {shlex.quote(pattern)}   shows them",
            )
        selected |= parameters
    return selected


def measure_saving(
    model: nn.Module,
    make_loss: Callable[[], Tensor],
    was_trainable: Sequence[bool],
    synchronize: Callable[[], None],
) -> Saving:
    """Time the backward pass with the flags before freezing and with those now, in turns.

    Args:
        make_loss: runs a forward pass of the model and returns the loss with its graph.
        was_trainable: `requires_grad` of each parameter before freezing.
        synchronize: waits for the device.

    Returns:
        The quickest of three backward passes each, and the memory of the tensors kept for it.
    """
    parameters = list(model.parameters())
    arms = (was_trainable, [parameter.requires_grad for parameter in parameters])
    parameter_storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    n_bytes = [0, 0]
    quickest = [math.inf, math.inf]
    for pair in range(_N_PAIRS + 1):  # the first, which also warms up, counts the memory
        for arm, flags in enumerate(arms):
            for parameter, flag in zip(parameters, flags, strict=True):
                parameter.requires_grad_(flag)
            model.zero_grad(set_to_none=True)
            if pair == 0:
                loss, n_bytes[arm] = _count_kept(make_loss, parameter_storages)
            else:
                loss = make_loss()
            synchronize()
            start = time.perf_counter()
            run_backward(loss)
            synchronize()
            if pair:
                quickest[arm] = min(quickest[arm], time.perf_counter() - start)
    model.zero_grad(set_to_none=True)
    return Saving(quickest[0] * 1000, quickest[1] * 1000, n_bytes[0], n_bytes[1])


def _count_kept(make_loss: Callable[[], Tensor], parameter_storages: set[int]) -> tuple[Tensor, int]:
    """Return the loss and the bytes autograd keeps for its backward pass, parameters not counted."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = make_loss()
    return loss, sum(sizes.values())


@contextmanager
def backward_pass() -> Iterator[None]:
    """Explain what a backward pass inside raises."""
    try:
        with warnings.catch_warnings():
            # Fires for the first layer, as images need no gradient; the results are complete.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield
    except ModelscopeError:
        raise
    except Exception as error:
        reason = in_one_line(error, 300) or "no message"
        hint = "modelscope stats ...   needs no gradients"
        if is_out_of_memory(error):
            reason, hint = OUT_OF_MEMORY, LESS_MEMORY
        raise CannotRunError(f"backward raised {type(error).__name__}: {reason}", hint) from error


def run_backward(loss: Tensor, *, retain_graph: bool = False) -> None:
    """Differentiate `loss` into the `grad` of every parameter that is trained; raises as `backward_pass`."""
    with backward_pass():
        loss.backward(retain_graph=retain_graph)
