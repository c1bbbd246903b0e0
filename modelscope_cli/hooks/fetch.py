"""Copy what an accelerator has computed to the CPU, with one wait for many results.

To read a number, the CPU waits until the device has done all that was queued before, and queues nothing meanwhile.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
T = TypeVar("T")


def fetch(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU, with one wait for each device; those that are there are returned as they are.

    They are copied as the bytes of one tensor, wide dtypes first, so that each begins at a multiple of its size.
    """
    found = list(tensors)
    if all(x.is_cpu for x in found):
        return found
    by_device: dict[torch.device, list[int]] = {}
    for index, x in enumerate(found):
        if x.device.type != "cpu":
            by_device.setdefault(x.device, []).append(index)
    for indices in by_device.values():
        indices.sort(key=lambda index: -found[index].itemsize)
        parts = [_bytes(found[index].detach().contiguous()) for index in indices]
        copied = torch.cat(parts).cpu().split([len(part) for part in parts])
        for index, part in zip(indices, copied, strict=True):
            # Each has a storage of its own, as that is what is kept and what is saved.
            found[index] = part.view(found[index].dtype).view(found[index].shape).clone()
    return found


def _bytes(x: Tensor) -> Tensor:
    # A dimension of one element may have any stride.
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


@dataclass(slots=True)
class Deferred(Generic[T]):
    """A result that waits for tensors; call it to have it."""

    tensors: tuple[Tensor, ...]  # on any device
    finish: Callable[..., T]  # is given them on the CPU

    def __call__(self) -> T:
        return self.finish(*fetch(self.tensors))

    def then(self, change: Callable[[T], S]) -> "Deferred[S]":
        return Deferred(self.tensors, lambda *fetched: change(self.finish(*fetched)))


def known(value: T) -> Deferred[T]:
    """Return a result that waits for nothing."""
    return Deferred((), lambda: value)


def numbers(tensors: Iterable[Tensor]) -> Deferred[list[float]]:
    """Return the values of tensors of one element, all of the same shape."""
    return Deferred(tuple(tensors), _floats)


def _floats(*tensors: Tensor) -> list[float]:
    if len(tensors) == 1:
        return [tensors[0].item()]
    kinds: dict[torch.dtype, list[int]] = {}
    for index, x in enumerate(tensors):
        kinds.setdefault(x.dtype, []).append(index)
    values = [0.0] * len(tensors)
    for indices in kinds.values():  # stacked, they are read in a fraction of the time
        stacked = torch.stack([tensors[index] for index in indices])
        for index, value in zip(indices, stacked.flatten().tolist(), strict=True):
            values[index] = value
    return values


def joined(parts: Iterable[Deferred[T]]) -> Deferred[list[T]]:
    """Return several results as one, for which the device is waited for once."""
    parts = list(parts)

    def finish(*tensors: Tensor) -> list[T]:
        fetched = iter(tensors)
        return [one.finish(*islice(fetched, len(one.tensors))) for one in parts]

    return Deferred(tuple(x for one in parts for x in one.tensors), finish)
