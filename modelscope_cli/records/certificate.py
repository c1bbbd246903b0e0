"""What a result vouches for that was made of blocks: of which images, by which model, each of them once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides the last bits of a result.

    Attributes:
        device: `cpu`, `cuda`; `chip`: its name, or that of the processor.
        capability: of the processor's instructions, as torch uses them; of a GPU its compute capability.
        threads: of one process, which decide in which order a processor adds up; 0 on a GPU, where they do not.
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
    """What a result is made of. Hashes are sha256, in hexadecimal digits.

    Attributes:
        images: how many files there are, each of them in one block and no other.
        broken: how many of these could not be read.
        blocks: how many; `block_size`: files in each, but for the last.
        list_sha256: of the files: their names and sizes, in order.
        model_sha256: of the architecture, every parameter and every buffer.
        options_sha256: of `options`, everything else that was asked for and changes a number.
        results_sha256: of the partial results of all blocks, in order.
        machines: that computed the blocks; of one alone all bits are those of any number of processes.
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
