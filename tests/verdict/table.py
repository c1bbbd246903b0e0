"""The answers as a table: a line a kind, and the totals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import Answer
from programs.kinds import HEALTHY, KINDS, SHORT, SICK


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    what: str
    n: int
    total: int

    @property
    def fraction(self) -> float:
        return self.n / self.total if self.total else 1.0

    def __str__(self) -> str:
        return f"{self.what:38} {self.n:4} of {self.total:4} {self.fraction:8.1%}"


def shares(answers: Sequence[Answer]) -> dict[str, Share]:
    """Return what the bench is for, by short names."""

    def share(what: str, answer: str, is_right: Callable[[Answer], bool]) -> Share:
        those = [one for one in answers if one.program.label.answer == answer]
        return Share(what, sum(map(is_right, those)), len(those))

    return {
        "quiet": share("healthy, and quiet", HEALTHY, lambda one: one.is_right),
        "told": share("too short, and told so", SHORT, lambda one: one.is_right),
        "found": share("sick, and something found", SICK, lambda one: one.is_found),
        "named": share("sick, and the cause named first", SICK, lambda one: one.is_named_first),
    }


def table(answers: Sequence[Answer]) -> str:
    lines = [f"{'kind':36} {'n':>3} {'found':>6} {'named first':>12} {'false alarms':>13}"]
    for kind, label in KINDS.items():
        those = [one for one in answers if one.program.kind == kind]
        if not those:
            continue
        n_found = sum(one.is_found for one in those)
        n_named = sum(one.is_named_first for one in those)
        cells = (n_found, n_named, "") if label.answer == SICK else ("", "", n_found)
        lines.append(f"{kind:36} {len(those):3} {cells[0]:>6} {cells[1]:>12} {cells[2]:>13}")
    return "\n".join([*lines, "", *map(str, shares(answers).values())])
