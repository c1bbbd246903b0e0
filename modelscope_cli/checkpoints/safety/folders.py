"""Checkpoints of several files, and whole folders: each file is scanned. Standard library."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath

from modelscope_cli.checkpoints.pickle_machine import Machine
from modelscope_cli.checkpoints.safety.scan import Scanner, scan
from modelscope_cli.checkpoints.safety.window import window
from modelscope_cli.records.safety import Safety, Suspect, WeightsOnly, worst

_METADATA = ".metadata"
_INDEX = ".index.json"
_DISTRIBUTED = ".distcp"
_TENSOR = "torch.distributed.checkpoint.metadata.TensorStorageMetadata"
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
        if path.suffix == _DISTRIBUTED and (path.parent / _METADATA).is_file():
            return _scan_objects(path)
        return scan(path)
    except OSError as error:
        return _not_read(path, error.strerror or str(error))


def scan_checkpoint(path: Path) -> Safety:
    """Scan the files of one checkpoint: a file, an index with its shards, or a folder."""
    if path.is_dir():
        found = [scan_file(file) for file in sorted(path.iterdir()) if not file.is_dir()]
    else:
        found = [scan_file(file) for file in (path, *_shards(path))]
    return found[0] if len(found) == 1 else _together(path, found)


def _shards(index: Path) -> list[Path]:
    """Return the files beside an index that it names; what is wrong with it, its reader says."""
    if not index.name.endswith(_INDEX) or not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return sorted(index.parent / name for name in names if PurePath(name).name == name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        return []


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
    """Scan the objects in a file of torch.distributed: its `.metadata` says where they stand.

    Tensors stand there too; those torch loads with weights_only=True.
    """
    with path.open("rb") as file:
        nbytes = file.seek(0, 2)
        scanner = Scanner(nbytes)
        try:
            places = _objects(path.parent / _METADATA, path.name)
        except (ValueError, OSError, AttributeError, TypeError, KeyError) as error:
            return _not_read(
                path, f"'{_METADATA}' does not say where its values are ({type(error).__name__})"
            )
        for name, offset, length in places:
            scanner.look(window(file, offset, min(length, max(0, nbytes - offset))), f"object '{name}'")
    return scanner.result(str(path), _ALL_LOADED)


def _objects(metadata: Path, file: str) -> list[tuple[str, int, int]]:
    """Return name, offset and length of all in `file` that the metadata does not call a tensor."""
    with metadata.open("rb") as opened:
        content = Machine(opened, lambda name, args: None).read()
    kinds = {name: entry.name for name, entry in content.state["state_dict_metadata"].items()}
    found = []
    for index, info in content.state["storage_data"].items():
        name, where = index.state["fqn"], info.state
        if where["relative_path"] == file and kinds.get(name) != _TENSOR:
            found.append((str(name), int(where["offset"]), int(where["length"])))
    return found
