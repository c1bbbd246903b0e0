"""`featuremaps --top-images`: find the images that activate each channel, in one pass over a data set."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from modelscope_cli.analysis.activations.maps import ChannelChoice, nothing_to_draw
from modelscope_cli.analysis.spatial.fields import Field, Output, fields_of_outputs
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.analysis.top_images.observer import (
    RankedImage,
    RankedOutput,
    Ranking,
    TopImages,
    TopValues,
)
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import map_tensors
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.batch import Inputs, shapes_of
from modelscope_cli.records.featuremaps import (
    ChannelImage,
    ChannelImages,
    FeatureMap,
    FeatureMapsRecord,
    KeptCrops,
)
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Shape


@dataclass(frozen=True, slots=True)
class LayerImages:
    """One output of one call: the row about it, and a row for each of its channels."""

    layer: FeatureMap
    channels: tuple[ChannelImages, ...] = ()
    seen: dict[str, RankedImage] = field(default_factory=dict)  # the images that are shown, by file


def find_top_images(
    subject: Subject, selection: Selection, k: int, choice: ChannelChoice
) -> list[LayerImages]:
    """Return the top images of the selected outputs, in execution order.

    Args:
        k: images in each of the two groups.
        choice: of the channels that are shown; strength is the mean of the largest values.
    """
    if subject.inputs.make_blocks is None or not subject.first.names:
        raise UsageError("--top-images needs images to rank", "modelscope featuremaps ... IMAGES")
    observer = TopImages(selection, k)
    session = HookSession(
        subject.loaded.module,
        [observer],
        wanted=selection.wanted,
        names=selection.names,
        interventions=subject.bound.interventions,
    )
    with session:
        for batch in subject.track(subject.inputs, "images"):
            if batch.n_images:
                observer.begin(batch)
                session.run(batch.args)
    fields = _Fields(subject, set(observer.watched))
    ordered = sorted(observer.watched.values(), key=lambda one: one.call.order)
    ranked = subject.progress.track(ordered, "layers ranked", len(ordered))
    return [_OutputRows(observer, fields, one).read(choice) for one in ranked]


class _Fields:
    """The receptive fields of the outputs, for inputs of any shape: the model is run once for each shape."""

    def __init__(self, subject: Subject, wanted: set[Output]) -> None:
        self._subject = subject
        self._wanted = wanted
        self._known: dict[tuple[Shape, ...], dict[Output, Field]] = {}

    def of(self, output: Output, shapes: tuple[Shape, ...] | None = None) -> Field:
        """Return the field of an output; without shapes for those of the first batch."""
        args = self._subject.first.args
        shapes = shapes or shapes_of(args)
        if shapes not in self._known:
            if shapes_of(args) != shapes:
                left = iter(shapes)
                args = map_tensors(args, lambda path, tensor: tensor.new_zeros(next(left)))
            self._known[shapes] = fields_of_outputs(self._subject.loaded.module, args, self._wanted)
        return self._known[shapes][output]


class _OutputRows:
    def __init__(self, seen: TopImages, fields: _Fields, watched: RankedOutput) -> None:
        self._seen = seen
        self._fields = fields
        self._watched = watched
        self._shown: dict[str, RankedImage] = {}

    def read(self, choice: ChannelChoice) -> LayerImages:
        watched, ranking = self._watched, self._watched.ranking
        call = watched.call
        layer = FeatureMap(
            call.name, call.type, call.order, call.index, watched.output, watched.shape, kind="images"
        )
        if ranking is None:
            return LayerImages(replace(layer, problem=watched.problem))
        best = ranking.most.values[0]
        strength = ranking.most.values.nan_to_num(neginf=0.0).mean(0)
        rows = [self._row(ranking, channel) for channel in range(len(best))]
        chosen = choice.among(len(rows), lambda: strength)
        active = tuple(channel for channel in chosen if not rows[channel].problem)
        for channel in active:
            most = tuple(one for one in self._images(ranking.most, channel) if one.value > 0)
            least = () if ranking.is_tied(channel) else tuple(self._images(ranking.least, channel))
            rows[channel] = replace(rows[channel], most=most, least=least)
        layer = replace(
            layer,
            channels=len(rows),
            shown=active,
            min=float(ranking.least.values[0].amin()),
            max=float(best.amax()),
            problem=None if active else "none of the channels shown is ever above 0",
            note=self._note(rows, len(ranking.least.values)),
        )
        return LayerImages(layer, tuple(rows), self._shown)

    def _row(self, ranking: Ranking, channel: int) -> ChannelImages:
        best = float(ranking.most.values[0, channel])
        return ChannelImages(
            **self._watched.call.fields,
            output=self._watched.output,
            channel=channel,
            best=best,
            best_image=self._seen.image(int(ranking.most.images[0, channel])).name,
            active_images=int(ranking.n_active[channel]),
            nan_images=int(ranking.n_nan[channel]),
            problem=_problem(best, float(ranking.least.values[0, channel]), ranking.n_images),
        )

    def _images(self, ranked: TopValues, channel: int) -> Iterator[ChannelImage]:
        columns = (ranked.values, ranked.images, ranked.places)
        for value, number, index in zip(*(column[:, channel].tolist() for column in columns), strict=True):
            image = self._seen.image(number)
            field = self._fields.of(self._watched.key, image.shapes)
            place = self._watched.place(index, tuple(field.shape[1:]))
            box = field.box(self._watched.element(channel, place))
            self._shown[image.name] = image
            yield ChannelImage(image.name, value, place, box)

    def _note(self, rows: Sequence[ChannelImages], n_ranked: int) -> str:
        """Describe the receptive field of a value, the channels that are never active, and the images left out."""
        first = self._fields.of(self._watched.key)
        height, width = first.largest()
        is_whole = height >= first.size[0] and width >= first.size[1]
        size = "the whole image" if is_whole else f"{height} x {width} pixels"
        silent = [str(row.channel) for row in rows if row.best <= 0]
        dead = [f"{counted(len(silent), 'channel')} of {len(rows)} never above 0: {some(silent, 8)}"] * bool(
            silent
        )
        short = sum(bool(row.most) and len(row.most) + len(row.least) < 2 * n_ranked for row in rows)
        left_out = [f"{counted(short, 'channel')} drawn without the images that do not activate them"]
        return "; ".join([f"receptive field {size}", *dead, *left_out * bool(short)])


def _problem(best: float, least: float, n_images: int) -> str:
    if best == -torch.inf:
        return "NaN or minus infinity in every image"
    if best <= 0:
        return f"never active: at most {best:.4g} in any image"
    return "the same for every image" if best == least and n_images > 1 else ""


def cut_crops(inputs: Inputs, layer: LayerImages) -> Iterator[tuple[ChannelImage, Tensor]]:
    """Yield every image shown for a layer once, cut to the receptive field of its place.

    Only the blocks that hold such images are decoded, each once.
    """
    assert inputs.make_blocks is not None
    wanted: dict[int, dict[ChannelImage, int]] = defaultdict(dict)
    for row in layer.channels:
        for _, images in row.groups:
            for image in images:
                place = layer.seen[image.image]
                wanted[place.block][image] = place.number
    for batch in inputs.make_blocks(sorted(wanted)):
        pictures = dict(zip(batch.numbers, batch.pictures, strict=True))
        for image, number in wanted[batch.block].items():
            yield image, _cut(pictures[number], image.box)


def _cut(picture: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """Crop a `(3, H, W)` image; an empty box, in padding alone, becomes the pixel of the nearest corner."""
    height, width = picture.shape[-2:]
    left, top = min(max(box[0], 0), width - 1), min(max(box[1], 0), height - 1)
    right, bottom = max(min(box[2], width), left + 1), max(min(box[3], height), top + 1)
    return picture[:, top:bottom, left:right]


def rank_data_set(subject: Subject, selection: Selection, k: int, choice: ChannelChoice) -> FeatureMapsRecord:
    """Go through all images once; the record reads those that it shows again when it is drawn."""
    subject.bind()
    layers = find_top_images(subject, selection, k, choice)
    never = subject.uncalled(selection, [one.layer.name for one in layers])
    hooks = subject.conclude()
    if not any(one.channels for one in layers):
        rows = [one.layer for one in layers]
        raise nothing_to_draw(rows, never, False, subject.loaded.info.name)
    record = FeatureMapsRecord(
        run=subject.run(),
        maps=tuple(one.layer for one in layers),
        contact_sheet=None,
        out_dir=None,
        not_called=never,
        hooks=hooks,
        top_images=k,
        images=subject.inputs.n_images,
        channels=tuple(row for one in layers for row in one.channels),
    )
    return record.keep(KeptCrops(partial(_read_again, subject.inputs, layers, subject.progress)))


def _read_again(
    inputs: Inputs, layers: Sequence[LayerImages], progress: Progress
) -> Iterator[Iterator[tuple[ChannelImage, Tensor]]]:
    """Yield the crops of each layer, see `KeptCrops`."""
    for layer in progress.track(layers, "layers drawn", len(layers)):
        yield cut_crops(inputs, layer)
