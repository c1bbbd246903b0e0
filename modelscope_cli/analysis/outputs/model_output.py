"""The whole output of a model for a batch, and the number followed in it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, Leaves, OutputPart, Scores, settle
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, means_nothing
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.naming import some

MAY_BE_NUMBERS = "a guess: no name, softmax or configuration identifies it"  # of a few values in a row
MAY_BE_LABELS = "softmax is assumed"  # where logits look like those of independent classes
LIKE_THE_IMAGE = "as large as the image"  # why its channels may be classes of pixels


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The output for N images.

    Attributes:
        main: what is read of it, from the tensor at `path`.
        leaves: all floating point tensors.
        why: what the kind was guessed from; empty where it is known.
        read_scores: returns the same numbers as scores of classes or pixels; None if they are these or cannot be.
    """

    path: str
    main: OutputPart
    leaves: Leaves
    why: str = ""
    read_scores: Callable[[], Scores] | None = None

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
    def n_named(self) -> int | None:
        """How many names `--labels` has to give: one for each class, or channel of a map like the image."""
        return self.main.tensor().shape[1] if self.named == "channels" else self.main.n_classes

    @property
    def named(self) -> str:
        return "channels" if self.kind == "vectors" and self.why == LIKE_THE_IMAGE else "classes"

    @property
    def note(self) -> str | None:
        """Which tensor is read as what; None for a single row of scores of which one is right."""
        is_of_several = getattr(self.main, "has_several", False)
        if self.kind == "classes" and len(self.leaves) == 1 and not (self.why or is_of_several):
            return None
        is_named = self.path and len(self.leaves) > 1 and self.kind != "boxes"
        others = some([f"'{path}'" for path, _ in self.leaves if path != self.path])
        another = next((path for path, _ in self.leaves if path != self.path), "")
        others += f" (--output-kind auto:{another})"
        taken = f"'{self.path}', one of {len(self.leaves)} tensors, not {others}: " if is_named else ""
        other = "segmentation reads it as classes of pixels" if self.named == "channels" else "says otherwise"
        if self.why in (MAY_BE_NUMBERS, MAY_BE_LABELS):
            other = "labels if an image can have several"
        if self.why == MAY_BE_NUMBERS:
            other = f"classes if they are scores, {other}, embedding if they are numbers"
        reason = f" ({self.why}; --output-kind {other})" if self.why else ""
        return f"output: {taken}{self.main.words}{reason}"

    def _instead(self, aim: TargetSpec, categories: Sequence[str] | None) -> str:
        """Return a hint that reads numbers as another kind of output, if the target means something in it."""
        if aim.kind == "box":
            return "--target predicted   boxes are read from dicts of boxes, labels and scores"
        if self.read_scores is not None:
            with suppress(UsageError):
                scores = self.read_scores()
                scores.follow(aim, categories)
                if scores.kind == "classes":
                    return "--output-kind classes   reads each value as a class"
                return "--output-kind segmentation   reads them as class scores for each pixel"
        return "--target predicted"

    def __len__(self) -> int:
        return len(self.main)

    def settled(self) -> "ModelOutput":
        """Return the same in float32 on the CPU, without its graph."""
        leaves = tuple((path, settle(tensor)) for path, tensor in self.leaves)
        return ModelOutput(self.path, self.main.settled(), leaves, self.why)

    def checked(self) -> "ModelOutput":
        """Return this output; raise if it has NaN or infinite values."""
        if self.main.tensor().isfinite().all():
            return self
        message = "the model's output is NaN or infinite, so changes of it cannot be measured"
        raise CannotRunError(message, "modelscope stats ...   shows where it begins")

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        """Return what a target means in the main output, which is that of the unchanged model."""
        if self.kind == "vectors" and aim.kind != PREDICTED:
            raise means_nothing(aim, self.main.words, self._instead(aim, categories))
        followed = self.main.follow(aim, categories)
        return replace(followed, name=followed.name or self.main.score_name)
