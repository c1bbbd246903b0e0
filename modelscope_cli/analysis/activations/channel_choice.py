"""Which channels of an output are drawn: by number, evenly spread, or the strongest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.spec import Range, channels_of
from modelscope_cli.records.naming import some


@dataclass(frozen=True, slots=True)
class ChannelChoice:
    """How channels are chosen.

    Attributes:
        most: at most this many, evenly spread.
        is_strongest: those with the largest mean |activation| instead.
        ranges: these, whatever their number; first and last, both included. Empty for any.
    """

    most: int = 64
    is_strongest: bool = False
    ranges: tuple[Range, ...] = ()

    def of(self, maps: Tensor) -> tuple[int, ...]:
        """Return which of `(C, H, W)` maps or of a `(C,)` vector are shown, and in which order."""
        if maps.ndim == 1 and not self.ranges:
            return tuple(range(len(maps)))  # a vector is one picture whatever its length
        return self.among(len(maps), lambda: torch.nan_to_num(maps.float()).abs().flatten(1).mean(1))

    def among(self, n_channels: int, strength: Callable[[], Tensor]) -> tuple[int, ...]:
        """Return which of so many channels are shown, and in which order.

        Args:
            strength: gives of every channel how strong it is, `(n_channels,)`.
        """
        if self.ranges:
            numbers = (
                number for first, last in self.ranges for number in range(first, min(last + 1, n_channels))
            )
            return tuple(dict.fromkeys(numbers))
        if self.is_strongest:
            return tuple(strength().topk(min(self.most, n_channels)).indices.tolist())
        if n_channels <= self.most:
            return tuple(range(n_channels))
        return tuple(int(index) for index in torch.linspace(0, n_channels - 1, self.most).round())

    def missing(self, n_channels: int) -> str:
        """Say which of the channels that were asked for an output of so many does not have; empty for none."""
        beyond = [str(last) for _, last in self.ranges if last >= n_channels]
        return f"no channel {some(beyond)}" if beyond else ""


EVENLY = ChannelChoice()


def choose_channels(channels: str | Sequence[int], most: int, is_strongest: bool) -> ChannelChoice:
    """Return the choice that options or keywords ask for.

    Raises:
        UsageError: not channels, or said to be the strongest too (exit 2).
    """
    text = channels if isinstance(channels, str) else ",".join(map(str, channels))
    if not text:
        return ChannelChoice(most, is_strongest)
    if is_strongest:
        raise UsageError("--strongest chooses channels, --channels names them", "leave out --strongest")
    try:
        return ChannelChoice(ranges=channels_of(text))
    except ValueError as error:
        said, meant, part = error.args
        raise UsageError(f"--channels '{text}': '{part}' {said}", f"--channels {meant or '0'}") from None
