"""The whole output of a model for a batch, and the number followed in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, Leaves, OutputPart, Scores, settle
from modelscope_cli.analysis.outputs.target_spec import TargetSpec
from modelscope_cli.analysis.outputs.vectors import Vectors
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
    """The output for N images.

    Attributes:
        main: what is read of it, from the tensor at `path`.
        leaves: all floating point tensors.
        why: what the kind was guessed from; empty where it is known.
    """

    path: str
    main: OutputPart
    leaves: Leaves
    why: str = ""

    @property
    def kind(self) -> str:
        """`classes`, `pixels`, `boxes`, `depth` or `vectors`."""
        return self.main.kind

    @property
    def scores(self) -> Scores:
        """The main output, known to be of classes or pixels."""
        assert isinstance(self.main, Scores)
        return self.main

    @property
    def note(self) -> str | None:
        """Which tensor is read as what; None for a single row of scores."""
        if self.kind == "classes" and len(self.leaves) == 1 and not self.why:
            return None
        is_named = self.path and len(self.leaves) > 1 and self.kind != "boxes"
        taken = f"'{self.path}', one of {len(self.leaves)} tensors: " if is_named else ""
        reason = f" ({self.why}; --output-kind says otherwise)" if self.why else ""
        return f"output: {taken}{self.main.words}{reason}"

    def __len__(self) -> int:
        return len(self.main)

    def settled(self) -> "ModelOutput":
        """Return the same in float32 on the CPU, without its graph."""
        leaves = tuple((path, settle(tensor)) for path, tensor in self.leaves)
        return ModelOutput(self.path, self.main.settled(), leaves, self.why)

    def checked(self) -> "ModelOutput":
        """Return this output; raise if it has NaN or infinite values."""
        if self.main.is_finite():
            return self
        message = "the model's output is NaN or infinite, so there is nothing to compare with"
        raise CannotRunError(message, "modelscope stats ...   shows where it begins")

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedOutput:
        """Return what a target means in this output, which is that of the unchanged model."""
        if aim.kind == "logit":
            return self._follow_number(aim)
        followed = self.main.follow(aim, categories)
        is_one_value = isinstance(self.main, Vectors) and self.main.is_one_value
        return _of_main(followed, "value" if is_one_value else self.main.score_name)

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
