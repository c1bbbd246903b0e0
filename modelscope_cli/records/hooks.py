"""What every command says of the hooks it was given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HookReport:
    """One `--hook`: what it was attached to, how often it fired, what it changed.

    Attributes:
        spec: its text in full, as the parser prints it.
        layers: what it was attached to; calls such as `relu#1` where its pattern speaks of calls.
        fired: how often a call, or a gradient, went through it. `never_fired`: the layers where none did.
        numel: values that went through it. `changed_fraction`: share of them that came out different, None where
            none did go through.
        max_abs_difference: largest |after - before| over values finite before and after; None where nothing went
            through, or where the action only looks.
        left_alone: why some tensors were passed on as they were; None where none was.
        moved: what else changed because the user's function worked in place.
        file: what `save` wrote.
    """

    spec: str
    kind: str
    action: str
    layers: tuple[str, ...]
    fired: int
    never_fired: tuple[str, ...] = ()
    numel: int = 0
    changed_fraction: float | None = None
    max_abs_difference: float | None = None
    left_alone: str | None = None
    moved: tuple[str, ...] = ()
    file: str | None = None
