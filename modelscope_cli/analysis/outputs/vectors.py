"""Outputs that are not predictions: embeddings, tokens, maps, single values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, OutputPart, settle
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, means_nothing
from modelscope_cli.records.predict import ValueRange

MOST_NUMBERS = 1024  # of an image that are kept one by one; of more, such as a map, only their range


@dataclass(frozen=True, slots=True)
class Vectors(OutputPart):
    """Numbers of each image, `(N, ...)`, compared by cosine similarity."""

    values: Tensor
    kind: ClassVar[str] = "vectors"
    score_name: ClassVar[str] = "cosine similarity"

    @property
    def words(self) -> str:
        shape = self.values.shape[1:]
        if len(shape) <= 1:
            return f"{'one value' if self.is_one_value else f'{shape.numel()} values'} per image"
        sides = "x".join(map(str, shape))
        return f"{sides} values per image" if len(shape) == 2 else f"feature maps of {sides}"

    @property
    def is_one_value(self) -> bool:
        """Whether there is a single number for each image."""
        return self.values[0].numel() == 1

    def numbers(self) -> list[tuple[float, ...]]:
        """Return the numbers of each image in their order; none of an output of more than `MOST_NUMBERS`."""
        rows = self.values.flatten(1)
        return [
            tuple(row) for row in rows[:, : rows.shape[1] if rows.shape[1] <= MOST_NUMBERS else 0].tolist()
        ]

    def ranges(self) -> list[ValueRange]:
        flat = self.values.double().flatten(1)
        figures = (flat.amin(1), flat.median(1).values, flat.mean(1), flat.amax(1))
        return [ValueRange(*row) for row in torch.stack(figures, 1).tolist()]

    def __len__(self) -> int:
        return len(self.values)

    def settled(self) -> Self:
        return replace(self, values=settle(self.values))

    def tensor(self) -> Tensor:
        return self.values

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        if self.is_one_value:  # one number has no angle to another
            return FollowedScore("the value", lambda answer: answer.tensor().reshape(len(self)), name="value")
        reference = self.values.detach()
        return FollowedScore(
            "its own output", lambda answer: similarity(answer.tensor(), reference), is_at_peak=True
        )


@dataclass(frozen=True, slots=True)
class DepthMaps(Vectors):
    """One value for each pixel, `(N, H, W)`, such as its depth."""

    kind: ClassVar[str] = "depth"
    score_name: ClassVar[str] = "mean value"

    @property
    def words(self) -> str:
        return f"one value, such as a depth, for each of {'x'.join(map(str, self.values.shape[1:]))} pixels"

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        if aim.kind != PREDICTED:
            raise means_nothing(aim, self.words, "--target predicted")
        return FollowedScore("the mean of the map", lambda answer: answer.tensor().flatten(1).mean(1))

    def drawn(self, size: Sequence[int], most: int) -> Tensor:
        return resized(self.values[:most, None], size)[:, 0].clone()

    def numbers(self) -> list[tuple[float, ...]]:
        return [()] * len(self)


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps, `(N, C, ...)`, in another size; those of fewer dimensions than it in its last ones."""
    sides = tuple(size)[-(maps.ndim - 2) :]
    if len(sides) < maps.ndim - 2:
        return maps
    return F.interpolate(maps, sides, mode={3: "linear", 4: "bilinear", 5: "trilinear"}[maps.ndim])


def similarity(values: Tensor, others: Tensor) -> Tensor:
    """Return the cosine similarity of each image's numbers to those of another, `(N,)`."""
    return F.cosine_similarity(values.flatten(1), others.to(values).flatten(1), dim=1)
