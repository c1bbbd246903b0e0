"""The architecture of a checkpoint, as `weights` returns it and as a requested model keeps it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Shape


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

    @property
    def is_headless(self) -> bool:
        """Whether nothing but the head of the nearest is missing, if anything."""
        return self.num_classes is None and self.score > 0.9 and not self.misshaped

    def head_in(self, shapes: Mapping[str, Shape]) -> str:
        """Return which matrices replace the head, `6 classes: head.weight 6x512 ...`; empty without any."""
        instead = [name for name in shapes if len(shapes[name]) == 2 and name.endswith(self.unexpected)]
        if not (self.is_headless and self.missing and instead):
            return ""
        named = some(f"{name} {'x'.join(map(str, shapes[name]))}" for name in instead)
        classes = f"{shapes[instead[0]][0]} classes: " * (len(instead) == 1)
        return f"{classes}{named} in the place of {self.missing[0].rpartition('.')[0]}"

    def words(self) -> str:
        """Return the nearest, its prefix and what is missing, unexpected or of another shape, where anything is."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "misshaped": self.misshaped}
        prefix = [f"with the prefix '{self.prefix}'"] * bool(self.prefix)
        named = (f"{kind} {some(names)}" for kind, names in kinds.items() if names)
        return ", ".join([str(self.nearest), *prefix, *named])

    def loads(self, file: str, note: str | None) -> str:
        """Return the nearest as it is typed, `resnet18 --checkpoint FILE --key backbone`; `note`: of the record."""
        key = ".".join((*re.findall("using '([^']*)'", note or ""), self.prefix[:-1]))
        is_partial = (
            self.missing or self.misshaped or any(name.startswith(self.prefix) for name in self.unexpected)
        )
        options = ["--key", key] * bool(self.prefix) + ["--no-strict"] * bool(is_partial)
        return shlex.join([str(self.nearest), "--checkpoint", file, *options])
