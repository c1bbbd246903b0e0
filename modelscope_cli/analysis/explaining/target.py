"""What is explained: the logit of one class, or by how much it is ahead of others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from modelscope_cli.analysis.gradients.losses import class_index
from modelscope_cli.analysis.gradients.request import PREDICTED
from modelscope_cli.analysis.predictions.scores import class_scores
from modelscope_cli.errors import UsageError

_CONTRAST, _NEAREST = 0.6, 3  # Finer-CAM, Zhang et al. 2025, section 3: the share taken off, and of how many


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """The logit of one class.

    Attributes:
        against: the class a contrast holds it against; None for the three nearest.
        is_contrast: whether the score is the logit less 0.6 of that of the others, which Finer-CAM explains.
    """

    index: int
    label: str | None = None
    against: int | None = None
    is_contrast: bool = False

    @property
    def words(self) -> str:
        return f"{self.index} ({self.label})" if self.label else str(self.index)

    def score(self, output: Any) -> Tensor:
        logits = class_scores(output)
        own = logits[:, self.index]
        return own - _CONTRAST * self._others(logits) if self.is_contrast else own

    def _others(self, logits: Tensor) -> Tensor:
        if self.against is not None:
            return logits[:, self.against]
        gaps = (logits - logits[:, self.index, None]).detach().abs()
        gaps[:, self.index] = float("inf")
        near = gaps.topk(min(_NEAREST, logits.shape[1] - 1), largest=False).indices
        return logits.gather(1, near).mean(1)

    def probability(self, output: Any) -> Tensor:
        return class_scores(output).softmax(1)[:, self.index]

    def runner_up(self, output: Any) -> "ClassTarget":
        """Return the likeliest other class of one image."""
        first, second = class_scores(output, 1)[0].topk(2).indices.tolist()
        return replace(self, index=second if first == self.index else first, label=None)


def choose_target(
    asked: str, against: str | None, output: Any, categories: Sequence[str] | None
) -> ClassTarget:
    """Return the class that is meant, of one image: by index or label, or `predicted`.

    Raises:
        UsageError: there is no such class, or it is held against itself (exit 2).
        CannotRunError: the model is not a classifier (exit 4).
    """
    logits = class_scores(output, 1)
    n_classes = logits.shape[1]
    index = int(logits.argmax(1)) if asked == PREDICTED else class_index(asked, n_classes, categories)
    other = class_index(against, n_classes, categories) if against is not None else None
    if other == index:
        raise UsageError(f"'--against {against}' is the class that is explained", "leave out --against")
    return ClassTarget(index, categories[index] if categories and index < len(categories) else None, other)
