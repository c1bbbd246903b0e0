"""Would loading this file run code? Standard library.

Every pickle of a file is gone through, whatever the file is called and whatever it says it is; none is run. What
cannot be read is an error, and an error is never clean.
"""

import io
from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.pickle_machine import Blob
from modelscope_cli.checkpoints.safety.call_rules import LOADS_BYTES
from modelscope_cli.checkpoints.safety.containers import is_tar, parts_of
from modelscope_cli.checkpoints.safety.known import TORCHS_OWN, WEIGHTS_ONLY
from modelscope_cli.checkpoints.safety.pickles import LEGACY_MAGIC, N_LEGACY, read_pickles
from modelscope_cli.checkpoints.safety.weights_only import WeightsOnlyRules
from modelscope_cli.checkpoints.safety.window import window
from modelscope_cli.checkpoints.zip_directory import as_torch_compares, list_entries, torch_records
from modelscope_cli.plain_text import plain
from modelscope_cli.records.safety import (
    UNKNOWN,
    Safety,
    Suspect,
    WeightsOnly,
    worst,
)

_MAX_DEPTH = 4
_MAX_TEXT = 32 << 20
# Of pickles inside pickles and archives, for each byte of the file: more is only had by naming the same ones again.
_MIN_WORK = 64 << 20
_WORK_PER_BYTE = 4
_N_HEAD = 512
_ZIP = b"PK\x03\x04"
# Formats that hold no pickles: what begins so is understood.
_PLAIN_FORMATS = (
    b"GGUF",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"RIFF",
    b"%PDF",
    b"ggjt",
    b"ARROW1",
    b"PAR1",
)


def scan(path: Path) -> Safety:
    """Name all that loading a file could run.

    Raises:
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        scanner = Scanner(file.seek(0, 2))
        weights_only = scanner.look_at_whole(file)
    return scanner.result(str(path), weights_only)


class Scanner:
    """Goes through files inside files and gathers what is found."""

    def __init__(self, nbytes: int) -> None:
        self._work_left = _MIN_WORK + _WORK_PER_BYTE * nbytes
        self._suspects: dict[str, Suspect] = {}
        self._names: dict[str, None] = {}
        self._pickles: list[str] = []
        self._unread: list[str] = []
        self._errors: list[str] = []
        self._is_understood = True

    def result(self, file: str, weights_only: WeightsOnly) -> Safety:
        """Return all that was found, the dangerous first."""
        suspects = sorted(self._suspects.values(), key=lambda suspect: suspect.badness, reverse=True)
        rank = worst(
            [suspect.rank for suspect in suspects]
            + [UNKNOWN] * (bool(self._errors) or not self._is_understood)
        )
        named = [suspect.name for suspect in suspects]
        others = [name for name in map(plain, self._names) if name not in TORCHS_OWN and name not in named]
        return Safety(
            file=file,
            rank=rank,
            suspects=tuple(suspects),
            weights_only=weights_only,
            foreign=(*named, *others),
            pickles=tuple(self._pickles),
            unread=tuple(self._unread),
            errors=tuple(dict.fromkeys(self._errors)),
            is_understood=self._is_understood,
        )

    def look_at_whole(self, file: IO[bytes]) -> WeightsOnly:
        """Go through a file that somebody gives to `torch.load`, and return what that would say."""
        file.seek(0)
        head = file.read(_N_HEAD)
        rules = WeightsOnlyRules()
        if head.startswith(_ZIP):
            main = _torchs_pickle(file, rules)
            self._look_inside(file, head, "", 0, (main, rules))
            return rules.verdict()
        is_archive = is_tar(file)
        if is_archive:
            rules.refuse("the tar format of torch before 0.4, which it does not accept")
        self._look_inside(file, head, "", 0, None)
        found = self._look_for_pickles(file, "", 0, rules)
        if not found and not is_archive:
            if not self._pickles and not self._errors and not _is_plain(head):
                self._is_understood = False
            return WeightsOnly("unasked")
        if found and found[0].content != LEGACY_MAGIC:
            rules.refuse("a pickle that torch.save did not write")
        elif found and len(found) < N_LEGACY:
            rules.refuse("cut short")
        return rules.verdict()

    def look(self, file: IO[bytes], place: str, depth: int = 0) -> None:
        """Go through a part of a file, whatever it is."""
        if depth > _MAX_DEPTH:
            self._errors.append(f"{place}: files inside files, more than {_MAX_DEPTH} deep")
            return
        file.seek(0)
        head = file.read(_N_HEAD)
        self._look_inside(file, head, place, depth, None)
        if not head.startswith(_ZIP):
            self._look_for_pickles(file, place, depth, None)

    def _look_inside(
        self,
        file: IO[bytes],
        head: bytes,
        place: str,
        depth: int,
        main: tuple[str | None, WeightsOnlyRules] | None,
    ) -> None:
        try:
            for part in parts_of(file, head):
                inner = "/".join(filter(None, (place, plain(part.name))))
                n_before = len(self._pickles)
                if part.file is not None and self._has_work(0, inner):
                    if main is not None and part.name == main[0]:
                        self._look_for_pickles(part.file, inner, depth, main[1], is_one=True)
                        main = (None, main[1])
                    elif not _is_storage(part.name, part.file):
                        self.look(part.file, inner, depth + 1)
                if part.problem is not None and len(self._pickles) == n_before:
                    self._errors.append(f"{inner}: {part.problem}".removeprefix(": "))
        except ValueError as error:
            self._errors.append(f"{place}: {error}".removeprefix(": "))

    def _look_for_pickles(
        self, file: IO[bytes], place: str, depth: int, rules: WeightsOnlyRules | None, is_one: bool = False
    ) -> list[Any]:
        def nested(data: bytes | Blob, position: int) -> str | None:
            return self._look_nested(file, data, f"{place}, byte {position}".removeprefix(", "), depth + 1)

        found = read_pickles(file, place, nested, rules, is_one)
        n_together = N_LEGACY if found and found[0].content == LEGACY_MAGIC else 1
        for number, one in enumerate(found):
            self._has_work(one.end - one.start, place)
            where = place or "the file itself"
            where = f"{where}, byte {one.start}" if one.start else where
            self._names.update(dict.fromkeys(one.names))
            if not 0 < number < n_together:
                self._pickles.append(where)
            if rules is None or number >= n_together:
                self._unread.append(where)
            if one.error is not None:
                self._errors.append(f"{where}: {one.error}")
            for name, suspect in one.suspects.items():
                old = self._suspects.get(name)
                if old is None or suspect.badness > old.badness:
                    self._suspects[name] = suspect
        return found

    def _look_nested(self, file: IO[bytes], data: bytes | Blob, place: str, depth: int) -> str | None:
        """Go through the pickle that a loader is given; say what was not understood of it."""
        nbytes = data.nbytes if isinstance(data, Blob) else len(data)
        if not self._has_work(nbytes, place) or depth > _MAX_DEPTH:
            return "it is nested too deeply, or read too often, to be judged"
        n_errors, n_pickles, n_unread = len(self._errors), len(self._pickles), len(self._unread)
        at, names = file.tell(), self._names
        self._names = {}
        if isinstance(data, Blob) and data.is_text:
            file.seek(data.start)
            data = file.read(min(nbytes, _MAX_TEXT)).decode("utf-8", "replace").encode("latin-1", "replace")
        inner = window(file, data.start, nbytes) if isinstance(data, Blob) else io.BytesIO(data)
        self.look(inner, place, depth)
        file.seek(at)
        is_known = all(name in WEIGHTS_ONLY or name == LOADS_BYTES for name in self._names)
        self._names = names | self._names
        del self._unread[n_unread:]  # it is read by the pickle around it
        if len(self._errors) > n_errors:
            return "it cannot be read"
        if not is_known:
            return "it holds more than tensors"
        return None if len(self._pickles) > n_pickles else "what it loads is not a pickle"

    def _has_work(self, nbytes: int, place: str) -> bool:
        self._work_left -= nbytes
        if self._work_left < 0:
            self._errors.append(f"{place}: more to read than the file has bytes")
        return self._work_left >= 0


def _torchs_pickle(file: IO[bytes], rules: WeightsOnlyRules) -> str | None:
    """Return the entry of an archive that torch unpickles; None where it does not."""
    try:
        entries = list_entries(file)
        records = torch_records(entries)
    except ValueError as error:
        rules.refuse(f"a damaged archive: {error}")
        return None
    if any(entry.name.partition("/")[2] == "constants.pkl" for entry in entries):
        rules.refuse("a TorchScript program, which it does not accept")
    entry = records.get(as_torch_compares("data.pkl"))
    if entry is None:
        rules.refuse("an archive without the 'data.pkl' of torch")
    return entry.name if entry else None


def _is_storage(name: str, file: IO[bytes]) -> bool:
    """Tell the values of a tensor: torch reads them as they are, so they are a pickle only if they say so."""
    folder, _, key = name.rpartition("/")
    head = file.read(2) if folder.endswith("/data") and key.isdecimal() else b""
    file.seek(0)
    return bool(head) and not (head[:1] == b"\x80" and head[1:] <= b"\x05") and head != b"PK"


def _is_plain(head: bytes) -> bool:
    """Tell text, and formats that hold no pickle."""
    if head.startswith(_PLAIN_FORMATS) or head[8:9] == b"{" or not head:
        return True
    return "".join(head.decode("utf-8", "ignore").split()).isprintable() and b"\0" not in head
