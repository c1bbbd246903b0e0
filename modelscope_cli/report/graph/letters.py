"""How wide words are, without a font at hand: letters of one width, and of two where the script has such."""

from unicodedata import combining, east_asian_width

from modelscope_cli.plain_text import plain
from modelscope_cli.report.labels import cut_in_the_middle

_WIDTH = 0.61  # of the size: what common monospaced fonts have


def width(words: str, size: float) -> float:
    """Return how many pixels words take in a monospaced font of this size."""
    units = sum(0 if combining(mark) else 2 if east_asian_width(mark) in "WF" else 1 for mark in plain(words))
    return units * _WIDTH * size


def fitted(words: str, size: float, most: float) -> str:
    """Cut words in their middle until they are no wider than this."""
    words = plain(words)
    return cut_in_the_middle(words, lambda cut: width(cut, size) <= most + 0.01)
