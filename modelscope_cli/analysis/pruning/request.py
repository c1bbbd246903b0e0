"""What was typed about pruning, before anything heavy is imported."""

from dataclasses import dataclass

from modelscope_cli.errors import UsageError

_SWEEP = "--sweep 0.1,0.3,0.5,0.7,0.9"


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """What is cut, and how much of it.

    Attributes:
        amount: share that is cut, 0..1. `sweep`: further shares at which the drift is measured.
        method: `l1`, `l2`, `random`, or `activation`, which ranks channels by what they put out.
        structured: whole output channels instead of single weights.
        is_global: the share is of all weights together instead of each layer's own.
        seed: of `random`.
    """

    amount: float = 0.3
    sweep: tuple[float, ...] = ()
    method: str = "l1"
    structured: bool = False
    is_global: bool = False
    seed: int = 0

    @property
    def amounts(self) -> tuple[float, ...]:
        """All shares, each once, in rising order."""
        return tuple(sorted({self.amount, *self.sweep}))


def check_request(request: PruneRequest, has_images: bool) -> None:
    """Refuse shares out of range and options that contradict each other.

    Raises:
        UsageError: exit code 2.
    """
    _check_amount(request.amount, f"--amount {request.amount:g}", "--amount 0.3")
    if request.is_global and request.structured:
        raise UsageError(
            "'--global' and '--channels' exclude each other: norms of channels of different layers do not compare",
            "leave out --global",
        )
    if request.method == "activation" and not request.structured:
        raise UsageError(
            "'--method activation' ranks channels, not single weights", "--method activation --channels"
        )
    if request.method == "activation" and not has_images:
        raise UsageError(
            "'--method activation' needs pictures to see what the channels do",
            "modelscope prune IMAGE... --method activation --channels",
        )


def read_sweep(text: str) -> tuple[float, ...]:
    """Read `0.1,0.3,0.5`.

    Raises:
        UsageError: not numbers, or out of range (exit 2).
    """
    shares = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            shares.append(float(part))
        except ValueError:
            message = f"'{part}' in '--sweep {text}' is no number"
            raise UsageError(message, _SWEEP) from None
        _check_amount(shares[-1], f"--sweep {text}", _SWEEP)
    return tuple(shares)


def _check_amount(amount: float, typed: str, hint: str) -> None:
    if not 0 <= amount < 1:
        raise UsageError(f"'{typed}': a share is from 0 to below 1, not {amount:g}", hint)
