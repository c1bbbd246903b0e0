"""What `featuremaps` returns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, column, figure, hidden, shape, words
from modelscope_cli.records.run import HookReport, Record, Shape


@dataclass(frozen=True, slots=True)
class FeatureMap(Row):
    """One grid of feature maps.

    Attributes:
        shape: of the layer's output for one image, channels first.
        channels: how many there are; `shown`: which of them, in the order of the cells.
        file: name inside `out_dir`; None where nothing was drawn. `problem`: why it cannot be.
        scale: `channel` or `layer`: over what the colours span.
        min, max: range of the finite values.
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
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChannelImage:
    """An image and its activation of one channel.

    Attributes:
        value: the largest of the channel anywhere in the image.
        place: its position in the layer's output: row and column, or the number of a token.
        box: left, top, right, bottom (the last two exclusive): the receptive field of that position, in pixels of
            the preprocessed image.
    """

    image: str
    value: float
    place: tuple[int, ...]
    box: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ChannelImages(Row):
    """The images that activate one channel most and least.

    Attributes:
        channel: which, from 0, of the output `output` of the call `call` of the layer `name`.
        best, best_image: the largest value in any image, and in which.
        active_images, nan_images: in how many images the channel is above 0, or NaN, somewhere; NaN ranks last.
        problem: why it is not drawn: it is never active, or the same for every image; empty otherwise.
        most, least: none of them where the channel is not drawn. `most` has only images in which it is active;
            `least` is empty where more images than it holds share the least value.
        file: the sheet it is on, inside `out_dir`.
    """

    name: str
    type: Annotated[str, words(is_shown=False, rank=5)]
    order: int
    call: int
    output: str
    channel: Annotated[int, hidden()]
    best: Annotated[float, figure(rank=0)]
    best_image: Annotated[str, words("best image")]
    active_images: Annotated[int, column("active images", rank=2, key="active")] = 0
    nan_images: int = 0
    problem: Annotated[str, words(is_shown=False)] = ""
    most: tuple[ChannelImage, ...] = ()
    least: tuple[ChannelImage, ...] = ()
    file: Annotated[str | None, words(rank=3)] = None

    @property
    def groups(self) -> tuple[tuple[str, tuple[ChannelImage, ...]], ...]:
        """The two groups with their titles."""
        weakest = "weakest" if self.least else "weakest: tied, not shown"
        return ("strongest", self.most), (weakest, self.least)


@dataclass(frozen=True, slots=True)
class FeatureMapsRecord(Record):
    """What `featuremaps` returns. It keeps the maps themselves for `save`, as long as it lives.

    Attributes:
        maps: one a layer.
        top_images: number of images in each group; 0 for maps of a single image.
        channels: with `top_images`, every channel of the layers. `images`: gone through.
        contact_sheet: its name inside `out_dir`; both are None where nothing was drawn.
        outputs: how many the layers gave; of a deep network `maps` has one per stage unless layers were selected.
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
    top_images: int = 0
    images: int = 1
    channels: tuple[ChannelImages, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the images inside `out_dir`."""
        drawn = (*(row.file for row in self.maps), *(row.file for row in self.channels), self.contact_sheet)
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
class OutputMaps:
    """The tensors of one output, on the CPU."""

    maps: Any  # `(C, H, W)` maps or a `(C,)` vector; None if it cannot be drawn
    frames: Any = None  # `(C, T, H, W)`: all frames of which the maps are sheets; None without


@dataclass(frozen=True, slots=True)
class KeptMaps:
    """What a record keeps to draw feature maps: those of each row of `FeatureMapsRecord.maps`."""

    outputs: tuple[OutputMaps, ...]
    look: MapLook


@dataclass(frozen=True, slots=True)
class KeptCrops:
    """What a record keeps to draw the images of channels.

    Attributes:
        read: reads the images again, and gives for each row of `FeatureMapsRecord.maps` every image shown for it
            with the receptive field of its place, a tensor `(3, H, W)` uint8.
    """

    read: Callable[[], Iterator[Iterator[tuple[ChannelImage, Any]]]]
