"""What an ablation does to the answer, summed over images."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from modelscope_cli.analysis.ablation.candidates import Candidate
from modelscope_cli.analysis.predictions.scores import kl_divergence
from modelscope_cli.records.ablate import Ablation


@dataclass(slots=True)
class Effect:
    """One ablation, and sums over images of what it did.

    Attributes:
        channel: None for all of them.
        n_images: how many were compared.
    """

    candidate: Candidate
    channel: int | None
    n_images: int = 0
    _sums: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    _answers: Counter[int] = field(default_factory=Counter)
    _n_changed: int = 0

    def add(self, before: Tensor, after: Tensor, targets: Tensor) -> None:
        """Compare the logits of some images, `(N, classes)` float32 on the CPU; `targets` has a class for each."""
        before, after = before.double(), after.double()
        figures = (
            at(after, targets) - at(before, targets),
            at(after.softmax(1), targets),
            kl_divergence(before, after),
            torch.linalg.vector_norm(after - before, dim=1),
        )
        self._sums += torch.stack([figure.sum() for figure in figures])
        answers = after.argmax(1)
        self._n_changed += int((answers != before.argmax(1)).sum())
        self._answers.update(answers.tolist())
        self.n_images += len(after)

    def to_row(self, mode: str, categories: Sequence[str] | None) -> Ablation:
        """Return the means."""
        call = self.candidate.call
        change, probability, divergence, distance = (self._sums / self.n_images).tolist()
        ((answer, _),) = self._answers.most_common(1)
        return Ablation(
            name=call.name,
            type=call.type,
            order=call.order,
            call=call.index,
            channel=self.channel,
            mode=mode,
            target_logit_change=_finite(change),
            target_probability=_finite(probability),
            prediction_changed=self._n_changed > 0,
            changed_fraction=self._n_changed / self.n_images,
            kl_divergence=_finite(divergence),
            output_l2=_finite(distance),
            answer_index=answer,
            answer_label=label_of_class(answer, categories),
        )


def at(scores: Tensor, targets: Tensor) -> Tensor:
    """Return of each row the score of its target class, `(N,)`."""
    return scores.gather(1, targets[:, None])[:, 0]


def label_of_class(index: int, categories: Sequence[str] | None) -> str | None:
    """Return the label of a class, None where nobody knows."""
    return categories[index] if categories and index < len(categories) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def by_effect(rows: Sequence[Ablation]) -> tuple[Ablation, ...]:
    """Sort rows: an answer that is not a number any more first, then by divergence, the largest first."""

    def key(row: Ablation) -> tuple[bool, float, float, int, int]:
        divergence, change = row.kl_divergence or 0.0, abs(row.target_logit_change or 0.0)
        return row.kl_divergence is not None, -divergence, -change, row.order, row.channel or 0

    return tuple(sorted(rows, key=key))
