"""Would loading this file run code? Standard library.

Every pickle of a file is gone through, whatever the file is called and whatever it says it is; none is run. What
cannot be read is an error, and an error is never clean.
"""

import codecs
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.file_type import is_safetensors
from modelscope_cli.checkpoints.pickle_machine import Blob
from modelscope_cli.checkpoints.safety.call_rules import LOADS_BYTES
from modelscope_cli.checkpoints.safety.containers import MAX_ALL_UNPACKED, ZIP, Part, is_tar, parts_of
from modelscope_cli.checkpoints.safety.documents import suspects_of
from modelscope_cli.checkpoints.safety.known import TORCHS_OWN, WEIGHTS_ONLY
from modelscope_cli.checkpoints.safety.pickles import LEGACY_MAGIC, N_LEGACY, read_pickles
from modelscope_cli.checkpoints.safety.weights_only import WeightsOnlyRules
from modelscope_cli.checkpoints.safety.window import window
from modelscope_cli.checkpoints.zip_directory import (
    appended_archive,
    as_torch_compares,
    list_entries,
    torch_records,
)
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import UNKNOWN, Safety, Suspect, WeightsOnly, worst

_MAX_DEPTH = 4
_MAX_TEXT = 32 << 20
# Of pickles inside pickles and archives, for each byte of the file: more is only had by naming the same ones again.
_MIN_WORK = 64 << 20
_WORK_PER_BYTE = 4
_N_HEAD = 512
# Bare bytes of tensors in an archive of torch.export.
_SPACES = str.maketrans("", "", "\t\r\n\f")
_BEGIN = re.compile(rb"\x80[\0-\5]|PK|\x93NUMPY")
_EXPORTED = re.compile(r"(?:[^/]+/)?data/(?:weights/weight|constants/tensor)_[0-9]+")
# Formats that hold no pickles: what begins so is understood.
_PLAIN_FORMATS = (
    *(b"GGUF", b"ggjt", b"ARROW1", b"PAR1", b"%PDF", b"RIFF"),
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"\0\x05\x16\x07"),
    *(b"OggS", b"fLaC", b"ID3"),
    *(b"\x93NUMPY",),  # what it holds is a part of its own
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
        self._unpacked_left = MAX_ALL_UNPACKED + _WORK_PER_BYTE * nbytes
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
        if head.startswith(ZIP[0]):
            main = _torchs_pickle(file, rules)
            self._look_inside(file, head, "", 0, (main, rules))
            return rules.verdict()
        is_archive = is_tar(file)
        if is_archive:
            rules.refuse("the tar format of torch before 0.4, which it does not accept")
        self._look_inside(file, head, "", 0, None)
        found = self._look_for_pickles(file, "", 0, rules)
        if not found and not is_archive:
            if not self._pickles and not self._errors and not self._suspects and not _is_plain(head):
                self._is_understood = False
            start = appended_archive(file)
            if start is not None:  # zipfile and torch.jit look for the directory at the end alone
                nbytes = file.seek(0, 2)
                self._look_inside(window(file, start, nbytes - start), ZIP[0], "", 0, None)
            return WeightsOnly("unasked")
        if found and found[0].content != LEGACY_MAGIC:
            rules.refuse("a pickle that torch.save did not write")
        elif found and len(found) < N_LEGACY:
            rules.refuse("cut short")
        return rules.verdict()

    def look(self, file: IO[bytes], place: str, depth: int = 0) -> bool:
        """Go through a part of a file, whatever it is; tell whether it is of a format that is read."""
        if depth > _MAX_DEPTH:
            self._errors.append(f"{place}: files inside files, more than {_MAX_DEPTH} deep")
            return True
        file.seek(0)
        head = file.read(_N_HEAD)
        before = self._n_found
        has_parts = self._look_inside(file, head, place, depth, None)
        if not head.startswith(ZIP[0]):
            self._look_for_pickles(file, place, depth, None)
        return has_parts or self._n_found > before or _is_plain(head) or head.startswith(ZIP)

    @property
    def _n_found(self) -> int:
        return len(self._pickles) + len(self._errors) + len(self._suspects)

    def _look_inside(
        self,
        file: IO[bytes],
        head: bytes,
        place: str,
        depth: int,
        main: tuple[str | None, WeightsOnlyRules] | None,
    ) -> bool:
        self._add(suspects_of(file, head, place))
        has_parts = False
        try:
            for part in parts_of(file, head):
                has_parts = True
                inner = "/".join(filter(None, (place, plain(part.name))))
                n_before = len(self._pickles)
                if part.is_code:
                    self._add([Suspect(inner, UNKNOWN, "is a program, which its loader runs", None, inner)])
                if part.file is not None and self._has_work(0, inner):
                    if main is not None and part.name == main[0]:
                        self._look_for_pickles(part.file, inner, depth, main[1], is_one=True)
                        main = (None, main[1])
                    else:
                        self._look_at_part(part, part.file, inner, depth)
                    part.file.close()  # and with it the memory of what is unpacked
                if part.problem is not None and (part.is_certain or len(self._pickles) == n_before):
                    self._errors.append(f"{inner}: {part.problem}".removeprefix(": "))
                self._unpacked_left -= part.n_unpacked
                if self._unpacked_left < 0:
                    self._errors.append(f"{inner}: more to unpack than {MAX_ALL_UNPACKED >> 20} MiB")
                    break
        except ValueError as error:
            self._errors.append(f"{place}: {error}".removeprefix(": "))
        return has_parts

    def _look_at_part(self, part: Part, file: IO[bytes], place: str, depth: int) -> None:
        head = file.read(_N_HEAD)
        # torch reads values as they are, so they are a pickle only if they say so.
        if part.is_storage and not _BEGIN.match(head):
            return
        is_read = self.look(file, place, depth + 1)
        is_values = part.is_storage or _EXPORTED.fullmatch(part.name) is not None
        if not (is_read or is_values or part.problem):
            self._add([Suspect(place, UNKNOWN, "is of a format that is not read", None, place)])

    def _add(self, suspects: Iterable[Suspect]) -> None:
        """Keep the worst that is said of each name."""
        for suspect in suspects:
            old = self._suspects.get(suspect.name)
            if old is None or suspect.badness > old.badness:
                self._suspects[suspect.name] = suspect

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
            self._add(one.suspects.values())
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


def _is_plain(head: bytes) -> bool:
    """Tell text, and formats that hold no pickle."""
    is_known = head.startswith(_PLAIN_FORMATS) or head[4:8] == b"ftyp" or is_safetensors(head)
    if not head or is_known or (head[:2] == b"BM" and head[6:10] == bytes(4)):
        return True
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)  # it may end within a character
    except UnicodeDecodeError:
        return False
    return "".join(text.split(" ")).translate(_SPACES).isprintable()
