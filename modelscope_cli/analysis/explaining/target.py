"""What is explained: the logit of one class, or by how much it is ahead of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modelscope_cli.analysis.gradients.losses import class_index
from modelscope_cli.analysis.gradients.request import PREDICTED
from modelscope_cli.analysis.predictions.scores import class_scores

_CONTRAST, _NEAREST = 0.6, 3  # Finer-CAM, Zhang et al. 2025, section 3: the share taken off, and of how many


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """The logit of one class."""

    index: int
    label: str | None = None

    @property
    def words(self) -> str:
        return f"{self.index} ({self.label})" if self.label else str(self.index)

    def score(self, output: Any) -> Tensor:
        return class_scores(output)[:, self.index]

    def probability(self, output: Any) -> Tensor:
        return class_scores(output).softmax(1)[:, self.index]


@dataclass(frozen=True, slots=True)
class Contrast(ClassTarget):
    """The logit of a class less 0.6 of another's, or of the mean of the three with the nearest logits."""

    against: int | None = None

    def score(self, output: Any) -> Tensor:
        logits = class_scores(output)
        own = logits[:, self.index]
        if self.against is not None:
            return own - _CONTRAST * logits[:, self.against]
        gaps = (logits - own[:, None]).detach().abs()
        gaps[:, self.index] = float("inf")
        near = gaps.topk(min(_NEAREST, logits.shape[1] - 1), largest=False).indices
        return own - _CONTRAST * logits.gather(1, near).mean(1)


def choose_target(asked: str, output: Any, categories: Sequence[str] | None) -> ClassTarget:
    """Return the class that is meant, of one image: by index or label, or `predicted`.

    Raises:
        UsageError: there is no such class (exit 2).
        CannotRunError: the model is not a classifier (exit 4).
    """
    logits = class_scores(output, 1)
    index = int(logits.argmax(1)) if asked == PREDICTED else class_index(asked, logits.shape[1], categories)
    return ClassTarget(index, categories[index] if categories and index < len(categories) else None)
