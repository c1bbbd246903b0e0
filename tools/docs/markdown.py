"""Small pieces of Markdown."""

import re
from collections.abc import Iterable, Sequence

# What a sentence of the program holds that Markdown would read as its own: *, <, |, [, and _ where a word begins.
_SPECIAL = re.compile(r"([\\*<>|\[\]]|(?<!\w)_)")


def cell(text: str) -> str:
    """Return text of the program as Markdown that shows it to the letter, on one line; `code` stays code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        part.replace("|", "\\|") if part.startswith("`") and len(part) > 1 else _SPECIAL.sub(r"\\\1", part)
        for part in parts
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def link(heading: str) -> str:
    """Return the anchor of a heading, as sites and code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
