"""The targets of `explain`: the logit of one class, or any other number of the model's output."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from modelscope_cli.analysis.outputs.classes import ClassScores
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import FollowedScore
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import PREDICTED, TargetSpec, class_index, label_of_class
from modelscope_cli.analysis.predictions.scores import probabilities


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """The logit of one class."""

    reader: OutputReader
    index: int
    label: str | None = None
    has_several: bool = False  # whether an image can have several classes (multi-label)
    n_classes: int = 0
    is_predicted: bool = False  # whether no class has a higher score
    has_probability: ClassVar[bool] = True
    is_at_peak: ClassVar[bool] = False
    score_name: ClassVar[str] = "logit"

    @property
    def words(self) -> str:
        return (f"{self.index} ({self.label})" if self.label else str(self.index)) + self.reader.named

    def score(self, output: Any) -> Tensor:
        return self._logits(output)[:, self.index]

    def probability(self, output: Any) -> Tensor:
        activation = "sigmoid" if self.has_several else "softmax"
        return probabilities(self._logits(output), activation)[:, self.index]

    @property
    def least_probability(self) -> float:
        """The probability below which a class counts as absent: 2.5 times that of chance, from 0.05 to 0.5."""
        return max(0.05, min(2.5 / max(self.n_classes, 1), 0.5))

    def _logits(self, output: Any) -> Tensor:
        return self.reader.read(output, ()).main.tensor().float()


@dataclass(frozen=True, slots=True)
class OtherTarget:
    """A box, pixels, a number or a similarity, which depends on its image, so that images run one at a time."""

    reader: OutputReader
    image: Tensor
    followed: FollowedScore
    # words, has_probability, is_at_peak, score_name: of what is followed
    words: str
    has_probability: bool
    is_at_peak: bool
    score_name: str

    def score(self, output: Any) -> Tensor:
        return self.followed.score(self.reader.read(output, (self.image,), 1).main).float()

    def probability(self, output: Any) -> Tensor:
        probability = self.followed.probability or self.followed.score
        return probability(self.reader.read(output, (self.image,), 1).main).float()


def choose_target(
    reader: OutputReader, aim: TargetSpec, image: Tensor, answer: ModelOutput, settled: ModelOutput
) -> ClassTarget | OtherTarget:
    """Return the target for one image, `(1, C, H, W)`, and its output, which is `settled` on the CPU."""
    said, labels = settled.checked().main, reader.categories
    if not isinstance(said, ClassScores) or not aim.is_class:
        followed = answer.follow(aim, labels)
        words, has_share = f"{followed.words}{reader.named}", followed.probability is not None
        facts = (words, has_share, followed.is_at_peak, followed.name)
        return OtherTarget(reader, image, followed, *facts)
    first = int(said.logits.argmax(1))
    index = first if aim.kind == PREDICTED else class_index(aim.name, said.n_classes, labels)
    label = label_of_class(index, labels)
    return ClassTarget(reader, index, label, said.has_several, said.n_classes, index == first)
