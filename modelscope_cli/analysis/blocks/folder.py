"""The folder of finished blocks, one file each, and `run.json`, which says what was computed."""

import dataclasses
import hashlib
import json
import shutil
import typing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import UnreadableImage
from modelscope_cli.output_files import is_unfinished, make_folder, write_bytes
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.reading import RUN

T = TypeVar("T")
BLOCKS = "blocks"
_CHECKSUM_BYTES = 32  # of sha256; `torch.load` does not look at the checksums of its own format


@dataclass(frozen=True, slots=True)
class Block(Generic[T]):
    """The result of one block of images."""

    n_images: int  # that went through the model
    broken: tuple[UnreadableImage, ...]  # the images that could not be decoded
    result: T | None  # None without images


class BlockFolder:
    """Writes and reads blocks. A block is complete or absent: a killed process leaves no part of one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, key: dict[str, Any]) -> None:
        """Remove the blocks of another run, and write what this one computes."""
        (self.path / RUN).unlink(missing_ok=True)
        shutil.rmtree(self.path / BLOCKS, ignore_errors=True)
        make_folder(self.path / BLOCKS)
        write_bytes(self.path / RUN, (json.dumps(key, indent=2) + "\n").encode())

    def key(self) -> dict[str, Any] | None:
        """Return what the run in this folder computes; None without a run."""
        try:
            key = json.loads((self.path / RUN).read_bytes())
        except (OSError, ValueError):
            return None
        return key if isinstance(key, dict) else None

    def remove_damaged(self) -> list[str]:
        """Remove blocks that cannot be read, and what killed processes left; return the names of the blocks."""
        damaged = []
        for file in sorted((self.path / BLOCKS).glob("*")):
            if is_unfinished(file):
                file.unlink(missing_ok=True)
                continue
            try:
                _content(file)
            except (OSError, ValueError):
                file.unlink()
                damaged.append(file.name)
        return damaged

    def has(self, phase: str, number: int) -> bool:
        return self._file(phase, number).exists()

    def write(self, phase: str, number: int, block: Block[Any]) -> None:
        stream = BytesIO()
        torch.save(block, stream)
        content = stream.getvalue()
        write_bytes(self._file(phase, number), hashlib.sha256(content).digest() + content)

    def read(self, phase: str, number: int, kind: type[T]) -> Block[T]:
        """Return a block with the result of type `kind`; only dataclasses in it are loaded, no other code."""
        path = self._file(phase, number)
        try:
            with torch.serialization.safe_globals([Block, UnreadableImage, *dataclasses_in(kind)]):
                return torch.load(BytesIO(_content(path)), map_location="cpu", weights_only=True)
        except Exception as error:  # of the file system, of the checksum, or of torch
            message = f"block '{path}' cannot be read: {in_one_line(error, 200)}"
            raise CannotRunError(message, "--resume   computes it again") from error

    def _file(self, phase: str, number: int) -> Path:
        return self.path / BLOCKS / f"{phase.replace(' ', '-')}-{number:06d}.block"


def _content(path: Path) -> bytes:
    """Return what follows the checksum of a file."""
    data = path.read_bytes()
    checksum, content = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if hashlib.sha256(content).digest() != checksum:
        raise ValueError("its checksum is wrong")
    return content


def dataclasses_in(kind: Any) -> tuple[type, ...]:
    """Return the dataclasses that a value of the annotated type consists of."""
    found: dict[type, None] = {}
    pending = [kind]
    while pending:
        one = pending.pop()
        pending += typing.get_args(one)
        if dataclasses.is_dataclass(one) and isinstance(one, type) and one not in found:
            found[one] = None
            pending += typing.get_type_hints(one).values()
    return tuple(found)
