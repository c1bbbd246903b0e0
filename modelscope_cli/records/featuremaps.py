"""What `featuremaps` returns."""

from dataclasses import dataclass

from modelscope_cli.records.hooks import HookReport
from modelscope_cli.records.run import Record, Shape


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """One grid `featuremaps` wrote.

    Attributes:
        shape: of the layer's output for one image, channels first.
        channels: how many there are; `shown`: which of them, in the order of the cells.
        file: name inside `out_dir`; None where nothing was drawn. `problem`: why it cannot be.
        scale: `channel` or `layer`: over what the colours span.
        min, max: range of the finite values.
        kind: `output`, what the layer put out, or `attention`: of an attention inside it, a map a head.
        note: what was left out or put together to get maps, such as extra tokens or windows; empty where nothing
            was.
    """

    name: str
    type: str
    order: int
    call: int
    output: str
    shape: Shape
    channels: int = 0
    shown: tuple[int, ...] = ()
    file: str | None = None
    scale: str = "channel"
    min: float | None = None
    max: float | None = None
    problem: str | None = None
    kind: str = "output"
    note: str = ""


@dataclass(frozen=True, slots=True)
class FeatureMapsRecord(Record):
    """What `featuremaps` returns.

    Attributes:
        contact_sheet: its name inside `out_dir`; both are None where nothing was drawn.
        outputs: how many the layers gave; of a deep network `maps` has one a stage where nobody asked for layers.
        tensors: the file of the whole outputs; None without `--save-tensors`.
    """

    maps: tuple[FeatureMap, ...]
    contact_sheet: str | None
    out_dir: str | None
    tensors: str | None = None
    not_called: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    outputs: int = 0
