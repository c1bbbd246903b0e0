"""Outputs that are not predictions: embeddings, tokens, maps, single values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, OutputPart, settle
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, means_nothing
from modelscope_cli.errors import CannotRunError


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
        words = "its own output"
        if aim.kind == "similar":
            reference, words = reference_like(aim, reference), f"the output for {aim.name}"
        return FollowedScore(words, lambda answer: similarity(answer.tensor(), reference))


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
