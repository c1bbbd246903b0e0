"""From the files of a block to what the model receives of each, on the CPU; the same wherever it is done."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from modelscope_cli.inputs.broken import Broken, BrokenImageError
from modelscope_cli.inputs.collate import Group
from modelscope_cli.inputs.listing import PictureFile
from modelscope_cli.inputs.picture import decode
from modelscope_cli.inputs.preprocess import Preprocessing


@dataclass(frozen=True, slots=True)
class Decoded:
    """A block of images.

    Attributes:
        numbers: in the list of images, of those that could be decoded.
        tensors: what the model receives of each, `(C, H, W)` float32.
        broken: those that could not.
        seconds: that it took.
    """

    numbers: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    broken: tuple[Broken, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes blocks by number.

    Attributes:
        groups: the files of each block.
        size: images in a block but the last: image `n` of block `b` is number `b * size + n` of the list.
        is_strict: whether a broken image is an error.
    """

    groups: Sequence[Group]
    size: int
    plan: Preprocessing
    is_strict: bool

    def decode(self, block: int) -> Decoded:
        """Decode and prepare the images of a block; one that comes several times once.

        Raises:
            BrokenImageError: one cannot be decoded, and has to be (exit 4).
        """
        started = time.perf_counter()
        ready: dict[PictureFile, Tensor | BrokenImageError] = {}
        numbers: list[int] = []
        tensors: list[Tensor] = []
        broken: list[Broken] = []
        for number, file in enumerate(self.groups[block], block * self.size):
            if file not in ready:
                ready[file] = self._prepare(file)
            made = ready[file]
            if isinstance(made, BrokenImageError):
                broken.append(Broken(number, file.name, made.kind))
            else:
                numbers.append(number)
                tensors.append(made)
        seconds = time.perf_counter() - started
        return Decoded(tuple(numbers), tuple(tensors), tuple(broken), seconds)

    def files(self, block: int, decoded: Decoded) -> list[PictureFile]:
        """Return the files of a block that could be decoded."""
        group = self.groups[block]
        return [group[number - block * self.size] for number in decoded.numbers]

    def _prepare(self, file: PictureFile) -> Tensor | BrokenImageError:
        try:
            return self.plan.apply(decode(file, self.plan.mode), file.name)
        except BrokenImageError as error:
            if self.is_strict:
                raise
            return error
