"""What an ablation does to the answer, summed over images."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from modelscope_cli.analysis.ablation.candidates import Candidate
from modelscope_cli.analysis.outputs.aim import label_of_class
from modelscope_cli.analysis.outputs.answer import Answer, FollowedAnswer
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
    _sums: dict[str, float] = field(default_factory=dict)
    _answers: Counter[int] = field(default_factory=Counter)
    _has_changed: bool = False

    def add(self, before: Answer, after: Answer, followed: FollowedAnswer) -> None:
        """Compare what the model said of some images, on the CPU, with what it says of them now."""
        changed = before.changed(after)
        figures = {
            "change": followed.score(after).double() - followed.score(before).double(),
            "probability": followed.probability(after) if followed.probability is not None else None,
            "divergence": before.divergence(after),
            "distance": before.distance(after),
            "changed": changed,
        }
        for name, figure in figures.items():
            if figure is not None:
                self._sums[name] = self._sums.get(name, 0.0) + float(figure.double().sum())
        self._has_changed |= changed is not None and bool(changed.any())
        self._answers.update(after.main.best_classes())
        self.n_images += len(after)

    def to_row(self, mode: str, categories: Sequence[str] | None) -> Ablation:
        """Return the means."""
        call = self.candidate.call
        means = {name: total / self.n_images for name, total in self._sums.items()}
        ((answer, _),) = self._answers.most_common(1) or ((None, 0),)
        return Ablation(
            name=call.name,
            type=call.type,
            order=call.order,
            call=call.index,
            channel=self.channel,
            mode=mode,
            target_logit_change=_finite(means["change"]),
            target_probability=_finite(means.get("probability")),
            prediction_changed=self._has_changed,
            changed_fraction=means.get("changed"),
            kl_divergence=_finite(means.get("divergence")),
            output_l2=_finite(means["distance"]),
            answer_index=answer,
            answer_label=None if answer is None else label_of_class(answer, categories),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def by_effect(rows: Sequence[Ablation]) -> tuple[Ablation, ...]:
    """Sort rows: an answer that is not a number any more first, then by divergence, the largest first.

    Where an output has no divergence the share of changed decisions comes first, then the target's change.
    """

    def key(row: Ablation) -> tuple[bool, float, float, float, int, int]:
        divergence, change = row.kl_divergence or 0.0, abs(row.target_logit_change or 0.0)
        changed = row.changed_fraction or 0.0 if row.kl_divergence is None else 0.0
        return row.output_l2 is not None, -divergence, -changed, -change, row.order, row.channel or 0

    return tuple(sorted(rows, key=key))
