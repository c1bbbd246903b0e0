"""The log of a run: one JSON document a line, append-only, readable after the run was killed.

{"begin": {...}}     version of the log, command line, rank and number of ranks
{"layer": {...}}     numbers a call of a layer, before its first use; so does {"parameter": {...}}
{"entering": {...}}  numbers an input of a model; {"criterion": {...}} a line that calls a criterion
{"step": {...}}      sums of one optimizer step, without those of which there are none
{"evaluation": {...}} sums of the criteria in evaluation, before that step
{"facts": {...}}     which optimizer holds a parameter, when gradients are cleared, and so on; the last entry counts
{"birth": {...}}     the first non-finite value
{"event": {...}}     a notable event
{"trials": {...}}    the script again with one thing changed: after the end
{"end": {...}}       exit code and number of steps; missing if the run was killed
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from modelscope_cli.plain_text import plain_json, with_numbers

VERSION = 4
"""Version of the entries. A log without one is of version 1."""

Entry = dict[str, Any]

_to_json = json.JSONEncoder(separators=(",", ":")).encode


def log_file(folder: Path, rank: int = 0) -> Path:
    return folder / (f"log.{rank}.jsonl" if rank else "log.jsonl")


class Log:
    """Writes each entry at once, unbuffered and in one call; writes nothing after an error.

    Args:
        path: the file; None to write nothing.
        follow: called with `(kind, entry)` of each, as `read_log` yields them.
        goes_on: keep what the file holds.
    """

    def __init__(
        self,
        path: Path | None,
        follow: Callable[[str, Entry], object] | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        self._follow = follow
        self.failure: str | None = None  # why nothing more could be written
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if goes_on else os.O_TRUNC)
        self._file = os.open(path, flags, 0o644) if path is not None else None

    def write(self, kind: str, /, **fields: Any) -> None:
        entry = with_numbers(fields, _rounded)
        if self._follow is not None:
            self._follow(kind, entry)
        if self._file is not None:
            text = plain_json(_to_json({kind: entry}))
            try:
                os.write(self._file, text.encode("ascii") + b"\n")
            except OSError as error:  # such as a full disk, which must not end the training
                self.failure = error.strerror
                self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _rounded(value: float) -> float | str:
    """Round to nine digits, which hold a float32 exactly; non-finite numbers become strings, as JSON lacks them."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


def read_log(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield `(kind, entry)` of every complete line."""
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
    """Return a number of the log, including NaN and infinities."""
    return None if value is None else float(value)
