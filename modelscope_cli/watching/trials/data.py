"""Trials that change the data: scale and layout of inputs, order of samples, batches that are left out."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from modelscope_cli.watching.error_isolation import after, around_steps, replaced
from modelscope_cli.watching.parameters import parameters_of
from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.roots import Arguments, entered, map_data


def _with_data(change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    def enter(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        return map_data(args, kwargs, change)

    return entered(enter)


def standardised(act: Act) -> Any:
    """Give every channel of an input a mean of 0 and a standard deviation of 1, by its first batch."""
    known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def change(x: Tensor) -> Tensor:
        key = tuple(x.shape[1:])
        if key not in known:
            over = [d for d in range(x.ndim) if d != (x.ndim - 1 if x.ndim == 3 else 1)]
            finite = x.nan_to_num(0.0, 0.0, 0.0).float()
            std, mean = torch.std_mean(finite, dim=over, keepdim=True, correction=0)
            known[key] = mean, std.where(std > 0, torch.ones_like(std))
        mean, std = known[key]
        act()
        return ((x - mean) / std).to(x.dtype)

    return _with_data(change)


def random_order(act: Act) -> AbstractContextManager[None]:
    """Let loaders of torch that go through their samples in order go through them at random."""

    def shuffle(new: Any) -> None:
        batches = new.batch_sampler
        if isinstance(new.sampler, SequentialSampler) and getattr(batches, "sampler", None) is new.sampler:
            batches.sampler = RandomSampler(new.dataset)
            act()

    return replaced(after(DataLoader, shuffle))


@contextmanager
def finite_batches(act: Act) -> Iterator[None]:
    """Leave out the steps of batches with a value that is not finite, in the input or the loss."""
    backward, is_left_out = torch.autograd.backward, False

    def clean(x: Tensor) -> Tensor:
        nonlocal is_left_out
        if bool(x.isfinite().all()):
            return x
        is_left_out |= torch.is_grad_enabled()
        return x.nan_to_num(0.0, 0.0, 0.0)

    def checked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_left_out
        several = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        is_left_out |= not all(bool(one.isfinite().all()) for one in several)
        if is_left_out:
            act.leave_out()
        return backward(tensors, *args, **kwargs)

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_left_out:
            act()
            for parameter in parameters_of(optimizer):
                parameter.grad = None

    def end(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal is_left_out
        is_left_out = False

    with _with_data(clean), replaced((torch.autograd, "backward", checked)), around_steps(begin, end):
        yield
