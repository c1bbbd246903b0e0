"""The request for `prune`, checked before torch is imported."""

from collections.abc import Sequence
from dataclasses import dataclass

from modelscope_cli.errors import UsageError
from modelscope_cli.records.keywords import texts
from modelscope_cli.records.naming import absurdity
from modelscope_cli.records.refusals import check_word, refuse_both

_SWEEP = "--sweep 0.1,0.3,0.5,0.7,0.9"


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """What is cut, and how much of it."""

    amount: float = 0.3  # share that is cut, 0..1
    sweep: tuple[float, ...] = ()  # further shares at which the drift is measured
    method: str = "l1"  # `l1`, `l2` or `random`
    structured: bool = False  # whole output channels instead of single weights
    is_global: bool = False  # the share is of all weights together instead of each layer's own
    seed: int = 0  # the seed of `random`

    @property
    def amounts(self) -> tuple[float, ...]:
        """All shares, each once, in rising order."""
        return tuple(sorted({self.amount, *self.sweep}))


def make_request(
    *, amount: float, method: str, by_channel: bool, is_global: bool, sweep: str | Sequence[float], seed: int
) -> PruneRequest:
    check_word("method", method, ("l1", "l2", "random"))
    if by_channel and is_global:
        why = "channel norms of different layers are not comparable"
        refuse_both("by_channel", True, "global_", True, why)
    text = texts(sweep) or ""
    shares = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            shares.append(float(part))
        except ValueError:
            message = f"'{part}' in '--sweep {text}' is not a number"
            raise UsageError(message, _SWEEP) from None
        _check_amount(shares[-1], f"--sweep {text}", _SWEEP)
    request = PruneRequest(amount, tuple(shares), method, by_channel, is_global, seed)
    _check_amount(amount, f"--amount {amount:g}", "--amount 0.3")
    return request


def _check_amount(amount: float, text: str, hint: str) -> None:
    if absurdity(amount) or not 0 <= amount < 1:
        if 1 < amount < 100 and text.startswith("--amount"):  # percent
            hint = f"--amount {amount / 100:g}"
        raise UsageError(f"'{text}': a share is at least 0 and below 1, not '{amount:g}'", hint)
