"""Which explanation is best supported, and whether it meets what was required of it."""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.records.bounds import absurdity
from modelscope_cli.records.receipt import FIGURES, MOST_OTHER_CLASS, MOST_RANDOMISED, Receipt, RequirementMet

REFERENCES = ("chance", "edges")
_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_REQUIREMENT = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*(\S+)\s*")
_EXAMPLE = "--require 'insertion>chance'"


def judged(receipt: Receipt) -> Receipt:
    """Name the tests a map failed, in `failed`; one that could not be made is not failed."""
    r = receipt
    gain, edges = _difference(r.insertion, r.deletion), _difference(r.insertion_edges, r.deletion_edges)
    failed = {
        "insertion is no better than chance": _holds(r.insertion, "<=", r.insertion_chance),
        "deletion is no better than chance": _holds(r.deletion, ">=", r.deletion_chance),
        "a random ranking does as well": _holds(r.percentile, "<", 1.0),
        "edges do as well": _holds(gain, "<=", edges),
        "ROAD is no better than chance": _holds(r.road, "<=", r.road_chance),
        "the map outlives the weights": _holds(r.randomisation, ">", MOST_RANDOMISED),
        "the map is the same for another class": _holds(r.other_class, ">", MOST_OTHER_CLASS),
    }
    return replace(receipt, failed=tuple(words for words, is_so in failed.items() if is_so))


def winner_first(receipts: Mapping[str, Receipt]) -> list[str]:
    """Order names of methods by `records.receipt.RULE`: no figure decides alone."""
    places = {name: [] for name in receipts}  # type: dict[str, list[int]]
    for key, sign in (("insertion", -1), ("deletion", 1), ("road", -1)):
        values = {name: getattr(receipt, key) for name, receipt in receipts.items()}
        column = {name: math.inf if value is None else sign * value for name, value in values.items()}
        for name, value in column.items():
            places[name].append(sum(other < value for other in column.values()))
    return sorted(receipts, key=lambda name: (len(judged(receipts[name]).failed), fmean(places[name])))


@dataclass(frozen=True, slots=True)
class Requirement:
    """`FIELD > VALUE`: what a receipt has to show.

    Attributes:
        typed: as it was given.
        figure: a field of `Receipt`; comparison: one of > < >= <=.
        bound: a number, or the name of a reference, `chance` or `edges`.
    """

    typed: str
    figure: str
    comparison: str
    bound: float | str

    def check(self, method: str, receipt: Receipt) -> RequirementMet:
        """Hold a receipt against this; a figure that was not measured does not meet it."""
        value: float | None = getattr(receipt, self.figure)
        bound = self.bound
        if isinstance(bound, str):
            bound = getattr(receipt, f"{self.figure}_{bound}")
        return RequirementMet(self.typed, method, value, bound, _holds(value, self.comparison, bound))


def read_requirements(typed: Sequence[str]) -> tuple[Requirement, ...]:
    """Read every `FIELD>VALUE`.

    Raises:
        UsageError: another form, an unknown field, or a reference the field does not have (exit 2).
    """
    return tuple(_read(text) for text in typed)


def _read(text: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise UsageError(f"'--require {text}' is not FIELD>VALUE, with >, <, >= or <=", _EXAMPLE)
    figure, comparison, value = match.groups()
    if figure not in FIGURES:
        near = nearest(figure, FIGURES) or "fields are " + ", ".join(FIGURES)
        raise UsageError(f"'--require {text}': a receipt has no '{figure}': {near}", _EXAMPLE)
    references = [name for name in REFERENCES if f"{figure}_{name}" in FIGURES]
    if value in references:
        return Requirement(text, figure, comparison, value)
    hint = f"--require '{figure}{comparison}0.5'"
    try:
        bound = float(value)
    except ValueError as error:
        known = " or ".join(["a number", *references])
        raise UsageError(
            f"'--require {text}': {figure} is compared with {known}, not '{value}'", hint
        ) from error
    if problem := absurdity(bound):
        raise UsageError(f"'--require {text}': {value} is {problem}", hint)
    return Requirement(text, figure, comparison, bound)


def _holds(value: float | None, comparison: str, bound: float | None) -> bool:
    return value is not None and bound is not None and _COMPARISONS[comparison](value, bound)


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
