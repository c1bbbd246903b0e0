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

from modelscope_cli.errors import CannotRunError
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

    Raises:
        CannotRunError: another process is writing to the file (exit 4).
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
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if not _lock(self._file):
                self.close()
                raise CannotRunError(f"another run is writing to '{path.parent}'", "--out FOLDER")
            if not goes_on:
                os.truncate(self._file, 0)

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
            _lock(self._file, is_held=False)  # a fork that still has it open would hold the lock
            os.close(self._file)
            self._file = None


def _lock(file: int, *, is_held: bool = True) -> bool:
    """Lock an open file, or release it, where files can be locked; return False if another process holds it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if is_held else fcntl.LOCK_UN)
    except (ImportError, OSError) as error:  # Windows; some network file systems
        return not isinstance(error, BlockingIOError)
    return True


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
