"""The answers as a table: a line a kind, and the totals with their 95 % intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from bench import HEALTHY, SHORT, SICK, Answer


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    what: str
    n: int
    total: int

    @property
    def fraction(self) -> float:
        return self.n / self.total if self.total else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95 % interval (E. B. Wilson, 1927)."""
        n, z = self.total, 1.959964
        if not n:
            return 0.0, 1.0
        centre = self.fraction + z * z / (2 * n)
        half = z * sqrt(self.fraction * (1 - self.fraction) / n + z * z / (4 * n * n))
        return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.what:34} {self.n:4} of {self.total:4} {self.fraction:7.1%}  [{low:.1%}, {high:.1%}]"


def shares(answers: Sequence[Answer]) -> dict[str, Share]:
    """Return what the bench is for, by short names."""

    def share(what: str, among: Callable[[Answer], bool], is_right: Callable[[Answer], bool]) -> Share:
        those = [one for one in answers if among(one)]
        return Share(what, sum(map(is_right, those)), len(those))

    def sick(one: Answer) -> bool:
        return one.program.answer == SICK

    return {
        "quiet": share(
            "healthy, and quiet", lambda one: one.program.answer == HEALTHY, lambda one: one.is_right
        ),
        "told": share(
            "too short, and told so", lambda one: one.program.answer == SHORT, lambda one: one.is_right
        ),
        "found": share("sick, and something found", sick, lambda one: one.is_found),
        "named": share("sick, and the cause named first", sick, lambda one: one.is_named_first),
        "dated": share(
            "sick late, and its first step named",
            lambda one: sick(one) and bool(one.program.first_step),
            lambda one: one.is_dated,
        ),
        "judged": share("judged at all", lambda _: True, lambda one: one.trouble is None),
    }


def table(answers: Sequence[Answer]) -> str:
    lines = [f"{'kind':44} {'n':>3} {'found':>6} {'named first':>12} {'false alarms':>13}"]
    for kind in dict.fromkeys(one.program.kind for one in answers):
        those = [one for one in answers if one.program.kind == kind]
        n_found = sum(one.is_found for one in those)
        n_named = sum(one.is_named_first for one in those)
        cells = (n_found, n_named, "") if those[0].program.answer == SICK else ("", "", n_found)
        lines.append(f"{kind:44} {len(those):3} {cells[0]:>6} {cells[1]:>12} {cells[2]:>13}".rstrip())
    return "\n".join([*lines, "", *map(str, shares(answers).values())])
