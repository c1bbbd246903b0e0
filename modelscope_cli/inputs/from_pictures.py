"""Batches of pictures: found, decoded, prepared and collated one group at a time."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn

from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, shapes_of
from modelscope_cli.inputs.block_source import BlockSource
from modelscope_cli.inputs.collate import Group, collate, group_pictures
from modelscope_cli.inputs.decoding import Decoded, Decoder
from modelscope_cli.inputs.feed import Feed
from modelscope_cli.inputs.files import Found, find_pictures
from modelscope_cli.inputs.listing import FileList, PictureFile
from modelscope_cli.inputs.picture import OF_SEVERAL, count_frames, decode, is_stored_turned
from modelscope_cli.inputs.plan import plan_preprocessing
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.inputs.preset import Preset
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.workers import choose_workers
from modelscope_cli.records.run import InputInfo

_MOST_NAMED = 1000  # files, in the record and for the number of their frames


def open_pictures(
    request: InputRequest,
    target: ModelSide,
    transforms: Any | None,
    module: nn.Module | None,
    images: Sequence[PictureFile] = (),
) -> Inputs:
    """Open image files, or `images`. Nothing is decoded beforehand but the first batch that has an image.

    A broken image is left out of its batch, and counted; it is an error where it is the only one or a frame of a
    clip, or `is_strict` is asked for.

    Raises:
        UsageError, CannotRunError: exit codes 2 and 4; see the parts.
    """
    found = Found(FileList(images), [], []) if images else find_pictures(request.files)
    files = found.files
    plan = plan_preprocessing(request, target.family, transforms, module)
    groups, decided = group_pictures(target.family, files, request.batch, plan.is_fixed_size)
    is_one_sample = target.family in {"video", "optical_flow"}
    decoder = Decoder(
        groups, len(groups[0]), plan, is_strict=request.is_strict or is_one_sample or len(files) == 1
    )
    feed = Feed()
    source = BlockSource(decoder, feed, choose_workers(request.workers), len(files))

    def build(block: int, decoded: Decoded) -> Batch:
        group = decoder.files(block, decoded)
        if not group:
            return Batch((), n_images=0, block=block, broken=decoded.broken)
        args = collate(target.family, [file.name for file in group], decoded.tensors)
        seen = group[:1] if is_one_sample else group
        return Batch(
            target.place(args),
            n_images=len(seen),
            names=tuple(file.name for file in seen),
            make_pictures=lambda: tuple(map(plan.picture, decoded.tensors[: len(seen)])),
            prepared=lambda plans: _prepared_again(group, target, plans),
            block=block,
            numbers=decoded.numbers[: len(seen)],
            broken=decoded.broken,
        )

    def blocks(numbers: Iterable[int]) -> Iterator[Batch]:
        for block, decoded in source.blocks(numbers):
            yield build(block, decoded)

    # The first batch is made now, for its shape and so that bad images are told before the model runs.
    first = build(*source.find_first())
    names = tuple(file.name for file in files[:_MOST_NAMED])
    info = InputInfo("image", shapes_of(first.args), names, plan.words, n_files=len(files))
    notes = [*found.notes, *_several(files), *decided, *preparation_notes(plan, transforms)]
    return Inputs(
        info,
        1 if is_one_sample else len(files),
        len(groups),
        lambda: blocks(range(len(groups))),
        tuple(notes),
        tuple(found.warnings),
        preprocessing=plan,
        make_blocks=blocks,
        files=files,
        feed=feed,
        block_size=len(groups[0]),
    )


def _prepared_again(
    group: Group, target: ModelSide, plans: Iterable[Preprocessing]
) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments that each plan makes of the same images, which are decoded once for all of them."""
    images: dict[tuple[PictureFile, bool], Image.Image] = {}
    for plan in plans:
        tensors = []
        for file in group:
            is_as_stored = not plan.is_turned and is_stored_turned(file)
            if (file, is_as_stored) not in images:
                images[file, is_as_stored] = decode(file, plan.mode, is_turned=not is_as_stored)
            tensors.append(plan.apply(images[file, is_as_stored], file.name))
        yield target.place(collate(target.family, [file.name for file in group], tensors))


def prepare(plan: Preprocessing, files: Group) -> dict[PictureFile, Tensor]:
    """Return what the model receives of every picture, `(C, H, W)` float32 on the CPU; a repeated one once."""
    return {file: plan.apply(decode(file, plan.mode), file.name) for file in dict.fromkeys(files)}


def preparation_notes(plan: Preprocessing, transforms: Any | None) -> list[str]:
    """Say how pictures are prepared, where the weights of torchvision do not go without saying."""
    if transforms is None:
        return [f"images: {plan.brief}; as is usual, for the model states nothing (-v says more)"]
    return (
        [f"images: {plan.brief}, as {transforms.origin} says (-v says more)"]
        if isinstance(transforms, Preset)
        else []
    )


def _several(files: Sequence[PictureFile]) -> list[str]:
    """Say which files hold more than one picture, an animation or pages, of which the first is taken."""
    # An animated PNG is as rare among many as it would be slow to open them all beforehand.
    some = files[:_MOST_NAMED]
    may_be = [file for file in some if len(files) == 1 or Path(file.name).suffix.lower() in OF_SEVERAL]
    frames = {file.name: count for file in may_be if (count := count_frames(file)) > 1}
    if not frames:
        return []
    name, count = next(iter(frames.items()))
    more = f", and so of {len(frames) - 1} more" if len(frames) > 1 else ""
    return [f"'{name}' holds {count} images; the first is taken{more}"]
