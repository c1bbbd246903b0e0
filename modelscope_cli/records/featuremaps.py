"""What `featuremaps` returns."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, figure, hidden, shape, words
from modelscope_cli.records.run import HookReport, Record, Shape


@dataclass(frozen=True, slots=True)
class FeatureMap(Row):
    """One grid of feature maps.

    Attributes:
        shape: of the layer's output for one image, channels first.
        channels: how many there are; `shown`: which of them, in the order of the cells.
        file: name inside `out_dir`; None where nothing was drawn. `problem`: why it cannot be.
        scale: `channel` or `layer`: over what the colours span.
        min, max: range of the finite values. `non_finite`: how many are NaN or infinite.
        kind: `output` of the layer, `attention`: a map for each head of an attention inside it, or `filters`: the
            weights of a convolution, whose shape it has.
        note: what was left out or assembled to get maps, such as extra tokens, and how many are constant.
    """

    name: str
    type: Annotated[str, words(rank=0)]
    order: int
    call: int
    output: str
    shape: Annotated[Shape, shape()]
    channels: Annotated[int, hidden(rank=4)] = 0
    shown: tuple[int, ...] = ()
    file: Annotated[str | None, words(rank=4)] = None
    scale: str = "channel"
    min: Annotated[float | None, figure(rank=3)] = None
    max: Annotated[float | None, figure(rank=3)] = None
    problem: str | None = None
    kind: str = "output"
    note: Annotated[str, words(rank=2)] = ""
    non_finite: Annotated[int, hidden()] = 0


@dataclass(frozen=True, slots=True)
class FeatureMapsRecord(Record):
    """What `featuremaps` returns. It keeps the maps themselves for `save`, as long as it lives.

    Attributes:
        maps: one per layer.
        contact_sheet: its name inside `out_dir`; both are None where nothing was drawn.
        outputs: number of outputs of layers; for a deep network, `maps` has one per stage unless layers were
            selected.
        tensors: the file of the whole outputs; None where they were not saved.
    """

    document: ClassVar[str] = "featuremaps"
    maps: tuple[FeatureMap, ...]
    contact_sheet: str | None
    out_dir: str | None
    tensors: str | None = None
    not_called: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    outputs: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the images inside `out_dir`."""
        drawn = (*(row.file for row in self.maps), self.contact_sheet)
        return tuple(dict.fromkeys(filter(None, drawn)))


@dataclass(frozen=True, slots=True)
class MapLook:
    """The style of feature maps."""

    scale: str  # `channel` or `layer`: the range of the colours
    input_image: Any = None  # a tensor, `(3, H, W)` uint8; None if the input was not an image
    is_overlay: bool = False  # draw the maps over the image instead of next to it
    is_signed: bool = False  # there are values of both signs: 0 is in the middle of the colours

    def of(self, row: FeatureMap) -> "MapLook":
        """Return the style of one output."""
        return replace(self, is_signed=(row.min or 0) < 0 < (row.max or 0))

    @property
    def cmap(self) -> str:
        """The matplotlib colour map."""
        return "RdBu_r" if self.is_signed else "viridis"

    @property
    def under(self) -> Any:
        """The image under overlays, else None."""
        return self.input_image if self.is_overlay else None


@dataclass(frozen=True, slots=True)
class KeptMaps:
    """What a record keeps to draw feature maps: those of each row of `FeatureMapsRecord.maps`."""

    maps: tuple[Any, ...]  # on the CPU: `(C, H, W)` maps or a `(C,)` vector; None if it cannot be drawn
    look: MapLook
