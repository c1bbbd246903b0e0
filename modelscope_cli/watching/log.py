"""The log of a run: one JSON document a line, only ever appended to, readable up to wherever a run was killed.

{"begin": {...}}     the version of what follows, what was typed, which rank of how many
{"layer": {...}}     gives a call of a layer its number, before its first use; so does {"parameter": {...}}
{"entering": {...}}  numbers a tensor that enters a model; {"criterion": {...}} a line that calls a criterion
{"images": {...}}    a few of the first images that enter, as a PNG
{"step": {...}}      what one optimizer step showed, as sums
{"evaluation": {...}} what criteria were given in evaluation, before that step
{"facts": {...}}     who holds which parameter, who clears gradients, and the like; the last word on each counts
{"birth": {...}}     where values that are not finite began
{"event": {...}}     something that happened
{"end": {...}}       the run's last word; missing where it was killed
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from modelscope_cli.plain_text import plain_json

VERSION = 3
"""Of the entries. A log without a version is from before there were any."""

Entry = dict[str, Any]


def log_file(folder: Path, rank: int = 0) -> Path:
    return folder / (f"log.{rank}.jsonl" if rank else "log.jsonl")


class Log:
    """Writes each entry at once and whole, past any buffer of Python's; after an error no more.

    Args:
        path: the file; None for none.
        follow: is given `(kind, entry)` of each, as `read_log` would.
    """

    def __init__(self, path: Path | None, follow: Callable[[str, Entry], object] | None = None) -> None:
        self._follow = follow
        self.failure: str | None = None  # why nothing more could be written
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._file = os.open(path, flags, 0o644) if path is not None else None

    def write(self, kind: str, /, **fields: Any) -> None:
        entry = _rounded(fields)
        if self._follow is not None:
            self._follow(kind, entry)
        if self._file is not None:
            text = plain_json(json.dumps({kind: entry}, separators=(",", ":")))
            try:
                os.write(self._file, text.encode("ascii") + b"\n")
            except OSError as error:  # the disk is full: no reason to end a training
                self.failure = error.strerror
                self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _rounded(value: Any) -> Any:
    """Nine digits hold a float32 exactly. What is not finite becomes a string: JSON has no word for it."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def read_log(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield `(kind, entry)` of every whole line; a last one that was cut off is left out."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict) and len(document) == 1:
                kind, fields = next(iter(document.items()))
                if isinstance(fields, dict):
                    yield kind, fields


def number(value: Any) -> float | None:
    """Return a number of the log as it was, NaN and infinities too."""
    return None if value is None else float(value)
