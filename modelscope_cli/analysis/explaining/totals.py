"""What the images of a run come to: means of their figures, and the maps of the first few.

Figures without bounds are medians, so that one image does not rule them.
"""

from array import array
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from torch import Tensor

from modelscope_cli.analysis.explaining.one_image import Explained, Outcome
from modelscope_cli.analysis.explaining.receipt.folder import EvidenceOfFolder
from modelscope_cli.analysis.explaining.receipt.verdict import together, winner_first
from modelscope_cli.records.explain import FIGURES, UNBOUNDED, Explanation, Receipt

_MEDIANS = (*UNBOUNDED, "adds_up", "adds_up_to", "completeness")


@dataclass(slots=True)
class Totals:
    """Adds images up; of each image but the first few it keeps a few numbers a method.

    Attributes:
        most_kept: of how many images the maps are kept, in `kept`.
        words: what is explained; None from the moment that two images have different targets, as is `index`.
        winner: of the first image: whose maps are added up in `evidence`.
    """

    most_kept: int
    images: int = 0
    logit: float = 0.0
    probability: float = 0.0
    passes: int = 0
    words: str | None = None
    index: int | None = None
    winner: str = ""
    unfit: dict[str, str] = field(default_factory=dict)
    kept: list[Explained] = field(default_factory=list)
    evidence: EvidenceOfFolder = field(default_factory=EvidenceOfFolder)
    _first: dict[str, Outcome] = field(default_factory=dict)
    _values: dict[str, dict[str, "array[float]"]] = field(default_factory=dict)  # method -> figure
    _judged: dict[str, list[Receipt]] = field(default_factory=dict)

    def add(self, one: Explained) -> None:
        """Take in one image."""
        is_same = self.images == 0 or self.words == one.words
        self.words, self.index = (one.words, one.index) if is_same else (None, None)
        self.images += 1
        self.logit += one.logit
        self.probability += one.probability
        self.passes += one.passes
        self.unfit = {**one.unfit, **self.unfit}
        ranked = winner_first({method: outcome.receipt for method, outcome in one.outcomes.items()})
        self.winner = self.winner or ranked[0]
        for method, outcome in one.outcomes.items():
            self._first.setdefault(method, outcome)
            figures = {key: getattr(outcome.receipt, key) for key in FIGURES}
            figures |= {key: getattr(outcome.map, key) for key in ("adds_up", "completeness", "steps")}
            figures |= {"seconds": outcome.seconds, "adds_up_to": outcome.adds_up_to}
            for key, value in figures.items():
                values = self._values.setdefault(method, {}).setdefault(key, array("d"))
                if value is not None:
                    values.append(value)
            answers = Receipt(tests=outcome.receipt.tests, verdict=outcome.receipt.verdict)
            self._judged.setdefault(method, []).append(answers)
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
            key: (median if key in _MEDIANS else fmean)(values) if values else None
            for key, values in self._values[method].items()
        }
        receipt = first.receipt
        if self.images > 1:
            receipt = together(Receipt(**{key: means[key] for key in FIGURES}), self._judged[method])
        return Explanation(
            method=method,
            layer=first.map.layer,
            why=first.map.why,
            adds_up=means["adds_up"],
            completeness=means["completeness"],
            steps=means["steps"],
            seconds=means["seconds"] or 0.0,
            receipt=receipt,
            adds_up_to=means["adds_up_to"],
        )

    def cells(self) -> dict[str, Tensor]:
        """Return the cells of the maps that are kept, by method, and by image where there are several."""
        return {
            method if self.images == 1 else f"{n}.{method}": outcome.map.cells
            for n, one in enumerate(self.kept)
            for method, outcome in one.outcomes.items()
        }
