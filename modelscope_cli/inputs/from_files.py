"""Open image files, or several named inputs, as batches."""

import random
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import cloned, map_tensors, tensors_in
from modelscope_cli.inputs.batch import (
    Batch,
    Inputs,
    ModelSide,
    count_images,
    lengths_of,
    names_of,
    shapes_of,
)
from modelscope_cli.inputs.decoding import (
    BlockSource,
    DecodeCounts,
    Decoded,
    Group,
    ImageBlocks,
    choose_workers,
    collate,
)
from modelscope_cli.inputs.files import FileList, FoundImages, ListedImage, find_images
from modelscope_cli.inputs.forward_signature import arrange_named, suggestion
from modelscope_cli.inputs.grammar import ShapeSpec, by, shape_in
from modelscope_cli.inputs.image import OF_SEVERAL, conversions, decode, frames_and_mode, is_stored_turned
from modelscope_cli.inputs.model_config import takes_clips
from modelscope_cli.inputs.noise import count_codes, describe, make_noise, with_batch
from modelscope_cli.inputs.preprocess import Preprocessing, Preset
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.tensor_files import TENSOR_SUFFIXES, is_array, read_tensors, suffix_of
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Arguments, InputInfo

_MOST_NAMED = 1000  # files in the record, and files checked for several frames
# Images per forward without `--batch`.
_FIXED_SIZE_BATCH, _OWN_SIZE_BATCH = 8, 1


def open_images(
    request: InputRequest,
    target: ModelSide,
    transforms: Any | None,
    module: nn.Module | None,
    images: Sequence[ListedImage] = (),
) -> Inputs:
    """Open image files, or `images`, decoding only the first batch that has an image.

    Broken images are left out and counted; they are errors with `is_strict`, or if all are broken.
    """
    if takes_clips(module, target.family):
        what = "pairs of images" if target.family == "optical_flow" else "clips or volumes"
        hint = f"leave out {shlex.join(request.files)}" if request.files else "give a tensor"
        raise CannotRunError(
            f"the model takes {what}: it runs on noise or a tensor file, not on images", hint
        )
    listed = FoundImages(FileList(images)) if images else find_images(request.files)
    files = listed.files
    if request.is_shuffled:
        files = FileList(random.Random(0).sample(files, len(files)), files.roots)
    plan = plan_preprocessing(request, target.family, transforms, module)
    size = request.batch or (_FIXED_SIZE_BATCH if plan.is_fixed_size else _OWN_SIZE_BATCH)
    is_strict = request.is_strict or len(files) == 1
    image_blocks = ImageBlocks(files, min(size, len(files)), plan, is_strict)
    feed = DecodeCounts()
    source = BlockSource(image_blocks, feed, choose_workers(request.workers), len(files))

    def build(block: int, decoded: Decoded) -> Batch:
        group = [files[number] for number in decoded.numbers]
        if not group:
            return Batch((), n_images=0, block=block, broken=decoded.broken)
        args = collate(target.family, [file.name for file in group], decoded.tensors)
        return Batch(
            target.place(args),
            n_images=len(group),
            names=tuple(file.name for file in group),
            make_pictures=lambda: tuple(map(plan.picture, decoded.tensors)),
            prepared=lambda plans: _prepared_again(group, target, plans),
            block=block,
            numbers=decoded.numbers,
            broken=decoded.broken,
        )

    def blocks(numbers: Iterable[int]) -> Iterator[Batch]:
        for block, decoded in source.blocks(numbers):
            yield build(block, decoded)

    # The first batch is made now for its shape, and to report bad images before the model runs.
    first = build(*source.find_first())
    names = tuple(file.name for file in listed.files[:_MOST_NAMED])
    info = InputInfo("image", shapes_of(first.args), names, plan.words, n_files=len(files))
    notes = [*listed.notes, *_several(files), *preparation_notes(plan, transforms, request)]
    notes += conversions(files, plan.mode)
    return Inputs(
        info,
        len(files),
        len(image_blocks),
        lambda: blocks(range(len(image_blocks))),
        tuple(notes),
        preprocessing=plan,
        make_blocks=blocks,
        files=files,
        feed=feed,
        block_size=image_blocks.size,
    )


def _prepared_again(
    group: Group, target: ModelSide, plans: Iterable[Preprocessing]
) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments under each preprocessing of the same images, decoded once."""
    images: dict[tuple[ListedImage, bool], Image.Image] = {}
    for plan in plans:
        tensors = []
        for file in group:
            is_as_stored = not plan.is_turned and is_stored_turned(file)
            if (file, is_as_stored) not in images:
                images[file, is_as_stored] = decode(file, plan.mode, is_turned=not is_as_stored)
            tensors.append(plan.apply(images[file, is_as_stored], file.name))
        yield target.place(collate(target.family, [file.name for file in group], tensors))


def preparation_notes(plan: Preprocessing, transforms: Any | None, request: InputRequest) -> list[str]:
    """Return notes on the preprocessing, unless it is that of torchvision's weights."""
    given = " ".join(request.value_options())
    if given and max(*plan.mean, *plan.std) > 2:
        why = "but pixels are scaled to 0..1 first: divide values meant for 0..255 by 255"
        return [f"images: {plan.brief}: {given}, {why} (-v shows more)"]
    if transforms is None:
        why = f": {given}" if given else ": the default, as the model specifies none"
        return [f"images: {plan.brief}{why} (-v shows more)"]
    is_named = isinstance(transforms, Preset)
    return [f"images: {plan.brief}, as in {transforms.origin} (-v shows more)"] if is_named else []


def _several(files: Sequence[ListedImage]) -> list[str]:
    """Return a note on files with several frames or pages, of which the first is used."""
    # PNG files are not opened: animated ones are rare, and opening all would be slow.
    some = files[:_MOST_NAMED]
    may_be = [file for file in some if len(files) == 1 or Path(file.name).suffix.lower() in OF_SEVERAL]
    frames = {file.name: count for file in may_be if (count := frames_and_mode(file)[0]) > 1}
    if not frames:
        return []
    name, count = next(iter(frames.items()))
    more = f", as in {len(frames) - 1} more files" if len(frames) > 1 else ""
    return [f"'{name}' contains {count} images; the first is used{more}"]


@dataclass(frozen=True, slots=True)
class _ImageFiles:
    files: tuple[ListedImage, ...]


def open_named(
    named: Mapping[str, Any],
    request: InputRequest,
    target: ModelSide,
    transforms: Any | None,
    module: nn.Module | None,
) -> Inputs:
    """Open named inputs as one forward, or with `--batch` as several along their first dimension.

    Args:
        named: the value of each name: a spec as for `--input`, images (stacked), a tensor, or any other value,
            which is passed on unchanged.
    """
    outlined = arrange_named(module, named)  # report wrong names before reading anything
    read = {name: _read(name, value) for name, value in named.items()}
    shapes = [value for value in read.values() if isinstance(value, ShapeSpec)]
    if len(shapes) == len(read):

        def arrange(tensors: Sequence[Tensor]) -> Arguments:
            return arrange_named(module, dict(zip(named, tensors, strict=True)))

        shapes = with_batch(shapes, request.batch, target, module, transforms, arrange)
        read = dict(zip(read, shapes, strict=True))
    files = {name: value.files for name, value in read.items() if isinstance(value, _ImageFiles)}
    if files and target.family in ("video", "optical_flow"):
        name = next(iter(files))
        message = f"'{name}' needs a tensor: the model takes clips or pairs of images"
        raise UsageError(message, f"--input {name}=FILE.npy")
    plan = plan_preprocessing(request, target.family, transforms, module) if files else None
    content = _Content(read, target, module)
    for name, pictures in files.items():
        content.take_pictures(name, pictures, plan)
    outline = content.draw(request.seed, torch.device("meta"))
    cuts = content.cuts(outline, request.batch)

    def batches() -> Iterator[Batch]:
        whole = content.draw(request.seed, target.device)
        for cut in cuts:
            part, shown_images = _cut(whole, cut), content.shown[cut]
            yield Batch(
                target.place(arrange_named(module, part)),
                n_images=content.count(part),
                names=tuple(file.name for file, _ in shown_images),
                make_pictures=_pictures(plan, shown_images),
                numbers=tuple(range(len(content.shown))[cut]),
            )

    first = _cut(outline, cuts[0])
    paths = tuple(file for name, value in read.items() for file in _files(value, named[name]))
    info = InputInfo(
        "image" if files else "tensor" if tensors_in(content.values) else "noise",
        shapes_of(first),
        paths,
        plan.words if plan is not None else None,
        names_of(first),
        len(paths),
    )
    words = [
        f"{name} {_words(read[name] if name in files else value, content)}"
        for name, value in content.values.items()
    ]
    seed = f" (seed {request.seed})" if any(isinstance(value, ShapeSpec) for value in read.values()) else ""
    notes = [f"input: {'; '.join(words)}{seed}"]
    if isinstance(outlined, tuple) and isinstance(outlined[0], dict):
        notes.append("forward() takes one argument, so it gets all inputs as a dict")
    if plan is not None:
        notes += preparation_notes(plan, transforms, request)
        notes += conversions([file for file, _ in content.shown], plan.mode)
    n_images, n_batches = content.count(outline), len(cuts)
    shown_files = FileList(file for file, _ in content.shown)
    return Inputs(info, n_images, n_batches, batches, tuple(notes), preprocessing=plan, files=shown_files)


def refuse_other_inputs(request: InputRequest, names: Sequence[str], module: nn.Module | None) -> None:
    """Refuse files and shapes in addition to named inputs."""
    other = f"'{request.files[0]}'" if request.files else None
    if request.shapes:
        other = f"'--input-shape {request.shapes[0]}'"
    if other is not None:
        message = f"{other} and '--input {names[0]}=...' both give an input: name both"
        raise UsageError(message, suggestion(module, next(iter(request.files), None)))


def is_shape(name: str, value: Any) -> bool:
    specs = value if isinstance(value, list) and len(value) == 1 else [value]
    return isinstance(specs[0], str) and shape_in(name, specs[0]) is not None


class _Content:
    """The value of every name."""

    def __init__(self, read: Mapping[str, Any], target: ModelSide, module: nn.Module | None) -> None:
        self.values = dict(read)  # a `ShapeSpec` for noise, stacked images, or the value itself
        self.target = target
        self.n_codes = count_codes(module)
        # The images of the first name that has any, with their prepared tensors.
        self.shown: list[tuple[ListedImage, Tensor]] = []
        self._counted: str | None = None  # the name whose images are counted

    @property
    def is_picture(self) -> bool:
        """Whether noise is drawn like images, in 0..1."""
        return self.target.family == "detection"

    def take_pictures(self, name: str, files: Group, plan: Preprocessing | None) -> None:
        """Prepare the images of one name and stack them as the model's family requires."""
        assert plan is not None  # there are images
        prepared = {file: plan.apply(decode(file, plan.mode), file.name) for file in dict.fromkeys(files)}
        names, tensors = [file.name for file in files], [prepared[file] for file in files]
        (self.values[name],) = collate(self.target.family, names, tensors)
        if self._counted is None:
            self._counted = name
            self.shown = list(zip(files, tensors, strict=True))

    def count(self, values: Mapping[str, Any]) -> int:
        """Return the number of images among drawn values; without any, see `count_images`."""
        return count_images(dict(values)) if self._counted is None else len(values[self._counted])

    def cuts(self, outline: Mapping[str, Any], batch: int | None) -> list[slice]:
        if not tensors_in(outline):
            raise UsageError("none of the named inputs is a tensor", "give {'name of the argument': tensor}")
        n_images = self.count(outline)
        is_set = all(isinstance(value, ShapeSpec) for value in self.values.values())  # not at most so many
        if batch is None or batch == n_images or (batch > n_images and not is_set):
            return [slice(None)]
        lengths = {name: lengths_of(value) for name, value in outline.items()}
        if batch > n_images or any(length != n_images for sizes in lengths.values() for length in sizes):
            firsts = ", ".join(f"{name} {sizes[0]}" for name, sizes in lengths.items() if sizes)
            message = f"'--batch {batch}' cannot split the inputs: their first dimensions are {firsts}"
            raise UsageError(message, "leave out --batch")
        return [slice(start, start + batch) for start in range(0, n_images, batch)]

    def draw(self, seed: int, device: torch.device) -> dict[str, Any]:
        """Return all values by name: noise of this seed on `device`, and copies of tensors."""
        specs = {name: value for name, value in self.values.items() if isinstance(value, ShapeSpec)}
        noise = make_noise(
            list(specs.values()), seed, self.target.dtype, device, self.n_codes, self.is_picture
        )
        drawn = dict(zip(specs, noise, strict=True))
        # A model may write into its input, which must be the same in the next pass.
        return {name: drawn[name] if name in drawn else cloned(value) for name, value in self.values.items()}


def _files(read: Any, specs_given: Any) -> list[str]:
    if isinstance(read, _ImageFiles):
        return [file.name for file in read.files]
    specs = specs_given if isinstance(specs_given, list) else [specs_given]
    return [fspath(spec) for spec in specs if isinstance(read, Tensor) and isinstance(spec, str | PathLike)]


def _words(value: Any, content: _Content) -> str:
    if isinstance(value, ShapeSpec):
        return describe([value], content.n_codes, content.is_picture)
    if isinstance(value, _ImageFiles):
        return some([f"'{file.name}'" for file in value.files])
    tensors = [f"{by(t.shape)} ({str(t.dtype).removeprefix('torch.')})" for _, t in tensors_in(value)]
    return some(tensors) or type(value).__name__


def _read(name: str, value: Any) -> Any:
    """Return a `ShapeSpec`, images, or the value for the forward."""
    several = list(value) if isinstance(value, list | tuple) else [value]
    if several and all(isinstance(item, Image.Image) for item in several):
        return _ImageFiles(
            tuple(ListedImage(f"{name} {n}", image=image) for n, image in enumerate(several, 1))
        )
    if several and all(isinstance(item, str | PathLike) for item in several):
        return _read_specs(name, [fspath(item) for item in several])
    return torch.as_tensor(value) if is_array(value) else value


def _read_specs(name: str, specs: list[str]) -> Any:
    shapes = [shape for spec in specs if (shape := shape_in(name, spec)) is not None]
    is_tensor = [suffix_of(spec) in TENSOR_SUFFIXES for spec in specs]
    if len(specs) > 1 and (shapes or any(is_tensor)):
        message = f"'{name}' is given {len(specs)} times, but only images can be batched"
        raise UsageError(message, f"--input {shlex.quote(f'{name}={specs[0]}')}")
    if shapes:
        return shapes[0]
    if not any(is_tensor):
        return _ImageFiles(tuple(find_images(specs).files))
    tensors = read_tensors(specs[0])
    return tensors if isinstance(tensors, dict) else tensors[0] if len(tensors) == 1 else tuple(tensors)


def _cut(whole: dict[str, Any], cut: slice) -> dict[str, Any]:
    if cut == slice(None):
        return whole
    return {
        name: value[cut]
        if isinstance(value, list)
        else map_tensors(value, lambda _, t: t[cut] if t.ndim else t)
        for name, value in whole.items()
    }


def _pictures(
    plan: Preprocessing | None, shown: Sequence[tuple[ListedImage, Tensor]]
) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: () if plan is None else tuple(plan.picture(tensor) for _, tensor in shown)
