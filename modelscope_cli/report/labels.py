"""Shortened names of layers, and file names: in execution order, safe on every file system."""

from collections.abc import Callable, Sequence
from typing import Protocol

from modelscope_cli.records.naming import Called, label_of


class NamedOutput(Called, Protocol):
    """The attributes of a row that name its file."""

    @property
    def order(self) -> int: ...
    @property
    def output(self) -> str: ...


def shortened(name: str, most: int = 34) -> str:
    """Shorten a long name in its middle, as both ends distinguish layers and files."""
    start = most // 3
    return name if len(name) <= most else f"{name[:start]}…{name[start + 1 - most :]}"


def cut_in_the_middle(name: str, is_short: Callable[[str], bool]) -> str:
    """Return the longest start and end of a name that satisfy `is_short`."""
    if is_short(name):
        return name
    for n_kept in range(len(name) - 1, 1, -1):
        cut = name[: (n_kept + 1) // 2] + "…" + name[len(name) - n_kept // 2 :]
        if is_short(cut):
            return cut
    return "…"


def file_stems(rows: Sequence[NamedOutput]) -> list[str]:
    """Return `012_layer2.0.conv1` for each row: call index, label, output."""
    width = max(3, len(str(max((row.order for row in rows), default=0))))
    stems = []
    for row in rows:
        text = label_of(row) + (f"_{row.output}" if row.output else "")
        safe = "".join(mark if mark.isalnum() or mark in "._#-" else "-" for mark in text)
        stems.append(f"{row.order:0{width}d}_{safe[:150]}")
    return stems
