"""Two results beside each other on one page."""

from collections.abc import Sequence
from pathlib import Path

from modelscope_cli.records.shown import Shown


def compare_page(a: Shown, b: Shown, folders: Sequence[Path]) -> str:
    raise NotImplementedError
