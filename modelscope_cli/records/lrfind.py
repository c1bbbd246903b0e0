"""What `lrfind` returns."""

from dataclasses import dataclass

from modelscope_cli.records.run import Record

RECOMMENDED = "valley"  # the least moved by noise of the three, and the default of fastai's `lr_find`


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Learning rates to try; None where the loss never fell.

    Neither the first tenth of the sweep nor its last five steps are considered.

    Attributes:
        steepest: where the smoothed loss falls fastest over the logarithm of the rate.
        valley: half the way along the longest valley.
        minimum: a tenth of the rate where the smoothed loss is least.
    """

    steepest: float | None
    valley: float | None
    minimum: float | None

    @property
    def recommended(self) -> float | None:
        """The one to begin with."""
        return self.valley


@dataclass(frozen=True, slots=True)
class Restored:
    """Whether each is again what it was before, by the hash of its bytes."""

    weights: bool
    buffers: bool
    optimizer: bool
    rng: bool


@dataclass(frozen=True, slots=True)
class LrfindRecord(Record):
    """What `lrfind` returns.

    Attributes:
        lr, loss, smoothed: of every step; a loss is None where it was not finite.
        stopped: why the sweep ended, in words.
        hashes: of the weights, buffers, optimizer and random state, before and after: 16 digits of SHA-256.
    """

    lr: tuple[float, ...]
    loss: tuple[float | None, ...]
    smoothed: tuple[float | None, ...]
    suggestion: Suggestion
    stopped: str
    restored: Restored
    hashes: dict[str, tuple[str, str]]
    optimizer: str
    sweep: str
    data: str
    out_dir: str | None = None
    files: tuple[str, ...] = ()
