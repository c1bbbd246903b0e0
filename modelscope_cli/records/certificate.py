"""The certificate of a result made of blocks, and what `verify` returns."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from modelscope_cli.records.display import Row, column, words
from modelscope_cli.records.run import Record


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as far as it determines the last bits of a result.

    Attributes:
        device: `cpu`, `cuda`; `chip`: its name, or that of the processor.
        capability: instruction set of the processor that torch uses; compute capability of a GPU.
        threads: of one process, which determine the order of sums on a processor; 0 on a GPU, where they do not.
        torch: its version.
    """

    device: str
    chip: str
    capability: str
    threads: int
    torch: str

    @property
    def words(self) -> str:
        """The machine in one line."""
        threads = f", {self.threads} thread" + "s" * (self.threads != 1) if self.threads else ""
        return f"{self.chip} ({self.capability}){threads}, torch {self.torch}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The inputs of a result. Hashes are sha256, in hexadecimal digits.

    Attributes:
        images: number of files; each is in exactly one block.
        broken: how many of these could not be read.
        blocks: how many; `block_size`: files in each except the last.
        list_sha256: of the files: their names and sizes, in order.
        model_sha256: of the architecture, every parameter and every buffer.
        options_sha256: of `options`, all other options that change a number.
        results_sha256: of the partial results of all blocks, in order.
        machines: that computed the blocks; with only one, the bits do not depend on the number of processes.
        dtype: of the model.
    """

    images: int
    broken: int
    blocks: int
    block_size: int
    list_sha256: str
    model_sha256: str
    options_sha256: str
    results_sha256: str
    machines: tuple[Machine, ...]
    dtype: str

    @property
    def words(self) -> str:
        """The certificate in one line."""
        images = f"{self.images:,} images, each once" + (f" ({self.broken:,} broken)" if self.broken else "")
        hashes = (
            f"list {self.list_sha256[:8]}, model {self.model_sha256[:8]}, options {self.options_sha256[:8]}, "
            f"results {self.results_sha256[:8]}"
        )
        return f"{images}, in {self.blocks:,} blocks of {self.block_size}; {hashes}"


@dataclass(frozen=True, slots=True)
class VerifiedBlock(Row):
    """One block that was computed again.

    Attributes:
        phase: what was computed; some commands go through all images twice.
        images: how many.
        is_same_machine: whether it was computed on a machine of this kind, and all bits have to be the same.
        is_equal: whether all bits are.
        gap: the largest difference of two numbers, relative to the largest number of their array; None if the
            shapes differ.
        passed: equal bits on the same kind of machine; elsewhere a gap within the tolerance.
    """

    phase: Annotated[str, words(rank=0)]
    block: Annotated[int, column(rank=0)]
    images: Annotated[int, column(rank=2)]
    is_same_machine: bool
    is_equal: Annotated[bool, words("bits", rank=0, key="equal")]
    gap: Annotated[float | None, column()]
    passed: Annotated[bool, words(rank=0)]


@dataclass(frozen=True, slots=True)
class VerifyRecord(Record):
    """What `verify` returns.

    Attributes:
        result: the folder that was verified.
        blocks: those that were computed again.
        tolerance: of the gap of a block that another kind of machine computed.
        machine: that computed them again.
        certificate: of all blocks in the folder.
        differences: in words, what has changed since the result was made: the list of files, the model, the blocks,
            the report.
        passed: no difference, and every block passed.
    """

    document: ClassVar[str] = "verify"
    result: str
    of: str
    blocks: tuple[VerifiedBlock, ...]
    tolerance: float
    machine: Machine
    certificate: Certificate
    differences: tuple[str, ...]
    passed: bool
