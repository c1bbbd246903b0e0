"""Checkpoints of several files, and whole folders: each file is scanned. Standard library."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath

from modelscope_cli.checkpoints.entries import checked_sizes
from modelscope_cli.checkpoints.pickle_machine import Machine
from modelscope_cli.checkpoints.safety.scan import Scanner, scan
from modelscope_cli.checkpoints.safety.window import window
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import UNKNOWN, Safety, Suspect, WeightsOnly, worst

_METADATA = ".metadata"
_INDEX = ".index.json"
_MAX_INDEX = 32 << 20
_DISTRIBUTED = ".distcp"
_TENSOR = "torch.distributed.checkpoint.metadata.TensorStorageMetadata"
_NOT_METADATA = (ValueError, OSError, AttributeError, TypeError, KeyError, OverflowError)
_LOADS = ("yes", "unasked", "with names", "no")
_ALL_LOADED = WeightsOnly(
    "unasked",
    (),
    "torch.distributed.checkpoint loads the pickles of this folder in full, with weights_only=False",
)


def scan_file(path: Path) -> Safety:
    """Scan one file, whatever it is.

    What cannot be read is an error in the result: a pipe, a file without permission.
    """
    if path.exists() and not path.is_file():
        return _not_read(path, "not a plain file")
    try:
        metadata = path.parent / _METADATA
        if path.name == _METADATA:
            return _scan_metadata(path)
        return _scan_objects(path) if metadata.is_file() else scan(path)
    except OSError as error:
        return _not_read(path, error.strerror or str(error))


def scan_checkpoint(path: Path) -> Safety:
    """Scan the files of one checkpoint: a file, an index with its shards, or a folder."""
    if path.is_dir():
        found = [scan_file(file) for file in sorted(path.iterdir()) if not file.is_dir()]
    else:
        found = [scan_file(path), *_scan_shards(path)]
    return found[0] if len(found) == 1 else _together(path, found)


def _scan_shards(index: Path) -> list[Safety]:
    """Scan the files that an index names, but for those outside its folder."""
    if not index.name.endswith(_INDEX) or not index.is_file():
        return []
    try:
        with index.open("rb") as file:
            names = {str(name) for name in json.loads(file.read(_MAX_INDEX))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        return [_not_read(index, "no index of shards that can be read")]
    return [
        _not_read(index.parent / PurePath(name).name, "outside the folder of the index")
        if _is_outside(name)
        else scan_file(index.parent / name)
        for name in sorted(names)
    ]


def _is_outside(name: str) -> bool:
    """Tell the name of a file that leads out of the folder it is told in."""
    return PurePath(name).is_absolute() or ".." in PurePath(name).parts or "\0" in name


def files_below(folder: Path) -> Iterator[Path]:
    """Give every file of a folder, of any depth, in order; links are not followed out of it."""
    root = folder.resolve()
    for at, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(at, name)
            if not path.is_symlink() or path.resolve().is_relative_to(root):
                yield path


def _together(path: Path, found: list[Safety]) -> Safety:
    suspects = [(one, suspect, PurePath(one.file).name) for one in found for suspect in one.suspects]
    suspects.sort(key=lambda item: item[1].badness, reverse=True)
    verdicts = sorted((one.weights_only for one in found), key=lambda verdict: -_LOADS.index(verdict.loads))
    names = dict.fromkeys(name for one in found for name in one.weights_only.names)

    def placed(texts: str) -> tuple[str, ...]:
        return tuple(f"{PurePath(one.file).name}: {text}" for one in found for text in getattr(one, texts))

    is_distributed = any(PurePath(one.file).name == _METADATA for one in found)
    first = verdicts[0]
    return Safety(
        file=str(path),
        rank=worst(one.rank for one in found),
        suspects=tuple(_placed(suspect, file) for _, suspect, file in suspects),
        weights_only=_ALL_LOADED if is_distributed else WeightsOnly(first.loads, tuple(names), first.reason),
        foreign=tuple(dict.fromkeys(name for one in found for name in one.foreign)),
        pickles=placed("pickles"),
        unread=placed("unread"),
        errors=placed("errors"),
    )


def _placed(suspect: Suspect, file: str) -> Suspect:
    return replace(suspect, place=f"{file}, {suspect.place}")


def _not_read(path: Path, reason: str) -> Safety:
    return Safety(str(path), "unknown", (), WeightsOnly("no", (), reason), errors=(reason,))


def _scan_objects(path: Path) -> Safety:
    """Scan a file beside a `.metadata` of torch.distributed: that says where in the file there are objects.

    Tensors are there too; those torch loads with weights_only=True.
    """
    metadata = path.parent / _METADATA
    try:
        places = _objects(metadata, metadata.stat().st_mtime_ns)
    except _NOT_METADATA as error:
        if path.suffix != _DISTRIBUTED:  # it may be another file of that name
            return scan(path)
        return _not_read(path, f"'{_METADATA}' does not say where its values are ({type(error).__name__})")
    if path.suffix != _DISTRIBUTED and path.name not in (place.file for place in places):
        return scan(path)
    with path.open("rb") as file:
        nbytes = file.seek(0, 2)
        scanner = Scanner(nbytes)
        if path.suffix != _DISTRIBUTED:
            scanner.look_at_whole(file)
        for place in places:
            if place.file == path.name and place.is_object:
                length = min(place.nbytes, max(0, nbytes - place.offset))
                scanner.look(window(file, place.offset, length), f"object '{place.name}'")
    return scanner.result(str(path), _ALL_LOADED)


def _scan_metadata(path: Path) -> Safety:
    """Scan a `.metadata`; what it names is only looked for in its own folder."""
    found = scan(path)
    try:
        places = _objects(path, path.stat().st_mtime_ns)
    except _NOT_METADATA:
        return found
    elsewhere = [place.file for place in places if PurePath(place.file).name != place.file]
    if not elsewhere:
        return found
    error = f"it names values in '{plain(elsewhere[0])}', outside its folder"
    return replace(found, rank=worst((found.rank, UNKNOWN)), errors=(*found.errors, error))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is, and whether torch unpickles it in full."""

    name: str
    file: str
    offset: int
    nbytes: int
    is_object: bool


@lru_cache(1)
def _objects(metadata: Path, _: int) -> tuple[_Place, ...]:
    """Return where all values are that the metadata, of the given age, names."""
    with metadata.open("rb") as opened:
        content = Machine(opened, lambda name, args: None).read()
    kinds = {name: entry.name for name, entry in content.state["state_dict_metadata"].items()}
    found = []
    for index, info in content.state["storage_data"].items():
        name, where = index.state["fqn"], info.state
        offset, nbytes = checked_sizes((where["offset"], where["length"]))
        file = str(PurePath(where["relative_path"]))
        found.append(_Place(str(name), file, offset, nbytes, kinds.get(name) != _TENSOR))
    return tuple(found)
