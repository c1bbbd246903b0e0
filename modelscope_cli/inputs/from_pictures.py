"""Batches of pictures: found, decoded, prepared and collated one group at a time."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn

from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, shapes_of
from modelscope_cli.inputs.collate import Group, collate, group_pictures
from modelscope_cli.inputs.files import PictureFile, find_pictures
from modelscope_cli.inputs.picture import OF_SEVERAL, count_frames, decode, is_stored_turned
from modelscope_cli.inputs.plan import plan_preprocessing
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.inputs.preset import Preset
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.records.run import InputInfo


def open_pictures(
    request: InputRequest,
    target: ModelSide,
    transforms: Any | None,
    module: nn.Module | None,
    images: Sequence[PictureFile] = (),
) -> Inputs:
    """Open image files, or `images`. Only the first batch is decoded before the batches are gone through.

    Raises:
        UsageError, CannotRunError: exit codes 2 and 4; see the parts.
    """
    files, skipped = (list(images), []) if images else find_pictures(request.files)
    several = _several(files)
    plan = plan_preprocessing(request, target.family, transforms, module)
    groups, decided = group_pictures(target.family, files, request.batch, plan.is_fixed_size)
    is_one_sample = target.family in {"video", "optical_flow"}

    def build(block: int) -> Batch:
        group = groups[block]
        prepared = prepare(plan, group)
        args = collate(target.family, [file.name for file in group], [prepared[file] for file in group])
        seen = group[:1] if is_one_sample else group
        return Batch(
            target.place(args),
            n_images=len(seen),
            names=tuple(file.name for file in seen),
            make_pictures=lambda: tuple(plan.picture(prepared[file]) for file in seen),
            prepared=lambda plans: _prepared_again(group, target, plans),
            block=block,
        )

    # The first batch is built now, for its shape and so that a bad picture is told before the model runs.
    ready = [build(0)]
    info = InputInfo("image", shapes_of(ready[0].args), tuple(file.name for file in files), plan.words)

    def batches(blocks: Iterable[int]) -> Iterator[Batch]:
        for block in blocks:
            yield ready.pop() if ready and block == 0 else build(block)

    notes = [*skipped, *several, *decided, *preparation_notes(plan, transforms)]
    n_images = 1 if is_one_sample else len(files)
    return Inputs(
        info,
        n_images,
        len(groups),
        lambda: batches(range(len(groups))),
        tuple(notes),
        preprocessing=plan,
        make_blocks=batches,
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
    may_be = [file for file in files if len(files) == 1 or Path(file.name).suffix.lower() in OF_SEVERAL]
    frames = {file.name: count for file in may_be if (count := count_frames(file)) > 1}
    if not frames:
        return []
    name, count = next(iter(frames.items()))
    more = f", and so of {len(frames) - 1} more" if len(frames) > 1 else ""
    return [f"'{name}' holds {count} images; the first is taken{more}"]
