"""Find the shape of an image that a model takes, after it raised for another one."""

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, product
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import run_uncompiled, without_modes
from modelscope_cli.records.run import Shape

T = TypeVar("T")
USUAL_SIZES = (224, 32, 28, 64, 48, 96, 128, 256, 384, 512, 112, 160, 192, 227, 299)
_LENGTHS = (128, 256, 512, 1024, 100, 200, 500, 1000, 2000, 2048, 4096, 5000, 8000, 16000)  # of a signal
_STEPS = 16  # of a sequence
_MAX_SIZE, _MAX_LENGTH = 1024, 2**17
# Of an image, and forwards at a time to find the shapes of several arguments
_MOST_CHANNELS, _MOST_TRIALS = 4, 100


def on_twin(
    model: nn.Module, watch: Callable[[nn.Module], T], *, with_hooks: bool = True, on_meta: bool = True
) -> T:
    """Return what `watch` makes of a copy of the model, with or without the model's hooks: on the meta device, else
    with the values of the model, whose parameters it shares."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        values = torch.empty_like(parameter, device="meta") if on_meta else parameter.detach()
        memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta") if on_meta else buffer.clone()
    if not with_hooks:
        for module in model.modules():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                memo[id(hooks)] = OrderedDict()
    # Modes may count the operators of the model's own forward
    with run_uncompiled(), without_modes(), warnings.catch_warnings(action="ignore"):
        return watch(copy.deepcopy(model, memo))


def _tried(model: nn.Module, watch: Callable[[nn.Module], T], otherwise: T) -> T:
    """Return what `watch` makes of a copy of the model on the meta device; `otherwise` if it cannot be copied."""
    with suppress(Exception):  # copying may run any code of the model's attributes
        return on_twin(model, watch, with_hooks=False)
    return otherwise


def image_shape_taken(model: nn.Module, given: Tensor) -> Shape | None:
    """Return the first `(N, C, H, W)` with which a forward on the meta device succeeds, nearest to the given one.

    Tried are the given height and width with the channels of the first convolution, the size the model states, the
    size at which the linear layer that fails gets its number of features, and usual sizes. Without a convolution,
    images may also have one channel.

    Args:
        given: the input to begin with, of one to four dimensions.

    Returns:
        None if no shape was found, or the model also fails on the meta device for other reasons than the shape.
    """

    def first(twin: nn.Module) -> Shape | None:
        failure = _failure(twin, tuple(given.shape), given.dtype)
        if failure is None:
            return tuple(given.shape)
        if isinstance(failure, TypeError | NotImplementedError) or "meta" in str(failure).lower():
            return None
        return next(
            (shape for shape in _shapes(twin, given) if _failure(twin, shape, given.dtype) is None), None
        )

    return _tried(model, first, None)


def readings_taken(
    model: nn.Module, given: Tensor, readings: Mapping[str, Callable[[Tensor], Tensor]]
) -> dict[str, Tensor]:
    """Return the readings of an input with which a forward on the meta device succeeds, of equal ones the first;
    none if it succeeds with the input as it is."""

    def taken(twin: nn.Module) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if _failure(twin, tuple(given.shape), given.dtype) is None:
            return found
        for code, read in readings.items():
            with suppress(Exception):  # a reading needs some dimensions
                made = read(torch.empty_like(given, device="meta"))
                is_new = all(made.shape != other.shape for other in found.values())
                if is_new and _failure(twin, tuple(made.shape), made.dtype) is None:
                    found[code] = made
        return found

    return _tried(model, taken, {})


def input_taken(model: nn.Module, n: int, given: Shape = ()) -> Tensor | None:
    """Return an input of `n` signals, volumes, sequences or rows with which a forward on the meta device succeeds.

    It is made for the first layer, and its length for the linear layer that takes all of a map. Lengths of `given`,
    a shape that failed, are tried first. None for models that begin with a 2-d convolution, or if none was found.
    """

    def first(twin: nn.Module) -> Tensor | None:
        layer = next((one for one in twin.modules() if isinstance(one, BEGINNINGS)), None)
        # Two rows, as one may be taken for something else
        made = (one for one in _inputs_for(twin, layer, given) if _has_rows(twin, one))
        if isinstance(layer, nn.Conv2d) or (found := next(made, None)) is None:
            return None
        dim = found.shape.index(2) if 2 in found.shape[:2] else 0
        return found.narrow(dim, 0, 1).repeat_interleave(n, dim)

    return _tried(model, first, None)


_MAPS, _CODES = (nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.Embedding, nn.EmbeddingBag)
_WIDTHS = ("in_channels", "in_features", "input_size", "embed_dim")  # of what a layer takes
BEGINNINGS = (*_MAPS, *_CODES, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Linear)


def _inputs_for(twin: nn.Module, layer: Any, given: Shape) -> Iterator[Tensor]:
    """Yield inputs of two rows for a first layer, those of given lengths and the usual ones first."""
    dtype = next((one.dtype for one in twin.parameters() if one.is_floating_point()), torch.float32)
    shapes: list[Shape] = []
    width = next((getattr(layer, name) for name in _WIDTHS if hasattr(layer, name)), 0)
    lengths = sorted({*given} - {1, width}, reverse=True)
    if isinstance(layer, _CODES):
        yield from (torch.empty(2, n, dtype=torch.int64, device="meta") for n in (*lengths, _STEPS, 8, 64, 4))
    elif isinstance(layer, nn.Conv1d):
        lengths += _LENGTHS
        start, length = (2, width, lengths[0]), lengths[0]
        shapes = [start, *_fitting_features(twin, start, dtype), (2, length, width), (2, length)]
        shapes += [(2, width, other) for other in lengths[1:]]
    elif isinstance(layer, nn.Conv3d):
        sides = [given[-3:]] if len(given) > 3 else []
        shapes = [(2, width, *one) for one in (*sides, (_STEPS, 112, 112))]
        shapes += _fitting_features(twin, (2, width, 32, 32, 32), dtype)
    elif layer is not None:
        n_steps = next(iter(lengths), _STEPS)
        rows, steps = (2, n_steps, width), (n_steps, 2, width)
        shapes = [rows, steps] if getattr(layer, "batch_first", True) else [steps, rows]
        shapes = [(2, width), *shapes] if isinstance(layer, nn.Linear) else shapes
    yield from (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)


def _has_rows(twin: nn.Module, given: Tensor) -> bool:
    """Tell whether a forward succeeds and gives something of two rows."""
    with suppress(Exception), torch.no_grad():  # the forward may raise anything
        return any(2 in tensor.shape[:2] for _, tensor in tensors_in(twin(given)))
    return False


def shapes_taken(
    model: nn.Module, names: Sequence[str], image: Shape, texts: Sequence[str] = ()
) -> Mapping[str, Tensor]:
    """Return an outline of each named argument with which a forward on the meta device succeeds; empty if none did.

    Tried are `image`, also with the channels that convolutions take, one number, and rows of as many features as
    linear layers take, those first that are called like the argument, or as are left beside the outputs of another
    layer; then images of the usual sizes for all arguments. Those in `texts` get codes.
    """
    layers, floats = [*model.named_modules()], [name for name in names if name not in texts]
    convolutions = [one.in_channels for _, one in layers if isinstance(one, nn.Conv2d)]
    images = [image, *((1, c, *image[2:]) for c in convolutions if c <= _MOST_CHANNELS)]
    linear = [(path, (1, one.in_features)) for path, one in layers if isinstance(one, nn.Linear)]
    widths = {getattr(one, "out_features", getattr(one, "out_channels", 0)) for _, one in layers}
    # Beside the features of an image, where both are joined for a layer
    joined = [("", (1, n - width)) for _, (_, n) in linear for width in sorted(widths) if 0 < width < n]

    def combined(rows: Sequence[tuple[str, Shape]]) -> Iterator[tuple[Shape, ...]]:
        ordered = [[row for _, row in sorted(rows, key=lambda one: name not in one[0])] for name in floats]
        return islice(product(*(dict.fromkeys((*images, *shapes, (1,))) for shapes in ordered)), _MOST_TRIALS)

    alike = (((1, c, side, side),) * len(floats) for side, c in product(USUAL_SIZES, {*convolutions}))
    tried = chain(combined(linear), combined([*linear, *joined]), alike)
    codes = {name: torch.empty(1, _STEPS, dtype=torch.int64, device="meta") for name in texts}
    outlines = ([torch.empty(shape, device="meta") for shape in shapes] for shapes in tried)
    return first_taken(model, (dict(zip(floats, made, strict=True)) | codes for made in outlines), dict) or {}


def first_taken(model: nn.Module, candidates: Iterable[T], arrange: Callable[[T], Any]) -> T | None:
    """Return the first candidate whose arguments, made by `arrange`, a forward on the meta device takes."""

    def first(twin: nn.Module) -> T | None:
        for candidate in candidates:
            args = arrange(candidate)
            with suppress(Exception), torch.no_grad():  # the forward may raise anything
                twin(**args) if isinstance(args, dict) else twin(*args)
                return candidate
        return None

    return _tried(model, first, None)


def stated_size(parts: Iterable[Any]) -> tuple[int, int] | None:
    """Return height and width in the first attribute `image_size` or `img_size` of some parts of a model."""
    for size in (getattr(part, name, None) for part in parts for name in ("image_size", "img_size")):
        sides = (size, size) if isinstance(size, int) else size
        if isinstance(sides, Sequence) and len(sides) == 2 and all(type(side) is int for side in sides):
            return sides[0], sides[1]
    return None


def _shapes(twin: nn.Module, given: Tensor) -> Iterator[Shape]:
    shape = tuple(given.shape)
    n, rest = (shape[0], shape[1:]) if len(shape) == 4 else (1, shape)
    convolution = next((one for one in twin.modules() if isinstance(one, nn.Conv2d)), None)
    c = convolution.in_channels if convolution is not None else rest[0] if len(rest) == 3 else 3
    sides = rest
    if len(rest) == 3:
        sides = rest[:2] if rest[2] in (1, 3, c) and rest[0] not in (1, 3, c) else rest[1:]
        sides = rest[2:] if rest[:2] == (1, c) else sides  # one image, its channels and one side
    elif len(rest) == 2 and {1, c} & {*rest}:  # one side and the channels
        sides = rest[1:] if rest[0] in (1, c) else rest[:1]
    start = (n, c, sides[0], sides[-1])
    yield start
    if (stated := stated_size(twin.modules())) is not None:
        yield (n, c, *stated)
    for channels in [c] if convolution is not None else dict.fromkeys((c, 1)):
        yield from _fitting_features(twin, (n, channels, *start[2:]), given.dtype)
    yield from ((n, c, side, side) for side in USUAL_SIZES)


def _fitting_features(twin: nn.Module, start: Shape, dtype: torch.dtype) -> Iterator[Shape]:
    """Yield lengths, squares or cubes of usual sides, then of the smallest, at which the linear layer that refuses
    `start` gets its number of features, which grows with the side."""
    n_sides = len(start) - 2
    usual, most = (_LENGTHS, _MAX_LENGTH) if n_sides == 1 else (USUAL_SIZES, _MAX_SIZE)
    inputs: dict[nn.Linear, int] = {}

    def keep(layer: nn.Linear, args: tuple[Tensor, ...]) -> None:
        inputs[layer] = args[0].shape[-1]

    def features(side: int, layer: nn.Linear) -> int:
        inputs.clear()
        _failure(twin, (*start[:2], *[side] * n_sides), dtype)
        return inputs.get(layer, 0)  # 0: the image is too small for an earlier layer

    handles = [one.register_forward_pre_hook(keep) for one in twin.modules() if isinstance(one, nn.Linear)]
    _failure(twin, start, dtype)
    layer = next((one for one, n in inputs.items() if n != one.in_features), None)
    if layer is not None:
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            is_enough = features(middle, layer) >= layer.in_features
            low, high = (low, middle) if is_enough else (middle + 1, high)
        sides = [side for side in (*usual, low) if side >= low]
        fitting = [side for side in sides if features(side, layer) == layer.in_features]
        yield from ((*start[:2], *[side] * n_sides) for side in fitting)
    for handle in handles:
        handle.remove()


def _failure(twin: nn.Module, shape: Shape, dtype: torch.dtype) -> Exception | None:
    """Return what a forward raises, or an error if maps were cut into more rows than there are images, as by
    `view(-1, n)`; None if it succeeds."""
    try:
        with torch.no_grad():
            output = twin(torch.empty(shape, dtype=dtype, device="meta"))
    except Exception as error:  # the forward may raise anything for unsuitable inputs
        return error
    rows = {tensor.shape[0] for _, tensor in tensors_in(output) if tensor.ndim}
    is_cut = rows and shape[0] not in rows and _flattens_maps(twin)
    return ValueError("the rows of the output are not the images") if is_cut else None


def _flattens_maps(twin: nn.Module) -> bool:
    """Tell whether the first linear layer behind a convolution takes all of a map, not its channels alone."""
    channels = 0
    for layer in twin.modules():
        if isinstance(layer, nn.Linear) and channels:
            return layer.in_features > channels and layer.in_features % channels == 0
        channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
    return False
