"""The images that fire each channel most and least, and a sample of all of them: folded, never kept whole."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

SAMPLED = 1024  # images whose values are kept, for quantiles; all of them where there are no more


@dataclass(frozen=True, slots=True)
class Ranked:
    """For each of C channels some images with their values, `(k, C)` each.

    Attributes:
        values: float32 or float64: the largest value of the channel anywhere in the image.
        images: int64, the number of the image; the order of numbers is that of the list.
        places: int64, where in the output, as an index over all its places.
    """

    values: Tensor
    images: Tensor
    places: Tensor

    def joined(self, other: "Ranked") -> "Ranked":
        """Return the entries of both."""
        return Ranked(*(torch.cat([getattr(self, name), getattr(other, name)]) for name in self.__slots__))

    def first(self, k: int, *, is_descending: bool) -> "Ranked":
        """Return the k first in the order of their values; of equal values the image that is first in the list."""
        order = self.images.argsort(dim=0, stable=True)
        by_value = self.values.gather(0, order).argsort(dim=0, stable=True, descending=is_descending)
        order = order.gather(0, by_value)[:k]
        return Ranked(*(getattr(self, name).gather(0, order) for name in self.__slots__))

    def rows(self, chosen: Sequence[int]) -> "Ranked":
        """Return some entries of every channel."""
        where = torch.tensor(chosen, device=self.values.device)
        return Ranked(*(getattr(self, name).index_select(0, where) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Ranking:
    """What is known of the channels of one output after some images. Two of them merge in any order to the same.

    Attributes:
        k: images to keep at each end.
        most, least: the k first and last, in order.
        sample: the images with the smallest keys, in the order of their keys; `keys` are those.
        n_images: seen so far.
        n_nan: in how many of them a channel was NaN somewhere, `(C,)`; they rank as minus infinity.
    """

    k: int
    most: Ranked
    least: Ranked
    sample: Ranked
    keys: tuple[int, ...]
    n_images: int
    n_nan: Tensor

    @classmethod
    def of(cls, k: int, images: Sequence[int], keys: Sequence[int], values: Tensor, places: Tensor) -> Self:
        """Rank the images of one batch.

        Args:
            images: their numbers. `keys`: what decides which of them are sampled, see `key_of`.
            values, places: `(N, C)`.
        """
        is_nan = values.isnan()
        numbers = torch.tensor(images, device=values.device)[:, None].expand(values.shape)
        ranked = Ranked(torch.where(is_nan, -torch.inf, values), numbers, places)
        order = sorted(range(len(images)), key=lambda i: (keys[i], images[i]))[:SAMPLED]
        return cls(
            k=k,
            most=ranked.first(k, is_descending=True),
            least=ranked.first(k, is_descending=False),
            sample=ranked.rows(order),
            keys=tuple(keys[i] for i in order),
            n_images=len(images),
            n_nan=is_nan.sum(0),
        )

    def merge(self, other: Self) -> Self:
        """Return the ranking of the images of both."""
        sample, keys = self._merged_sample(other)
        return replace(
            self,
            most=self.most.joined(other.most).first(self.k, is_descending=True),
            least=self.least.joined(other.least).first(self.k, is_descending=False),
            sample=sample,
            keys=keys,
            n_images=self.n_images + other.n_images,
            n_nan=self.n_nan + other.n_nan,
        )

    def _merged_sample(self, other: Self) -> tuple[Ranked, tuple[int, ...]]:
        if len(self.keys) == SAMPLED and min(other.keys) > self.keys[-1]:
            return self.sample, self.keys  # as of nearly every batch of a large data set
        joined, keys = self.sample.joined(other.sample), (*self.keys, *other.keys)
        numbers = joined.images[:, 0].tolist()
        order = sorted(range(len(keys)), key=lambda i: (keys[i], numbers[i]))[:SAMPLED]
        return joined.rows(order), tuple(keys[i] for i in order)

    def middle(self) -> Ranked:
        """Return k images at evenly spaced quantiles of the sample, the highest first.

        They are those at ranks round(j (n - 1) / (k + 1)), j = k ... 1, of the n sampled in ascending order, each
        rank once: the deciles for k = 9, with the median in their middle.
        """
        n = len(self.keys)
        ranks = {(2 * j * (n - 1) + self.k + 1) // (2 * (self.k + 1)) for j in range(1, self.k + 1)}
        return self.sample.first(n, is_descending=False).rows(sorted(ranks, reverse=True))

    def numbers(self) -> set[int]:
        """Return the number of every image that is kept."""
        kept = (self.most.images, self.least.images, self.sample.images[:, :1])
        return {int(number) for images in kept for number in images.unique().tolist()}


def key_of(name: str, seed: int) -> int:
    """Return what decides whether an image is sampled: a hash of its name, so that neither the order nor the batch
    nor the number of processes matters."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:7])
