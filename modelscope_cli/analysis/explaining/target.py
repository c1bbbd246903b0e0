"""The targets of `explain`: the logit of one class, or any other number of the model's output."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from modelscope_cli.analysis.outputs.classes import ClassScores
from modelscope_cli.analysis.outputs.model_output import FollowedOutput
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, class_index, label_of_class
from modelscope_cli.analysis.predictions.scores import probabilities
from modelscope_cli.errors import UsageError

_CONTRAST, _NEAREST = 0.6, 3  # weight and number of other classes; Zhang et al. 2025, section 3


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """The logit of one class."""

    reader: OutputReader
    index: int
    label: str | None = None
    has_several: bool = False  # whether an image can have several classes (multi-label)
    against: int | None = None  # the class of the contrast; None for the three nearest
    # Whether the score is the logit minus 0.6 times that of other classes, as for Finer-CAM
    is_contrast: bool = False
    n_classes: int = 0
    has_probability: ClassVar[bool] = True
    is_at_peak: ClassVar[bool] = False
    score_name: ClassVar[str] = "logit"

    @property
    def words(self) -> str:
        return f"{self.index} ({self.label})" if self.label else str(self.index)

    def score(self, output: Any) -> Tensor:
        logits = self._logits(output)
        logit = logits[:, self.index]
        return logit - _CONTRAST * self._others(logits) if self.is_contrast else logit

    def probability(self, output: Any) -> Tensor:
        activation = "sigmoid" if self.has_several else "softmax"
        return probabilities(self._logits(output), activation)[:, self.index]

    @property
    def least_probability(self) -> float:
        """The probability below which a class counts as absent: 2.5 times that of chance, from 0.05 to 0.5."""
        return max(0.05, min(2.5 / max(self.n_classes, 1), 0.5))

    def runner_up(self, output: Any) -> "ClassTarget":
        """Return the likeliest other class of one image."""
        first, second = self._logits(output)[0].topk(2).indices.tolist()
        return replace(self, index=second if first == self.index else first, label=None)

    def _logits(self, output: Any) -> Tensor:
        return self.reader.read(output, ()).main.tensor().float()

    def _others(self, logits: Tensor) -> Tensor:
        if self.against is not None:
            return logits[:, self.against]
        gaps = (logits - logits[:, self.index, None]).detach().abs()
        gaps[:, self.index] = float("inf")
        near = gaps.topk(min(_NEAREST, logits.shape[1] - 1), largest=False).indices
        return logits.gather(1, near).mean(1)


@dataclass(frozen=True, slots=True)
class OtherTarget:
    """A box, pixels, a number or a similarity, which depends on its image, so that images run one at a time."""

    reader: OutputReader
    image: Tensor
    followed: FollowedOutput

    @property
    def words(self) -> str:
        return self.followed.words

    @property
    def has_probability(self) -> bool:
        return self.followed.probability is not None

    @property
    def is_at_peak(self) -> bool:
        return self.followed.is_at_peak

    @property
    def score_name(self) -> str:
        return self.followed.name

    def score(self, output: Any) -> Tensor:
        return self.followed.score(self.reader.read(output, (self.image,), 1)).float()

    def probability(self, output: Any) -> Tensor:
        probability = self.followed.probability or self.followed.score
        return probability(self.reader.read(output, (self.image,), 1)).float()


def choose_target(
    reader: OutputReader, aim: TargetSpec, against: str | None, image: Tensor, output: Any
) -> ClassTarget | OtherTarget:
    """Return the target for one image, `(1, C, H, W)`, or clip, and its output."""
    answer, labels = reader.read(output, (image,), 1).checked(), reader.categories
    said = answer.main
    if not isinstance(said, ClassScores) or not aim.is_class:
        if against is not None:
            raise UsageError(
                f"'--against {against}' is a class, and the target is not", "leave out --against"
            )
        return OtherTarget(reader, image, answer.follow(aim, labels))
    index = int(said.logits.argmax(1)) if aim.kind == PREDICTED else _index(aim.name, said, labels)
    other = _index(against, said, labels) if against is not None else None
    if other == index:
        raise UsageError(f"'--against {against}' is the class that is explained", "leave out --against")
    return ClassTarget(
        reader, index, label_of_class(index, labels), said.has_several, other, n_classes=said.n_classes
    )


def _index(text: str, output: ClassScores, labels: Sequence[str] | None) -> int:
    return class_index(text, output.n_classes, labels)
