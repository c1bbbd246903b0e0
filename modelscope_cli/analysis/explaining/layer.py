"""The layer to explain: the tensor before global pooling or before the selection of a token; and its map."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.dataflow import Dataflow
from modelscope_cli.analysis.explaining.scored import (
    ExplainedLayer,
    ImageLayout,
    Scored,
    UnfitError,
    ZeroGradientError,
)
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, Observer


@dataclass(frozen=True, slots=True)
class Map:
    """The evidence of one image by one method."""

    # `(rows, columns)` float32, at the resolution of the layer or the image; signed if the method is
    cells: Tensor
    why: str  # how it was computed, or why this layer was chosen, as a sentence
    layer: str | None = None  # the name of the layer; None for methods that explain the pixels
    completeness: float | None = None  # the relative error of that sum
    brief: Tensor | None = None  # the same in fewer passes, which comparisons make again; None if `cells` are

    def on(self, size: tuple[int, int]) -> Tensor:
        """Return the map at the size of the image, `(H, W)`, by bilinear interpolation."""
        if self.cells.shape == size:
            return self.cells
        return F.interpolate(self.cells[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]


def map_at_layer(scored: Scored, image: Tensor, combined: Callable[[Tensor, Tensor], Tensor]) -> Map:
    """Return a map in logits, on the grid of the layer of one image.

    Args:
        combined: returns the cells, `(rows, columns)`, from activation and gradient, `(C, rows, columns)`.
    """
    layer = scored.find(scored, image)
    values = scored.at(layer, image)
    gradient = layer.layout.maps(values.gradient)[0]
    made = combined(layer.layout.maps(values.activation)[0], gradient)
    has_gradient, cells = fetch([gradient.any(), made])
    if not has_gradient:
        raise no_gradient(layer.name, layer.layout.prefix > 0 and bool(values.gradient.any()))
    return Map(cells, layer.why, layer.name)


_MOST_PREFIX = 16  # class, distillation and register tokens before the patches
_MOST_STRETCH = 2.0  # aspect ratio of the cells of a grid over the image
# Functions whose input is preferred to their output: it has the better grid and name.
_PASSED = (
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "dropout",
    "dropout1d",
    "dropout2d",
    "feature_dropout",
)
_NO_LAYER = "--method integrated-gradients   needs no layer"


class ModuleNames(Observer):
    """Records which modules return the values of a traced pass."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, followed: Dataflow | None) -> None:
        """Reset, and record the values numbered by `followed`."""
        self.followed = followed  # None between traces
        self.returned_by: dict[int, list[Call]] = {}  # value -> the calls that return it, the innermost first
        self.norms: set[int] = set()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if self.followed is None or not call.name:
            return
        for _, tensor in tensors_in(output):
            number = self.followed.number_of(tensor)
            if number is None:
                continue
            calls = self.returned_by.setdefault(number, [])
            if not calls or call.depth < calls[-1].depth:  # not one that returns its input, as dropout does
                calls.append(call)
            if "norm" in call.type.lower():
                self.norms.add(number)


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """One traced pass over one image."""

    followed: Dataflow
    names: ModuleNames
    cuts: tuple[int, ...]  # the values on every path from the image to the score, in order
    size: tuple[int, int]  # height and width of the image

    def name(self, value: int) -> str:
        """Return the outermost layer that returns a value, or the function that computed it and its input."""
        if value in self.names.returned_by:
            return self.names.returned_by[value][-1].label
        place = self.followed.places.get(value)
        if place is None:
            return "the image"
        called = place.function.strip("_").removesuffix("_")
        source = self.followed.calls[place.call].reads[0]
        return f"{'slice' if called == 'getitem' else called}({self.name(source)})"

    def layout(self, value: int) -> ImageLayout | None:
        """Return the layout of a value; None if it has no positions of the image."""
        shape = self.followed.shapes[value]
        if len(shape) == 4:
            orders = ((0, 1, 2, 3), (0, 3, 1, 2))  # channels first, channels last
            order = min(orders, key=lambda o: self._stretch((shape[o[2]], shape[o[3]])))
            grid = (shape[order[2]], shape[order[3]])
            is_grid = math.prod(grid) > 1 and self._stretch(grid) < _MOST_STRETCH
            return ImageLayout(grid, order) if is_grid else None
        if len(shape) == 3 and 1 in shape[:2] and sum(side > 1 for side in shape) == 2:
            batch = 0 if shape[0] == 1 else 1
            tokens = ((batch, 2, 1 - batch), (batch, 1 - batch, 2))  # channels last, channels first
            return next(self._tokens(shape, tokens), None)
        return None

    def _stretch(self, grid: tuple[int, int]) -> float:
        """Return the aspect ratio of a cell, at least 1; infinity without cells."""
        ratio = grid[0] * self.size[1] / (grid[1] * self.size[0]) if grid[1] else 0.0
        return max(ratio, 1 / ratio) if ratio else math.inf

    def _tokens(self, shape: tuple[int, ...], orders: Sequence[tuple[int, ...]]) -> Iterator[ImageLayout]:
        """Yield possible layouts of tokens, best first: on a grid of this pass, else in the image's proportions,
        with the fewest other tokens before it."""
        shapes = self.followed.shapes.items()
        layouts = (self.layout(value) for value, other in shapes if len(other) == 4)
        grids = sorted({layout.grid for layout in layouts if layout is not None}, key=self._stretch)
        prefixes = range(_MOST_PREFIX + 1)
        for order, prefix in itertools.product(orders, prefixes):
            for grid in grids:
                if math.prod(grid) == shape[order[2]] - prefix:
                    yield ImageLayout(grid, order, prefix)
        for prefix, order in itertools.product(prefixes, orders):
            n_places = shape[order[2]] - prefix
            rows = round(math.sqrt(max(n_places, 0) * self.size[0] / self.size[1]))
            if n_places >= 4 and n_places % rows == 0 and self._stretch((rows, n_places // rows)) == 1:
                yield ImageLayout((rows, n_places // rows), order, prefix)


def follow(scored: Scored, names: ModuleNames, image: Tensor) -> RecordedPass:
    image = image.clone()  # the model may write to it
    with torch.no_grad(), Dataflow(image) as followed:
        names.begin(followed)
        score = scored.target.score(scored.run(image))
        end = followed.number_of(score)
    names.followed = None
    if end is None:
        why, hint = ("part of the model is compiled or not written in torch functions", _NO_LAYER)
        if followed.ended is not None:
            why = f"'{followed.ended}' passes no gradient back"
            hint = "--method occlusion   needs no gradient"
        raise UnfitError(f"the score cannot be traced back to the image: {why}", hint)
    return RecordedPass(followed, names, _cuts(followed, end), (image.shape[-2], image.shape[-1]))


def _cuts(followed: Dataflow, end: int) -> tuple[int, ...]:
    """Return the values after which no earlier value is read."""
    last_read: dict[int, int] = {end: len(followed.calls)}
    made_by: dict[int, list[int]] = {}
    for value, place in followed.places.items():
        made_by.setdefault(place.call, []).append(value)
    for call in range(len(followed.calls) - 1, -1, -1):
        if any(value in last_read for value in made_by.get(call, ())):
            for value in followed.calls[call].reads:
                last_read.setdefault(value, call)
    cuts: list[int] = []
    alive = {0}
    for call in range(len(followed.calls)):
        alive = {value for value in alive if last_read[value] > call}
        alive |= {value for value in made_by.get(call, ()) if value in last_read}
        if len(alive) == 1 and (not cuts or cuts[-1] not in alive):
            cuts += alive
    return tuple(cuts)


def find_layer(
    scored: Scored, names: ModuleNames, image: Tensor, wanted: tuple[str, ...] = ()
) -> ExplainedLayer:
    """Choose the tensor to explain for one image.

    It is the last tensor with positions on every path from the image to the score, before the weights of the head.
    If the score reads only a class token, the gradient of the patches there is zero; then it is the last norm with
    a gradient.

    Args:
        wanted: labels of layers to use instead, one of which has to return a tensor with positions.
    """
    recorded = follow(scored, names, image)
    if wanted:
        for value, calls in reversed(recorded.names.returned_by.items()):
            found = recorded.layout(value)
            label = next((call.label for call in calls if call.label in wanted), None)
            if found is not None and label is not None:
                return ExplainedLayer(label, recorded.followed.places[value], found, "asked for")
        message = f"layer '{wanted[0]}' has no spatial output that depends on the image"
        raise CannotRunError(message, "leave out --layer")
    blind_layers: list[str] = []
    for value, layout in _candidates(recorded):
        name, why = recorded.name(value), _why(recorded, value, layout, blind_layers)
        layer = ExplainedLayer(name, recorded.followed.places[value], layout, why)
        gradient = scored.at(layer, image).gradient if layout.prefix else None
        if gradient is None or layout.maps(gradient).any():
            return layer
        if not gradient.any():
            raise no_gradient(name)
        blind_layers.append(name)
    raise UnfitError("this model has no feature map that the whole score depends on", _NO_LAYER)


def _candidates(recorded: RecordedPass) -> Iterator[tuple[int, ImageLayout]]:
    """Yield candidates, best first and within each kind the latest first; the image is not a layer.

    First the tensors on every path before the head; then those after the head, for class maps per pixel; then the
    output of any layer before the head, for branches that meet in the scores.
    """
    calls = recorded.followed.calls
    head = max((n for n, call in enumerate(calls) if call.is_weighted), default=len(calls))
    through = set(recorded.cuts)
    for values, end in ((through, head), (through, len(calls)), (set(recorded.names.returned_by), head)):
        yield from _among(recorded, values, end)


def _among(recorded: RecordedPass, through: set[int], end: int) -> Iterator[tuple[int, ImageLayout]]:
    calls, places = recorded.followed.calls, recorded.followed.places
    # A norm parallel to a skip connection: its input is on every path, and the patches continue through it.
    beside = {value for value in recorded.names.norms if set(calls[places[value].call].reads) <= through}
    for value in sorted((through | beside) - {0}, reverse=True):
        place, layout = places[value], recorded.layout(value)
        if layout is None or place.output < 0 or place.call >= end or place.function in _PASSED:
            continue
        # Such as the keys and values of attention pooling.
        is_projection = place.function == "linear" and len(layout.order) == 3
        if (value in through or layout.prefix) and not is_projection:
            yield value, layout


def no_gradient(where: str, is_token_alone: bool = False) -> UnfitError:
    """Return the error for a layer whose gradient is zero everywhere."""
    if is_token_alone:
        message = f"the gradient of the score is exactly zero at every patch token of '{where}'"
        message += ": after it the score depends only on the class token"
        return UnfitError(message, "leave out --layer   or name a layer before the last attention")
    message = f"the gradient of the score is exactly zero everywhere at '{where}': nothing to explain there"
    return ZeroGradientError(
        message, "modelscope grads ...   shows where it ends, such as at weights of zero"
    )


def _why(recorded: RecordedPass, value: int, layout: ImageLayout, blind_layers: list[str]) -> str:
    if blind_layers:
        n_patches = math.prod(layout.grid)
        return (
            "the last norm with a gradient; after it the score does not depend on the patch tokens: at "
            f"'{blind_layers[0]}' the gradient is exactly zero at all {n_patches}"
        )
    if value not in recorded.cuts and value not in recorded.names.norms:
        return f"the last feature map ({layout}); part of the score bypasses it"
    reader = next((call for call in recorded.followed.calls if value in call.reads), None)
    use = f"before {reader.function}" if reader is not None else "the output of the model"
    return f"the last feature map ({layout}), {use}"
