"""Text layout for the terminal: paragraphs, two columns, bold headings. Standard library only."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping

from modelscope_cli.shell.streams import is_coloured

_NARROW, _WIDE, _MARGIN = 60, 100, 26  # characters: least and largest page width; names in a list


def rows_of(title: str, about: str, rows: Mapping[str, str]) -> Iterator[str]:
    """Yield a heading, its text, and a list of terms with their meaning."""
    yield ""
    yield bold(title)
    yield from filled(about)
    for term, meaning in rows.items():
        yield from entry(term, meaning)


def entry(label: str, about: str) -> Iterator[str]:
    """Yield a name and its description."""
    margin = " " * _MARGIN
    start = f"  {label}"
    if len(start) > _MARGIN - 2:
        yield start
        start = ""
    yield from filled(about.replace("  [", " ["), start.ljust(_MARGIN), margin)


def filled(text: str, first: str = "", rest: str = "") -> list[str]:
    """Wrap a paragraph between words."""
    return textwrap.wrap(
        text,
        width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def width() -> int:
    """Return the width of a page in characters."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size().columns))


def bold(text: str) -> str:
    """Return a heading, bold if stdout is a terminal."""
    return f"\x1b[1m{text}\x1b[0m" if is_coloured(sys.stdout) else text
