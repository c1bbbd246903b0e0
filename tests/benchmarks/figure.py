"""One line of the table that a benchmark prints."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to reach and what was measured.

    Attributes:
        is_reached: None where there is no target, for comparison only.
    """

    what: str
    measured: str
    target: str = ""
    is_reached: bool | None = None

    def row(self) -> str:
        """Return a line of a Markdown table."""
        verdict = {True: "ok", False: "**MISSED**", None: ""}[self.is_reached]
        cells = (self.what, self.measured, self.target, verdict)
        return f"| {' | '.join(cells)} |"


def n_of(total: int, others: list[str]) -> str:
    """Say how many of `total` did, and which did not."""
    return f"{total - len(others)} of {total}" + (f", not {', '.join(others)}" if others else "")


HEADER = "| what | measured | target | |\n|---|---|---|---|"
