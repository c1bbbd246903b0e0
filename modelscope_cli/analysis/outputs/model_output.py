"""The whole output of a model for a batch, and the number followed in it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, Leaves, OutputPart, Scores, settle
from modelscope_cli.analysis.outputs.target_spec import TargetSpec
from modelscope_cli.errors import CannotRunError


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
        message = "the model's output is NaN or infinite, so changes of it cannot be measured"
        raise CannotRunError(message, "modelscope stats ...   shows where it begins")

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        """Return what a target means in the main output, which is that of the unchanged model."""
        followed = self.main.follow(aim, categories)
        return replace(followed, name=followed.name or self.main.score_name)
