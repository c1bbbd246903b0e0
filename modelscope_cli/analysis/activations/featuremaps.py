"""`featuremaps`: from a model and one image to a picture of what every layer puts out for it."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from modelscope_cli.analysis.activations.attention_maps import capture_attention
from modelscope_cli.analysis.activations.channel_choice import ChannelChoice, choose_channels
from modelscope_cli.analysis.activations.maps import Exhibit, capture_maps, nothing_to_draw
from modelscope_cli.analysis.activations.stages import one_a_stage
from modelscope_cli.analysis.results import Results
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.analysis.top_images.data_set import rank_data_set
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.python_inputs import to_inputs
from modelscope_cli.records.featuremaps import FeatureMapsRecord
from modelscope_cli.records.keywords import Keywords, spelled_out
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import Progress
from modelscope_cli.report import gallery
from modelscope_cli.report.folder import check_file
from modelscope_cli.report.image_tiles import make_palette
from modelscope_cli.report.page.results import save_result

if TYPE_CHECKING:
    from torch import Tensor

    from modelscope_cli.models.request import Model


@spelled_out
def featuremaps(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    channels: str | Sequence[int] = (),
    max_channels: int = 64,
    strongest: bool = False,
    scale: str = "channel",
    cmap: str = "viridis",
    cell: int | None = None,
    overlay: bool = False,
    attention: bool = False,
    top_images: int = 0,
    save_tensors: str | PathLike[str] | None = None,
    hook: str | Sequence[str] = (),
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[Keywords],
) -> FeatureMapsRecord:
    """Return what the layers put out for one image: shapes and ranges; with `out`, a grid of each.

    The forward stops after the last layer that was asked for. Where nobody asked for any, and the network has more
    than forty outputs, it is one a stage: the last of each size of maps. With `top_images`, a data set is gone
    through, and the record says of every channel which images fire it most, in the middle and least.

    Args:
        model: a name or file as on the command line, a module of yours, or what `load` returned.
        inputs: a path, a PIL image or a tensor; None for seeded noise of the model's own size.
        layer, exclude: layer patterns.
        channels: only these channels, by number: 3,7,10..20; one number is that channel, not a count. In Python
            also `[3, 7]`.
        max_channels: at most this many channels, evenly chosen, if `channels` does not name them. With
            `top_images`, those of the largest mean over the images.
        strongest: choose the channels with the largest mean |activation|.
        scale: colours span each channel's own range, or the layer's.
        cmap: A colour map of matplotlib.
        cell: long side of a map.
        overlay: lay the maps over the gray image, as opaque as they are strong.
        attention: draw where each attention head in the layers looks. It is what the class token takes from each
            place of the image or, without one, what each place gives on average.
        top_images: rank the images of a folder, and show the N that fire each channel most, least and in between.
            At most 25; an image counts by the largest value of the channel anywhere in it, of equal ones the first
            in the list. The middle is that of at most 1,024 images, chosen by a hash of their names.
        save_tensors: save the whole outputs as .safetensors.
        hook: what changes on the way, as `--hook` takes it.
        out: folder for the grids and `report.json`; `force`: it need not be empty.

    Raises:
        UsageError: a keyword, a pattern or a combination that means nothing (exit 2 on the command line).
        CannotRunError: the model cannot be loaded or raised, nothing can be drawn, or a file cannot be read or
            written (exit 4).
    """
    choice = choose_channels(channels, max_channels, strongest)
    make_palette(cmap)
    given = to_inputs(inputs, keywords)
    if not top_images:
        given.request.check_one()
    results = Results(out, force)
    if save_tensors is not None:
        check_file(Path(save_tensors), force)
    subject = Subject("featuremaps", model, given, keywords, hook=hook, progress=progress)
    subject.open()
    if top_images:
        selection = subject.select(layer, exclude)
        return rank_data_set(subject, selection, top_images, choice, results)
    image = _only_image(subject, overlay)
    selection = subject.select(layer, exclude)
    capture = _capture_attention if attention else _capture_outputs
    exhibits, never = capture(subject, selection, choice)
    hooks = subject.conclude()
    n_outputs = len(exhibits)
    if not layer and not exclude:
        exhibits = one_a_stage(exhibits)
    for said in _notes(len(exhibits), n_outputs, channels):
        subject.progress.note(said)
    rows = [exhibit.record for exhibit in exhibits]
    if not any(row.shown for row in rows):
        raise nothing_to_draw(rows, never, attention, subject.loaded.info.name)
    record = FeatureMapsRecord(
        run=subject.run(),
        maps=tuple(rows),
        contact_sheet=None,
        out_dir=results.path,
        tensors=str(save_tensors) if save_tensors is not None else None,
        not_called=never,
        hooks=hooks,
        outputs=n_outputs,
    )
    with results.open() as stage:
        if stage is not None:
            look = gallery.MapLook(scale, cmap, cell, image, is_overlay=overlay)
            maps = gallery.save_gallery(exhibits, look, stage)
            record = replace(record, maps=maps, contact_sheet=gallery.CONTACT_SHEET)
            save_result(record, stage)
        if save_tensors is not None:
            gallery.save_tensors(exhibits, Path(save_tensors))
    if save_tensors is not None:
        subject.progress.note(f"wrote {save_tensors}")
    if out is not None:
        n_grids = sum(row.file is not None for row in record.maps)
        subject.progress.note(f"wrote {out} ({counted(n_grids, 'grid')})")
    return record


def _only_image(subject: Subject, is_overlay: bool) -> "Tensor | None":
    """Return the image that is looked at, `(3, H, W)` uint8; None of noise and tensors.

    Raises:
        UsageError: there are several, or none to lay the maps over (exit 2).
    """
    if subject.inputs.n_images > 1 and not subject.given.is_noise:
        message = f"one image at a time; {subject.given.name} has {subject.inputs.n_images}"
        is_of_files = subject.inputs.make_blocks is not None and subject.first.names
        ranked = "--top-images 9   ranks the images of all of them; else give one image file"
        raise UsageError(message, ranked if is_of_files else "give a tensor of one image")
    image = next(iter(subject.first.pictures), None)
    if is_overlay and image is None:
        raise UsageError("--overlay needs an image to lay the maps over", "leave out --overlay")
    return image


def _capture_outputs(
    subject: Subject, selection: Selection, choice: ChannelChoice
) -> tuple[list[Exhibit], tuple[str, ...]]:
    """Return what the selected layers put out, and which of them never ran."""
    image = next(iter(subject.first.pictures), None)
    exhibits = capture_maps(
        subject.loaded.module,
        subject.first.args,
        selection,
        image_size=(image.shape[1], image.shape[2]) if image is not None else None,
        choice=choice,
        interventions=subject.bind().interventions,
    )
    return exhibits, subject.uncalled(selection, [exhibit.record.name for exhibit in exhibits])


def _capture_attention(
    subject: Subject, selection: Selection, choice: ChannelChoice
) -> tuple[list[Exhibit], tuple[str, ...]]:
    """Return where the heads in the selected layers look, and which of the layers never ran."""
    interventions = subject.bind().interventions
    return capture_attention(
        subject.loaded.module, subject.first.args, selection, choice=choice, interventions=interventions
    )


def _notes(n_taken: int, n_outputs: int, channels: str | Sequence[int]) -> list[str]:
    """Say what was decided for whoever asked."""
    notes = []
    if n_taken < n_outputs:
        notes.append(
            f"{n_outputs} outputs: one per stage is taken, {n_taken} in all; --layer selects others: --layer conv"
        )
    if isinstance(channels, str) and channels.isdecimal():
        notes.append(f"only channel {channels} is drawn; --max-channels {channels} draws that many")
    return notes
