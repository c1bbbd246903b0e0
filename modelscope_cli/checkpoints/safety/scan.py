"""Scan a file, the files of a checkpoint, or a folder for code that loading would run. Standard library.

Every pickle of a file is scanned, whatever the file's name and format; none is run. Unreadable content is an error,
and an error is never clean.
"""

import codecs
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import IO, Any

from modelscope_cli.checkpoints.entries import UnsupportedError
from modelscope_cli.checkpoints.file_type import INDEX, guess, is_lfs_pointer, is_model_name, is_safetensors
from modelscope_cli.checkpoints.opcodes import Blob
from modelscope_cli.checkpoints.reading import MAX_INDEX_BYTES, METADATA, is_outside
from modelscope_cli.checkpoints.safetensors_header import read_safetensors
from modelscope_cli.checkpoints.safety.call_rules import LOADS_BYTES
from modelscope_cli.checkpoints.safety.containers import (
    MAX_ALL_UNPACKED,
    NOT_JUDGED,
    ZIP,
    Part,
    is_tar,
    parts_of,
    suspects_of,
    window,
)
from modelscope_cli.checkpoints.safety.known_names import WEIGHTS_ONLY
from modelscope_cli.checkpoints.safety.pickles import LEGACY_MAGIC, N_LEGACY, WeightsOnlyRules, read_pickles
from modelscope_cli.checkpoints.torch_file import read_torch
from modelscope_cli.checkpoints.zip_directory import (
    appended_archive,
    as_torch_compares,
    list_entries,
    torch_records,
)
from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import (
    DAMAGED,
    NOT_A_CHECKPOINT,
    NOT_TORCH,
    NUMPY,
    OTHER,
    TORCH,
    UNKNOWN,
    Safety,
    Suspect,
    WeightsOnly,
    worst,
)

_MAX_DEPTH = 4
_MAX_TEXT = 32 << 20
# Minimum budget of bytes for nested pickles; only reusing the same ones repeatedly takes more.
_MIN_WORK = 64 << 20
_WORK_PER_BYTE = 4
_N_HEAD = 512
# Raw tensor bytes in a torch.export archive.
_SPACES = str.maketrans("", "", "\t\r\n\f")
_BEGIN = re.compile(rb"\x80[\0-\5]|PK|\x93NUMPY")
_OTHER_FORMAT = f"another format, {NOT_JUDGED}"
_EXPORTED = re.compile(r"(?:[^/]+/)?data/(?:weights/weight|constants/tensor)_[0-9]+")
# Beginnings of formats without pickles.
_PLAIN_FORMATS = (
    *(b"ARROW1", b"PAR1", b"%PDF", b"RIFF"),
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"\0\x05\x16\x07"),
    *(b"OggS", b"fLaC", b"ID3"),
    *(b"\x93NUMPY",),  # its values are a separate part
)


def scan(path: Path) -> Safety:
    """Name all that loading a file could run."""
    with path.open("rb") as file:
        scanner = Scanner(file.seek(0, 2))
        weights_only = scanner.look_at_whole(file)
    return scanner.result(str(path), weights_only)


class Scanner:
    """Scans nested files and collects the findings."""

    def __init__(self, nbytes: int) -> None:
        self._work_left = _MIN_WORK + _WORK_PER_BYTE * nbytes
        self._unpacked_left = MAX_ALL_UNPACKED + _WORK_PER_BYTE * nbytes
        self._suspects: dict[str, Suspect] = {}
        self._names: dict[str, None] = {}
        self._pickles: list[str] = []
        self._unread: list[str] = []
        self._errors: list[str] = []
        self._loader = NOT_TORCH  # of the part that is read

    def result(self, file: str, weights_only: WeightsOnly) -> Safety:
        """Return all findings, the dangerous first."""
        suspects = sorted(self._suspects.values(), key=lambda suspect: suspect.badness, reverse=True)
        rank = worst([suspect.rank for suspect in suspects] + [UNKNOWN] * bool(self._errors))
        named = [suspect.name for suspect in suspects]
        others = [name for name in map(plain, self._names) if name not in WEIGHTS_ONLY and name not in named]
        return Safety(
            file=file,
            rank=rank,
            suspects=tuple(suspects),
            weights_only=weights_only,
            foreign=(*named, *others),
            pickles=tuple(self._pickles),
            unread=tuple(self._unread),
            errors=tuple(dict.fromkeys(self._errors)),
        )

    def look_at_whole(self, file: IO[bytes]) -> WeightsOnly:
        """Scan a file for `torch.load`, and return what weights_only would do."""
        file.seek(0)
        head = file.read(_N_HEAD)
        rules = WeightsOnlyRules()
        if head.startswith(ZIP[0]):
            main = _torchs_pickle(file, rules)
            self._look_inside(file, head, "", 0, (main, rules))
            return rules.verdict()
        is_archive = is_tar(file)
        if is_archive:
            rules.refuse("the tar format of torch before 0.4, which weights_only does not accept")
            self._loader = TORCH
        self._look_inside(file, head, "", 0, None)
        pickles = self._look_for_pickles(file, "", 0, rules)
        if not pickles and not is_archive:
            if not self._pickles and not self._errors and not self._suspects and not _is_plain(head):
                self._errors.append(_OTHER_FORMAT)
            start = appended_archive(file)
            if start is not None:  # zipfile and torch.jit look for the directory only at the end
                nbytes = file.seek(0, 2)
                self._look_inside(window(file, start, nbytes - start), ZIP[0], "", 0, None)
            return WeightsOnly("unasked")
        if pickles and pickles[0].content != LEGACY_MAGIC:
            rules.refuse("a pickle that torch.save did not write")
        elif pickles and len(pickles) < N_LEGACY:
            rules.refuse("cut short")
        return rules.verdict()

    def look(self, file: IO[bytes], place: str, depth: int = 0) -> bool:
        """Scan a part of a file in any format; return whether the format is supported."""
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
        has_parts, outer = False, self._loader
        if head.startswith(b"\x93NUMPY"):
            self._loader = NUMPY
        try:
            self._add(suspects_of(file, head, place))
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
                    part.file.close()  # frees the unpacked content
                if part.problem is not None and (part.is_certain or len(self._pickles) == n_before):
                    self._errors.append(f"{inner}: {part.problem}".removeprefix(": "))
                self._unpacked_left -= part.n_unpacked
                if self._unpacked_left < 0:
                    self._errors.append(f"{inner}: more to unpack than {MAX_ALL_UNPACKED >> 20} MiB")
                    break
        except ValueError as error:
            self._errors.append(f"{place}: {error}".removeprefix(": "))
        self._loader = outer
        return has_parts

    def _look_at_part(self, part: Part, file: IO[bytes], place: str, depth: int) -> None:
        head = file.read(_N_HEAD)
        # torch reads raw values, so they are a pickle only if they begin like one.
        if part.is_storage and not _BEGIN.match(head):
            return
        is_read = self.look(file, place, depth + 1)
        is_values = part.is_storage or _EXPORTED.fullmatch(part.name) is not None
        if not (is_read or is_values or part.problem):
            self._add([Suspect(place, UNKNOWN, "has an unsupported format", None, place)])

    def _add(self, suspects: Iterable[Suspect]) -> None:
        """Keep the worst rating of each name."""
        for suspect in suspects:
            old = self._suspects.get(suspect.name)
            if old is None or suspect.badness > old.badness:
                self._suspects[suspect.name] = suspect

    def _look_for_pickles(
        self, file: IO[bytes], place: str, depth: int, rules: WeightsOnlyRules | None, is_one: bool = False
    ) -> list[Any]:
        def nested(data: bytes | Blob, position: int) -> str | None:
            return self._look_nested(file, data, f"{place}, byte {position}".removeprefix(", "), depth + 1)

        outer, self._loader = self._loader, TORCH if rules is not None else self._loader
        pickles = read_pickles(file, place, nested, rules, is_one)
        n_together = N_LEGACY if pickles and pickles[0].content == LEGACY_MAGIC else 1
        for number, pickle in enumerate(pickles):
            self._has_work(pickle.end - pickle.start, place)
            where = place or "the file itself"
            where = f"{where}, byte {pickle.start}" if pickle.start else where
            self._names.update(dict.fromkeys(pickle.names))
            if not 0 < number < n_together:
                self._pickles.append(where)
            if rules is None or number >= n_together:
                self._unread.append(where)
            if pickle.error is not None:
                self._errors.append(f"{where}: {pickle.error}")
            loader = self._loader if number < n_together or self._loader != TORCH else NOT_TORCH
            self._add(replace(suspect, loader=loader) for suspect in pickle.suspects.values())
        self._loader = outer
        return pickles

    def _look_nested(self, file: IO[bytes], data: bytes | Blob, place: str, depth: int) -> str | None:
        """Scan the pickle in a loader's argument; return the problem, if any."""
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
        del self._unread[n_unread:]  # it is read by the enclosing pickle
        if len(self._errors) > n_errors:
            return "it cannot be read"
        if not is_known:
            return "it holds more than tensors"
        return None if len(self._pickles) > n_pickles else "its content is not a pickle"

    def _has_work(self, nbytes: int, place: str) -> bool:
        self._work_left -= nbytes
        if self._work_left < 0:
            self._errors.append(f"{place}: more to read than the file has bytes")
        return self._work_left >= 0


def _torchs_pickle(file: IO[bytes], rules: WeightsOnlyRules) -> str | None:
    """Return the entry of an archive that torch unpickles; None without one."""
    try:
        entries = list_entries(file)
        records = torch_records(entries)
    except ValueError as error:
        rules.refuse(f"a damaged archive: {error}")
        return None
    if any(entry.name.partition("/")[2] == "constants.pkl" for entry in entries):
        rules.refuse("a TorchScript program, which weights_only does not accept")
    entry = records.get(as_torch_compares("data.pkl"))
    if entry is None:
        rules.refuse("an archive without the 'data.pkl' of torch")
    return entry.name if entry else None


def _is_plain(head: bytes) -> bool:
    """Tell whether a file begins like text or a format without pickles."""
    is_known = head.startswith(_PLAIN_FORMATS) or head[4:8] == b"ftyp" or is_safetensors(head)
    if not head or is_known or (head[:2] == b"BM" and head[6:10] == bytes(4)):
        return True
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)  # it may end within a character
    except UnicodeDecodeError:
        return False
    return "".join(text.split(" ")).translate(_SPACES).isprintable()


_LOADS = ("yes", "unasked", "with names", "no")


def scan_file(path: Path) -> Safety:
    """Scan one file of any kind.

    If it cannot be read (a pipe, a file without permission), the result has an error.
    """
    if path.exists() and not path.is_file():
        return _not_read(path, "not a plain file")
    try:
        result = scan(path)
        with path.open("rb") as file:
            head = file.read(_N_HEAD)
    except OSError as error:
        return _not_read(path, error.strerror or str(error))
    has_pickles = bool(result.pickles or result.suspects) or result.errors not in ((), (_OTHER_FORMAT,))
    is_other = not has_pickles and _is_other(path, head)
    if not has_pickles and (is_lfs_pointer(head) or (is_other and is_model_name(path))):
        kind = guess(head, quoted=not path.is_symlink()).removeprefix("it is ")  # never what a link leads to
        return replace(result, rank=NOT_A_CHECKPOINT, errors=(f"{NOT_A_CHECKPOINT}: {kind}",))
    if is_other and not result.errors:
        return replace(result, rank=OTHER)
    if reason := _damage(path, head):
        result = replace(result, rank=worst((result.rank, DAMAGED)), errors=result.errors or (reason,))
    if path.name != METADATA and not (path.parent / METADATA).is_file():
        return result
    errors = (f"in a torch.distributed.checkpoint folder, {NOT_JUDGED}", *result.errors)
    loads = WeightsOnly("unasked", (), "torch.distributed.checkpoint loads pickles with weights_only=False")
    return replace(result, rank=worst((result.rank, UNKNOWN)), weights_only=loads, errors=errors)


def _is_other(path: Path, head: bytes) -> bool:
    """Tell whether a file without pickles is text, of a format without weights, or empty."""
    is_index = path.name.endswith(INDEX) and head.lstrip().startswith(b"{")
    is_plain = not head.strip(b"\0") or (_is_plain(head) and not head.startswith(b"\x93NUMPY"))
    return is_plain and not is_index and not is_safetensors(head)


def _damage(path: Path, head: bytes) -> str | None:
    """Return why a file of torch or safetensors is damaged, by its headers; None for any other."""
    if not head.startswith((b"PK\x03\x04", b"\x80")) and not (is_safetensors(head) and b"\0" in head[:8]):
        return None
    try:
        read_safetensors(path) if is_safetensors(head) else read_torch(path)
    except CannotRunError as error:
        is_other = isinstance(error.__cause__, UnsupportedError)
        return None if is_other else error.message.removeprefix(f"checkpoint '{path}' is ")
    return None


def scan_checkpoint(path: Path) -> Safety:
    """Scan the files of one checkpoint: a file, an index with its shards, or a folder."""
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if not file.is_dir()]
        results = [scan_file(file) for file in files] or [_not_read(path, "a folder without files")]
    else:
        results = [scan_file(path), *_scan_shards(path)]
    return results[0] if len(results) == 1 else _together(path, results)


def _scan_shards(index: Path) -> list[Safety]:
    """Scan the files that an index names, except those outside its folder."""
    if not index.name.endswith(INDEX) or not index.is_file():
        return []
    try:
        with index.open("rb") as file:
            names = {str(name) for name in json.loads(file.read(MAX_INDEX_BYTES))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        return [_not_read(index, "no index of shards that can be read")]
    return [
        _not_read(index.parent / PurePath(name).name, "outside the folder of the index")
        if is_outside(name)
        else scan_file(index.parent / name)
        for name in sorted(names)
    ]


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file and broken link of a folder, recursively and in order; links out of it are not followed."""
    root = folder.resolve()
    for at, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(at, name)
            if not path.is_symlink() or not path.exists() or path.resolve().is_relative_to(root):
                yield path


def _together(path: Path, results: list[Safety]) -> Safety:
    suspects = [(one, suspect, PurePath(one.file).name) for one in results for suspect in one.suspects]
    suspects.sort(key=lambda item: item[1].badness, reverse=True)
    verdicts = sorted((one.weights_only for one in results), key=lambda verdict: -_LOADS.index(verdict.loads))
    names = dict.fromkeys(name for one in results for name in one.weights_only.names)

    def placed(texts: str) -> tuple[str, ...]:
        return tuple(f"{PurePath(one.file).name}: {text}" for one in results for text in getattr(one, texts))

    first = verdicts[0]
    return Safety(
        file=str(path),
        rank=worst(one.rank for one in results),
        suspects=tuple(replace(one, place=f"{file}, {one.place}") for _, one, file in suspects),
        weights_only=WeightsOnly(first.loads, tuple(names), first.reason),
        foreign=tuple(dict.fromkeys(name for one in results for name in one.foreign)),
        pickles=placed("pickles"),
        unread=placed("unread"),
        errors=placed("errors"),
    )


def _not_read(path: Path, reason: str) -> Safety:
    return Safety(str(path), "unknown", (), WeightsOnly("no", (), reason), errors=(reason,))
