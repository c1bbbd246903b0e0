"""Open inputs: typed words, or Python's paths, images, tensors and loaders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, count_images, names_of, shapes_of
from modelscope_cli.inputs.files import ListedImage, find_images
from modelscope_cli.inputs.forward_signature import arrange_named
from modelscope_cli.inputs.from_files import is_shape, open_images, open_named, refuse_other_inputs
from modelscope_cli.inputs.grammar import parse_named
from modelscope_cli.inputs.noise import IMAGES, natural_named, open_noise
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.tensor_files import (
    TENSOR_SUFFIXES,
    as_batch,
    is_array,
    open_batch,
    open_tensors,
    read_tensors,
    suffix_of,
)
from modelscope_cli.records.keywords import Keywords, texts
from modelscope_cli.records.naming import some, with_article
from modelscope_cli.records.refusals import check_range, refuse_both
from modelscope_cli.records.run import Arguments, InputInfo

__all__ = ["Batch", "Inputs", "open_inputs"]


def _open_beside_text(
    images: Sequence[Any],
    request: InputRequest,
    target: ModelSide,
    transforms: Any | None,
    module: nn.Module | None,
) -> Inputs:
    """Open images or their files for a model that wants text, too, which is noise."""
    n_images = len(find_images(request.files).files) if request.files else len(images)
    given = {**(natural_named(module, n_images) or {}), IMAGES: list(images)}
    return open_named(given, replace(request, files=()), target, transforms, module)


@dataclass(frozen=True, slots=True)
class PythonInputs:
    """The inputs of a model."""

    request: InputRequest  # paths, noise shapes and preprocessing options
    images: tuple[Image.Image, ...] = ()  # decoded images
    tensors: tuple[Tensor, ...] = ()  # the arguments of one forward
    loader: Iterable[Any] | None = None  # iterable of batches, which can be iterated several times
    named: Mapping[str, Any] | None = None  # keyword arguments of the forward, as for `open_named`

    @property
    def is_noise(self) -> bool:
        if self.named is not None:
            return all(is_shape(name, value) for name, value in self.named.items())
        return not self.request.files and not self.images and not self.tensors and self.loader is None

    @property
    def is_of_tensors(self) -> bool:
        is_tensor_file = any(suffix_of(file) in TENSOR_SUFFIXES for file in self.request.files)
        return bool(self.tensors) or self.loader is not None or is_tensor_file

    @property
    def name(self) -> str:
        if self.request.files:
            return f"'{self.request.files[0]}'"
        if self.images:
            return "the list of images"
        if self.named is not None:
            return f"'{some(self.named)}'"
        return "the tensor" if self.tensors else "noise" if self.loader is None else "the loader"


def to_inputs(inputs: Any, keywords: Keywords) -> PythonInputs:
    """Sort inputs by kind.

    Args:
        inputs: a path, a glob, `-`, a PIL image, a tensor or array (the argument of one forward), a list of any of
            these, a tuple of tensors (several arguments), a dict of keyword arguments (see `open_named`), or a
            loader such as a `DataLoader`; None for noise.
    """
    if isinstance(inputs, InputRequest):
        return PythonInputs(inputs, named=parse_named(inputs.named) if inputs.named else None)
    if isinstance(inputs, PythonInputs):
        return inputs
    request = _request(keywords)
    if inputs is None:
        return PythonInputs(request)
    if isinstance(inputs, Mapping):
        return PythonInputs(request, named=_checked_names(inputs))
    if isinstance(inputs, tuple) and inputs and all(isinstance(item, Tensor) for item in inputs):
        return PythonInputs(request, tensors=inputs)
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if several and all(isinstance(item, str | PathLike) for item in several):
        files = tuple(fspath(item) for item in several)
        return PythonInputs(_request(keywords, files))
    if several and all(isinstance(item, Image.Image) for item in several):
        return PythonInputs(request, images=tuple(several))
    if several and all(is_array(item) for item in several):
        tensors = tuple(torch.as_tensor(item) for item in several)
        are_images = len(tensors) > 1 and all(t.ndim == 3 and t.shape == tensors[0].shape for t in tensors)
        return PythonInputs(request, tensors=(torch.stack(tensors),) if are_images else tensors)
    if hasattr(inputs, "__iter__") and hasattr(inputs, "__len__") and not isinstance(inputs, list | tuple):
        return PythonInputs(request, loader=inputs)
    kind = type(inputs).__name__
    message = f"inputs of type {kind} are neither paths, images, tensors nor a loader of batches"
    if isinstance(inputs, Iterator):
        message = f"{with_article(type(inputs).__name__)} can be iterated only once"
    is_shape = isinstance(inputs, tuple) and all(isinstance(one, int) for one in inputs)
    raise UsageError(
        message,
        f"input_shape={inputs}" if is_shape else "pass a list of paths or images, a tensor, or a DataLoader",
    )


def _checked_names(inputs: Mapping[Any, Any]) -> dict[str, Any]:
    strange = next((name for name in inputs if not isinstance(name, str)), None)
    if not inputs or strange is not None:
        problem = "an empty dict" if not inputs else f"a dict with {strange!r} as a name"
        raise UsageError(f"{problem} is not an input", "give {'name of the argument': tensor}")
    return dict(inputs)


def _request(keywords: Keywords, files: tuple[str, ...] = ()) -> InputRequest:
    shape = keywords.get("input_shape") or ()
    if isinstance(shape, str):
        shapes = [shape]
    elif all(isinstance(side, int) for side in shape):
        shapes = [",".join(map(str, shape))] if shape else []
    else:
        shapes = [texts(item) or "" for item in shape]
    check_range("batch", keywords.get("batch"), least=1)
    check_range("workers", keywords.get("workers"), least=0)
    return InputRequest(
        files=files,
        shapes=tuple(shapes),
        size=texts(keywords.get("size")),
        mean=texts(keywords.get("mean")),
        std=texts(keywords.get("std")),
        batch=keywords.get("batch"),
        workers=keywords.get("workers"),
        seed=keywords.get("seed", 0),
    )


def open_inputs(
    given: PythonInputs | InputRequest,
    *,
    family: str,
    transforms: Any | None,
    module: nn.Module | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    """Open inputs as batches that a model of the given family accepts."""
    given = PythonInputs(given) if isinstance(given, InputRequest) else given
    target, request = ModelSide(family, device, dtype), given.request
    if given.named is not None:
        refuse_other_inputs(request, list(given.named), module)
        return open_named(given.named, request, target, transforms, module)
    is_beside_text = bool(given.images or request.files) and natural_named(module, 1) is not None
    if given.images and is_beside_text:
        return _open_beside_text(given.images, request, target, transforms, module)
    if given.images:
        images = [ListedImage(f"image {n}", image=image) for n, image in enumerate(given.images, 1)]
        return open_images(request, target, transforms, module, images)
    if given.tensors:
        tensors = as_batch(list(given.tensors), target, module)
        return open_batch(tensors, request.batch, target, "the tensor", given=given.tensors)
    if given.loader is not None:
        return _open_loader(given.loader, target, module, request.seed)
    if request.files and request.shapes:
        raise UsageError(
            f"'{request.files[0]}' and '--input-shape {request.shapes[0]}' both give an input",
            f"leave out --input-shape {request.shapes[0]}",
        )
    if any(suffix_of(file) in TENSOR_SUFFIXES for file in request.files):
        stored = read_tensors(request.files[0]) if len(request.files) == 1 else []
        if isinstance(stored, dict):
            return open_named(stored, replace(request, files=()), target, transforms, module)
        return open_tensors(stored, request, target, module)
    if is_beside_text:
        return _open_beside_text(request.files, request, target, transforms, module)
    if request.files:
        return open_images(request, target, transforms, module)
    if request.shapes and request.size is not None:
        refuse_both("input_shape", request.shapes[0], "size", request.size)
    named = None if request.shapes else natural_named(module, request.batch or 1)
    if named is not None:
        return open_named(named, request, target, transforms, module)
    return open_noise(request, target, transforms, module)


def _open_loader(loader: Iterable[Any], target: ModelSide, module: nn.Module | None, seed: int) -> Inputs:
    """Iterate a loader under a fixed seed, so that every pass yields the same."""

    def arguments() -> Iterator[Arguments]:
        for item in _repeatable(loader, seed):
            is_named = isinstance(item, Mapping)
            yield arrange_named(module, item) if is_named else target.arrange(_without_labels(item))

    counts = [count_images(args) for args in arguments()]
    if not counts:
        raise UsageError("the loader yields no batch", "pass a loader with at least one batch")

    def batches() -> Iterator[Batch]:
        for args in arguments():
            yield Batch(target.place(args), count_images(args))

    first = next(arguments())
    return Inputs(
        InputInfo("tensor", shapes_of(first), names=names_of(first)), sum(counts), len(counts), batches
    )


def _repeatable(loader: Iterable[Any], seed: int) -> Iterator[Any]:
    """Iterate with the global random state seeded, restoring it after every step."""
    state = torch.Generator().manual_seed(seed).get_state()
    items: Iterator[Any] | None = None
    while True:
        before = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            items = items if items is not None else iter(loader)
            item = next(items)
        except StopIteration:
            return
        finally:
            state = torch.get_rng_state()
            torch.set_rng_state(before)
        yield item


def _without_labels(item: Any) -> Sequence[Tensor]:
    """Return the tensors of a batch for the model: the images of `(images, labels)`."""
    if isinstance(item, Tensor):
        return [item]
    tensors = [part for part in item if isinstance(part, Tensor)] if isinstance(item, list | tuple) else []
    if not tensors:
        kind = type(item).__name__
        raise UsageError(f"the loader yields batches of type {kind}, without a tensor", "give tensors")
    is_labelled = len(item) == 2 and (len(tensors) == 1 or tensors[1].ndim <= 1)
    return tensors[:1] if is_labelled else tensors
