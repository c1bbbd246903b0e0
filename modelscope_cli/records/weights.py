"""What `weights` returns."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.run import Notice, Shape, first_keys, to_plain
from modelscope_cli.records.safety import Safety
from modelscope_cli.records.shown import Shown


@dataclass(slots=True, unsafe_hash=True)  # not frozen: to make a million takes four times as long then
class TensorRow:
    """One named tensor of a checkpoint; the statistics are of its finite values, None where not asked for.

    Attributes:
        dtype: torch's name: `float32`.
        file: where its values are.
        shared_with: the first name of the same tensor, where it has several.
        problem: why there are no statistics, where they were asked for.
    """

    name: str
    shape: Shape
    dtype: str
    numel: int
    bytes: int
    file: str
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    abs_max: float | None = None
    zero_fraction: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    shared_with: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DtypeTotal:
    """How much there is of one dtype."""

    tensors: int
    numel: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WeightTotals:
    """Sums over the tensors shown; one with several names counts once.

    Attributes:
        storage_bytes: of everything these tensors look at, which may be more than they show of it.
        file_bytes: of all the files of the checkpoint.
    """

    tensors: int
    numel: int
    bytes: int
    storage_bytes: int
    file_bytes: int
    by_dtype: dict[str, DtypeTotal]


@dataclass(frozen=True, slots=True)
class Identified:
    """Which architecture a state dict belongs to: `resnet34` of torchvision, or `timm:vit_tiny_patch16_224`.

    Attributes:
        name: the one it belongs to; None where it is none, or one of several that cannot be told apart.
        score: share of the tensors that fit, of those of the checkpoint and of the architecture; 1.0 is all.
        missing, unexpected: names of the nearest architecture that are not there, and the other way round.
        num_classes: of its head; None where there is none.
        candidates: all the names whose state dicts look just so; of timm's the plainest first.
        nearest: the name that `score`, `missing` and `unexpected` are about.
        misshaped: names with another shape, and both shapes.
        prefix: what stands before every name: `module.`.
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


@dataclass(frozen=True, slots=True)
class WeightsRecord(Shown):
    """What `weights` returns: no model was run, so it has a header of its own.

    Attributes:
        source: the path that was given.
        format: of the file, in words.
        metadata: what safetensors files and shard indexes carry.
        beside: what else the file holds, by name and in words.
        foreign: functions and classes that loading the file in full would import or run, the dangerous first.
        note: where the state dict stood.
        safety: the same with the rank of each, and whether torch loads the file with weights_only=True.
        error: why nothing else is told of the file; None where it was read.
    """

    versions: Mapping[str, str]
    argv: tuple[str, ...]
    source: str
    format: str
    tensors: tuple[TensorRow, ...]
    totals: WeightTotals
    metadata: dict[str, str]
    beside: dict[str, str]
    foreign: tuple[str, ...]
    note: str | None
    architecture: Identified
    has_stats: bool = False
    warnings: tuple[Notice, ...] = ()
    elapsed_ms: float = 0.0
    safety: Safety | None = None
    error: str | None = None

    @property
    def command(self) -> str:
        return "weights"

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        own = {
            field.name: to_plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in ("versions", "argv")
        }
        return {**first_keys(self.command, self.versions, self.argv), **own}
