"""The architecture of a checkpoint, as `weights` returns it and as a requested model keeps it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identified:
    """Which architecture a state dict belongs to: `resnet34` of torchvision, or `timm:vit_tiny_patch16_224`.

    Attributes:
        name: the one it belongs to; None where it is none, or one of several that cannot be told apart.
        score: share of the tensors of the checkpoint and of the architecture that fit; 1.0 is all.
        missing, unexpected: names of the nearest architecture that are not there, and the other way round.
        num_classes: of its head; None where there is none.
        candidates: all names whose state dicts have the same names and shapes; of timm the plainest first.
        nearest: the name that `score`, `missing` and `unexpected` are about.
        misshaped: names with another shape, and both shapes.
        prefix: the beginning of every name: `module.`.
    """

    name: str | None
    score: float
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    num_classes: int | None
    candidates: tuple[str, ...] = ()
    nearest: str | None = None
    misshaped: tuple[str, ...] = ()
    prefix: str = ""

    def differences(self) -> dict[str, tuple[str, ...]]:
        """Return the names that are missing, unexpected or of another shape, by kind, where there are any."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "misshaped": self.misshaped}
        return {kind: names for kind, names in kinds.items() if names}
