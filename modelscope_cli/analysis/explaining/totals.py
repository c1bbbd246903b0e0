"""What the images of a run come to: means of their figures, and the maps of the first few."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from modelscope_cli.analysis.explaining.one_image import Explained, Outcome
from modelscope_cli.analysis.explaining.receipt.folder import EvidenceOfFolder
from modelscope_cli.analysis.explaining.receipt.verdict import judged, winner_first
from modelscope_cli.records.explain import Explanation
from modelscope_cli.records.receipt import FIGURES, Receipt


@dataclass(slots=True)
class Totals:
    """Adds images up; memory does not grow with their number.

    Attributes:
        most_kept: of how many images the maps are kept, in `kept`.
        words: what is explained; None from the moment that two images have different targets, as is `index`.
        winner: of the first image: whose maps are added up in `evidence`.
    """

    most_kept: int
    images: int = 0
    logit: float = 0.0
    probability: float = 0.0
    words: str | None = None
    index: int | None = None
    winner: str = ""
    unfit: dict[str, str] = field(default_factory=dict)
    kept: list[Explained] = field(default_factory=list)
    evidence: EvidenceOfFolder = field(default_factory=EvidenceOfFolder)
    _first: dict[str, Outcome] = field(default_factory=dict)
    _sums: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # method -> figure -> total, count

    def add(self, one: Explained) -> None:
        """Take in one image."""
        is_same = self.images == 0 or self.words == one.words
        self.words, self.index = (one.words, one.index) if is_same else (None, None)
        self.images += 1
        self.logit += one.logit
        self.probability += one.probability
        self.unfit = {**one.unfit, **self.unfit}
        ranked = winner_first({method: outcome.receipt for method, outcome in one.outcomes.items()})
        self.winner = self.winner or ranked[0]
        for method, outcome in one.outcomes.items():
            self._first.setdefault(method, outcome)
            figures = {key: getattr(outcome.receipt, key) for key in FIGURES}
            figures |= {key: getattr(outcome.map, key) for key in ("adds_up", "completeness", "steps")}
            for key, value in {**figures, "seconds": outcome.seconds}.items():
                sums = self._sums.setdefault(method, {}).setdefault(key, [0.0, 0])
                if value is not None:
                    sums[0] += value
                    sums[1] += 1
        if self.winner in one.lies:
            self.evidence.take(one.name, one.words, one.lies[self.winner])
        if len(self.kept) < self.most_kept:
            self.kept.append(replace(one, outcomes={method: one.outcomes[method] for method in ranked}))

    def rows(self) -> tuple[Explanation, ...]:
        """Return one row a method, the winner first."""
        rows = {method: self._row(method, outcome) for method, outcome in self._first.items()}
        return tuple(rows[method] for method in winner_first({m: row.receipt for m, row in rows.items()}))

    def _row(self, method: str, first: Outcome) -> Explanation:
        means: dict[str, Any] = {
            key: total / n if n else None for key, (total, n) in self._sums[method].items()
        }
        receipt = first.receipt
        if self.images > 1:
            receipt = judged(Receipt(**{key: means[key] for key in FIGURES}))
        return Explanation(
            method=method,
            layer=first.map.layer,
            why=first.map.why,
            adds_up=means["adds_up"],
            completeness=means["completeness"],
            steps=means["steps"],
            seconds=means["seconds"] or 0.0,
            receipt=receipt,
        )

    def cells(self) -> dict[str, Tensor]:
        """Return the cells of the maps that are kept, by method, and by image where there are several."""
        return {
            method if self.images == 1 else f"{n}.{method}": outcome.map.cells
            for n, one in enumerate(self.kept)
            for method, outcome in one.outcomes.items()
        }
