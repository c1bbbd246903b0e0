"""The folder in which finished blocks lie, a file each, and `run.json`, which says what they are blocks of."""

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelscope_cli.analysis.blocks.exact import from_plain, to_text
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import UnreadableImage
from modelscope_cli.records.certificate import Machine
from modelscope_cli.report.folder import is_unfinished, make_folder, write_bytes, write_with

RUN, BLOCKS, SUMS = "run.json", "blocks", "SHA256SUMS"
TIMING = "seconds"  # the one figure of a result that is not the same twice
_TIMES = re.compile(rb'"seconds":[^,}]*')


@dataclass(frozen=True, slots=True)
class Block:
    """What is known of one block.

    Attributes:
        images: the files that went through the model, in order; `broken`: those that cannot be read.
        machine: that computed it.
        result: what the analysis made of it, as plain values; None of a block without images.
    """

    number: int
    images: tuple[str, ...]
    broken: tuple[UnreadableImage, ...]
    machine: Machine
    result: Any = field(default=None, repr=False)

    @property
    def n_images(self) -> int:
        return len(self.images)

    @property
    def names(self) -> list[str]:
        """All files it is made of."""
        return sorted([*self.images, *(one.name for one in self.broken)])


class BlockFolder:
    """Writes and reads blocks. A block is there whole or not at all, whatever kills its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, document: dict[str, Any]) -> None:
        """Say what the blocks are blocks of; the first thing in the folder.

        Raises:
            CannotRunError: it cannot be written (exit 4).
        """
        make_folder(self.path / BLOCKS)
        write_bytes(self.path / RUN, (json.dumps(document, indent=2) + "\n").encode())

    def clear(self) -> None:
        """Take away what another run has begun here."""
        (self.path / RUN).unlink(missing_ok=True)
        shutil.rmtree(self.path / BLOCKS, ignore_errors=True)

    def tidy(self) -> None:
        """Take away what a process was writing when it was killed."""
        for file in (self.path / BLOCKS).glob("*"):
            if is_unfinished(file):
                file.unlink(missing_ok=True)

    def document(self) -> dict[str, Any] | None:
        """Return what the blocks are blocks of; None where none were begun."""
        try:
            found = json.loads((self.path / RUN).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def has(self, phase: str, number: int) -> bool:
        return self._file(phase, number).exists()

    def last_change(self) -> int:
        """Return when the last block was finished, in nanoseconds of the file system's clock."""
        return (self.path / BLOCKS).stat().st_mtime_ns

    def write(self, phase: str, block: Block, result: str) -> None:
        """Write a finished block; `result` is the text of what it holds.

        Raises:
            CannotRunError: it cannot be written (exit 4).
        """
        data = f'{{"block":{to_text(block)},\n"result":{result}}}\n'.encode()

        def write_through(beside: Path) -> None:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        write_with(self._file(phase, block.number), write_through)

    def read(self, phase: str, number: int) -> tuple[Block, bytes]:
        """Return a block and the hash of its file, without what took how long.

        Raises:
            CannotRunError: it is not there, or damaged (exit 4).
        """
        path = self._file(phase, number)
        try:
            data = path.read_bytes()
            found = json.loads(data)
            block = replace(from_plain(Block, found["block"]), result=found["result"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"block '{path}' cannot be read: {error}"
            raise CannotRunError(
                message, f"rm {shlex.quote(str(path))}   and --resume computes it again"
            ) from error
        return block, hashlib.sha256(_TIMES.sub(b"", data)).digest()

    def _file(self, phase: str, number: int) -> Path:
        return self.path / BLOCKS / f"{phase.replace(' ', '-')}-{number:06d}.json"


def write_sums(folder: Path) -> None:
    """Write the hashes of all files in a folder beside them, as `sha256sum` does.

    Raises:
        CannotRunError: they cannot be written (exit 4).
    """
    lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()) if file.is_file()]
    write_bytes(folder / SUMS, "".join(lines).encode())


def changed_files(folder: Path, expected: Iterable[str]) -> list[str]:
    """Say which files of a report are missing, or not as they were written.

    Args:
        expected: files that have to be there, and have a hash.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return [f"'{folder / SUMS}' is missing, so changes of the report cannot be seen"]
    written = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = []
    for name in sorted({*written, *expected}):
        path = folder / name
        if not path.is_file():
            found.append(f"'{path}' is missing")
        elif _sha256(path) != written.get(name):
            found.append(f"'{path}' was changed after it was written")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
