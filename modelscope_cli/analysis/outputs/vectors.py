"""Outputs that are not predictions: embeddings, tokens, maps, single values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, OutputPart, settle
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, means_nothing
from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.predict import ValueRange


@dataclass(frozen=True, slots=True)
class Vectors(OutputPart):
    """Numbers of each image, `(N, ...)`, compared by cosine similarity."""

    values: Tensor
    called: str = ""  # what they are, in words; empty to say it by the shape
    kind: ClassVar[str] = "vectors"
    score_name: ClassVar[str] = "cosine similarity"

    @property
    def words(self) -> str:
        shape = self.values.shape[1:]
        if self.called:
            return self.called
        if len(shape) <= 1:
            return "one value per image" if self.is_one_value else f"an embedding of {shape.numel()} values"
        what = "tokens" if len(shape) == 2 else "feature maps"
        return f"{what} of {'x'.join(map(str, shape))}"

    @property
    def is_one_value(self) -> bool:
        """Whether there is a single number for each image."""
        return self.values[0].numel() == 1

    def __len__(self) -> int:
        return len(self.values)

    def settled(self) -> Self:
        return replace(self, values=settle(self.values))

    def tensor(self) -> Tensor:
        return self.values

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        if aim.kind not in (PREDICTED, "similar"):
            raise means_nothing(aim, self.words, "--target similar:IMAGE, or --target 'logit:[0]'")
        reference = self.values.detach()
        if self.is_one_value and aim.kind == PREDICTED:  # one number has no angle to another
            return FollowedScore("the value", lambda answer: answer.tensor().reshape(len(self)))
        words, is_own = "its own output", aim.kind == PREDICTED
        if not is_own:
            reference, words = reference_like(aim, reference), f"the output for {aim.name}"
        return FollowedScore(words, lambda answer: similarity(answer.tensor(), reference), is_at_peak=is_own)


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

    def ranges(self) -> list[ValueRange]:
        flat = self.values.double().flatten(1)
        figures = (flat.amin(1), flat.median(1).values, flat.mean(1), flat.amax(1))
        return [ValueRange(*row) for row in torch.stack(figures, 1).tolist()]


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps, `(N, C, ...)`, in another size; those of fewer dimensions than it in its last ones."""
    sides = tuple(size)[-(maps.ndim - 2) :]
    if len(sides) < maps.ndim - 2:
        return maps
    return F.interpolate(maps, sides, mode={3: "linear", 4: "bilinear", 5: "trilinear"}[maps.ndim])


def similarity(values: Tensor, others: Tensor) -> Tensor:
    """Return the cosine similarity of each image's numbers to those of another, `(N,)`."""
    return F.cosine_similarity(values.flatten(1), others.to(values).flatten(1), dim=1)


def reference_like(aim: TargetSpec, values: Tensor) -> Tensor:
    """Return the output for the file of `similar`, repeated for every image."""
    assert aim.reference is not None  # set by `resolve_aim`
    if aim.reference.numel() != values[0].numel():
        raise CannotRunError(
            f"the output for '{aim.name}' has {aim.reference.numel()} values, that for the image "
            f"{values[0].numel()}",
            "--size 224,224   gives both images one size",
        )
    return aim.reference.reshape(1, *values.shape[1:]).expand_as(values)
