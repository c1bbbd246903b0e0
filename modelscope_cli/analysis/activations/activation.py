"""What has been gathered about one output of a layer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor

from modelscope_cli.analysis.statistics.correlation import Comoments
from modelscope_cli.analysis.statistics.moments import Moments
from modelscope_cli.hooks.session import Call

Key = tuple[str, int, str]  # layer name, call, path of the output


@dataclass(slots=True)
class Activation:
    """What has been gathered about one output of one call.

    Attributes:
        channels: None where there are none, or not as many in every batch.
        comoments: sums for the correlation between channels; None where it was not asked for.
        source: whose channels the layer passes on, the same in every batch; None where they are its own.
        quantiles: by name, once all batches are known; None where none was asked for.
        pending: moments of the current pass, still on the device.
    """

    call: Call
    output: str
    shape: tuple[int, ...]
    dtype: str
    channels: int | None
    moments: Moments | None = None
    source: Key | None = None
    problem: str | None = None
    quantiles: dict[str, float] | None = field(default=None, repr=False)
    comoments: Comoments | None = field(default=None, repr=False)
    pending: list[Callable[[], Moments]] = field(default_factory=list, repr=False)

    @property
    def key(self) -> Key:
        return self.call.name, self.call.index, self.output

    def correlation(self) -> Tensor | None:
        """Return the `(C, C)` correlation of the channels, None where it was not gathered."""
        return self.comoments.correlation() if self.comoments else None

    def settle(self) -> None:
        """Merge what the pass brought; on an accelerator this is where the numbers come over."""
        for finish in self.pending:
            moments = finish()
            self.moments = self.moments.merge(moments) if self.moments else moments
        self.pending.clear()
        if self.comoments:
            self.comoments.settle()

    def merge(self, later: "Activation") -> None:
        """Take in what a later batch brought; from the first problem on, nothing more."""
        if later.channels != self.channels:
            self.channels = self.comoments = None
        if later.source != self.source:
            self.source = None
        self.problem = self.problem or later.problem
        if self.problem or later.moments is None:
            return
        self.moments = self.moments.merge(later.moments) if self.moments else later.moments
        if self.comoments and later.comoments:
            self.comoments.merge(later.comoments)


def merge_into(merged: dict[Key, Activation], later: Iterable[Activation]) -> None:
    """Take in what a later batch brought of every output; those not seen before come last."""
    for activation in later:
        if activation.key in merged:
            merged[activation.key].merge(activation)
        else:
            merged[activation.key] = activation
