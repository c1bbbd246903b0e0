"""The whole output of a model for a batch, and the number followed in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, Leaves, OutputPart, settle
from modelscope_cli.analysis.outputs.target_spec import TargetSpec
from modelscope_cli.analysis.outputs.vectors import Vectors, reference_like, similarity
from modelscope_cli.errors import CannotRunError, UsageError


@dataclass(frozen=True, slots=True)
class FollowedOutput:
    """A `FollowedScore` of a whole output; `name` of the number: `logit`, `score`, `cosine similarity`."""

    words: str
    name: str
    score: "Callable[[ModelOutput], Tensor]"
    probability: "Callable[[ModelOutput], Tensor] | None" = None
    classes: tuple[int, ...] | None = None
    is_at_peak: bool = False


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The output for N images: one part, or several heads, the main one first.

    Attributes:
        parts: by the path of the tensor they were read from.
        leaves: all floating point tensors.
        why: what the kind was guessed from; empty where it is known.
    """

    parts: tuple[tuple[str, OutputPart], ...]
    leaves: Leaves
    why: str = ""

    @property
    def main(self) -> OutputPart:
        return self.parts[0][1]

    @property
    def kind(self) -> str:
        """`classes`, `pixels`, `boxes`, `depth`, `vectors`, or `heads` where there are several."""
        return self.main.kind if len(self.parts) == 1 else "heads"

    @property
    def words(self) -> str:
        if len(self.parts) == 1:
            return self.main.words
        return "; ".join(f"'{path}', {part.words}" for path, part in self.parts)

    @property
    def note(self) -> str | None:
        """Which tensor is read as what; None for a single row of scores."""
        if self.kind == "classes" and len(self.leaves) == 1 and not self.why:
            return None
        path, n_tensors = self.parts[0][0], len(self.leaves)
        taken = (
            f"'{path}', one of {n_tensors} tensors: " if path and self.kind not in ("heads", "boxes") else ""
        )
        reason = f" ({self.why}; --output-kind says otherwise)" if self.why else ""
        return f"output: {taken if n_tensors > 1 else ''}{self.words}{reason}"

    def __len__(self) -> int:
        return len(self.main)

    def as_vectors(self) -> "ModelOutput":
        """Return the same with depth maps as vectors, which are compared by their angle."""
        parts = tuple(
            (path, Vectors(part.tensor(), part.words) if part.kind == "depth" else part)
            for path, part in self.parts
        )
        return ModelOutput(parts, self.leaves, self.why)

    def settled(self) -> "ModelOutput":
        """Return the same in float32 on the CPU, without its graph."""
        parts = tuple((path, part.settled()) for path, part in self.parts)
        return ModelOutput(parts, tuple((path, settle(tensor)) for path, tensor in self.leaves), self.why)

    def detach(self) -> "ModelOutput":
        """Return the same as `settled`."""
        return self.settled()

    def checked(self) -> "ModelOutput":
        """Return this output; raise if it has NaN or infinite values."""
        if all(part.is_finite() for _, part in self.parts):
            return self
        message = "the model's output is NaN or infinite, so there is nothing to compare with"
        raise CannotRunError(message, "modelscope stats ...   shows where it begins")

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedOutput:
        """Return what a target means in this output, which is that of the unchanged model."""
        if aim.kind == "logit":
            return self._follow_number(aim)
        if aim.kind == "similar":
            reference = reference_like(aim, self.main.tensor().detach())
            words = f"the output for {aim.name}"
            return FollowedOutput(
                words, "cosine similarity", lambda answer: similarity(answer.main.tensor(), reference)
            )
        followed = self.main.follow(aim, categories)
        is_one_value = isinstance(self.main, Vectors) and self.main.is_one_value
        return _of_main(followed, "value" if is_one_value else self.main.score_name)

    def changed(self, after: "ModelOutput") -> Tensor | None:
        """Return the share of decisions that differ in another output, a mean over the heads, `(N,)`."""
        return _mean([was.changed(one) for was, one in self._pairs(after)])

    def divergence(self, after: "ModelOutput") -> Tensor | None:
        """Return KL(this || after) in nats, a mean over the decisions of a head, summed over the heads, `(N,)`."""
        divergences = [was.divergence(one) for was, one in self._pairs(after)]
        tensors = [one for one in divergences if one is not None]
        return torch.stack(tensors).sum(0) if tensors else None

    def distance(self, after: "ModelOutput") -> Tensor:
        """Return the Euclidean distance of all numbers of all heads, `(N,)`."""
        return torch.stack([was.distance(one) for was, one in self._pairs(after)]).norm(dim=0)

    def largest_change(self, after: "ModelOutput") -> Tensor:
        """Return the largest |after - before| of any number, `(N,)`."""
        return torch.stack([was.largest_change(one) for was, one in self._pairs(after)]).amax(0)

    def _pairs(self, after: "ModelOutput") -> list[tuple[OutputPart, OutputPart]]:
        return [(was, one) for (_, was), (_, one) in zip(self.parts, after.parts, strict=True)]

    def _follow_number(self, aim: TargetSpec) -> FollowedOutput:
        tensors = dict(self.leaves)
        path = aim.name if aim.name or len(tensors) != 1 else next(iter(tensors))
        if path not in tensors:
            named = ", ".join(f"'{other}'" for other in list(tensors)[:8])
            near = next(iter(tensors))
            listed = ",".join(["0"] * max(tensors[near].ndim - 1, 1))
            raise UsageError(
                f"'--target {aim.typed}': the output has no tensor '{path}', it has {named}",
                f"--target 'logit:{near}[{listed}]'",
            )
        index = _indices(aim, path, tensors[path].shape, len(self))

        def score(answer: ModelOutput) -> Tensor:
            tensor = dict(answer.leaves)[path]
            for number in index:
                tensor = tensor[:, number]
            return tensor.reshape(len(answer))

        where = ",".join(map(str, aim.index))
        return FollowedOutput(f"{path or 'output'}[{where}]", "value", score)


def _of_main(followed: FollowedScore, name: str) -> FollowedOutput:
    probability = followed.probability
    return FollowedOutput(
        followed.words,
        name,
        lambda answer: followed.score(answer.main),
        None if probability is None else lambda answer: probability(answer.main),
        followed.classes,
        followed.is_at_peak,
    )


def _indices(aim: TargetSpec, path: str, shape: torch.Size, n_images: int) -> tuple[int, ...]:
    """Return the indices within one image; given as many as there are dimensions, the first is the image."""
    index = aim.index
    if len(index) == len(shape):
        if n_images > 1:
            within = ",".join(map(str, index[1:])) or "0"
            raise UsageError(
                f"'--target {aim.typed}' chooses one of {n_images} images, but a target belongs to each image",
                f"--target 'logit:{path}[{within}]'",
            )
        if index[0] not in (0, -1):
            raise _out_of_range(aim, path, shape)
        index = index[1:]
    is_inside = len(index) == len(shape) - 1 and all(
        -side <= number < side for number, side in zip(index, shape[1:], strict=True)
    )
    if not is_inside:
        raise _out_of_range(aim, path, shape)
    return index


def _out_of_range(aim: TargetSpec, path: str, shape: torch.Size) -> UsageError:
    last = ",".join(str(side - 1) for side in shape[1:])
    text = "x".join(map(str, shape))
    where = f"'{path}'" if path else "the output"
    return UsageError(
        f"'--target {aim.typed}' is outside {where}, whose shape is {text} (the first dimension is the image)",
        f"--target 'logit:{path}[{last}]'   is the last one of an image",
    )


def _mean(values: list[Tensor | None]) -> Tensor | None:
    tensors = [one for one in values if one is not None]
    return torch.stack(tensors).mean(0) if tensors else None
