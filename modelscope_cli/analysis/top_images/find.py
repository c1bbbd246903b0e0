"""`featuremaps --top-images`: find the images that activate each channel, in one pass over a data set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from modelscope_cli.analysis.activations.maps import ChannelChoice
from modelscope_cli.analysis.spatial.receptive import Field, ReceptiveFields
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.analysis.top_images.observer import (
    FieldsOfOutputs,
    Output,
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
from modelscope_cli.inputs.batch import shapes_of
from modelscope_cli.records.featuremaps import ChannelImage, ChannelImages, FeatureMap
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.run import Shape


@dataclass(frozen=True, slots=True)
class LayerImages:
    """One output of one call: the row about it, and a row for each of its channels.

    Attributes:
        seen: the images that are shown, by file.
    """

    layer: FeatureMap
    channels: tuple[ChannelImages, ...] = ()
    seen: dict[str, RankedImage] = field(default_factory=dict)


def find_top_images(
    subject: Subject, selection: Selection, k: int, choice: ChannelChoice
) -> tuple[list[LayerImages], int]:
    """Return the top images of the selected outputs, in execution order, and the number of images sampled.

    Args:
        k: images in each of the three groups.
        choice: of the channels that are shown; strength is the mean of the largest values.
    """
    if subject.inputs.make_blocks is None or not subject.first.names:
        raise UsageError("--top-images needs images to rank", "modelscope featuremaps ... IMAGES")
    observer = TopImages(selection, k, subject.seed)
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
    layers = [_OutputRows(observer, fields, one).read(choice) for one in ranked]
    sampled = max((len(one.ranking.keys) for one in ordered if one.ranking is not None), default=0)
    return layers, sampled


class _Fields:
    """The receptive fields of the outputs, for inputs of any shape: the model is run once for each shape."""

    def __init__(self, subject: Subject, wanted: set[Output]) -> None:
        self._subject = subject
        self._wanted = wanted
        self._known: dict[tuple[Shape, ...], dict[Output, Field]] = {}

    def of(self, output: Output, shapes: tuple[Shape, ...]) -> Field:
        """Return the field of an output for inputs of these shapes."""
        if shapes not in self._known:
            self._known[shapes] = self._follow(shapes)
        return self._known[shapes][output]

    def of_first(self, output: Output) -> Field:
        """Return the field of an output for the first batch."""
        return self.of(output, shapes_of(self._subject.first.args))

    def _follow(self, shapes: tuple[Shape, ...]) -> dict[Output, Field]:
        args = self._subject.first.args
        if shapes_of(args) != shapes:
            left = iter(shapes)
            args = map_tensors(args, lambda path, tensor: tensor.new_zeros(next(left)))
        fields = ReceptiveFields()
        observer = FieldsOfOutputs(fields, self._wanted)
        with HookSession(self._subject.loaded.module, [observer]) as session, fields.follow(args):
            session.run(args)
        return observer.found


class _OutputRows:
    """Builds the rows of one output from its ranking."""

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
        strength = ranking.sample.values.nan_to_num(neginf=0.0).mean(0)
        rows = [self._row(ranking, channel) for channel in range(len(best))]
        shown = choice.among(len(rows), lambda: strength)
        drawn = tuple(channel for channel in shown if not rows[channel].problem)
        groups = {"most": ranking.most, "middle": ranking.middle(), "least": ranking.least}
        for channel in drawn:
            picked = {name: tuple(self._images(ranked, channel)) for name, ranked in groups.items()}
            rows[channel] = replace(rows[channel], **picked)  # type: ignore[arg-type]
        layer = replace(
            layer,
            channels=len(rows),
            shown=drawn,
            min=float(ranking.least.values[0].amin()),
            max=float(best.amax()),
            problem=None if drawn else "none of the channels shown is ever above 0",
            note=self._note(rows),
        )
        return LayerImages(layer, tuple(rows), self._shown)

    def _row(self, ranking: Ranking, channel: int) -> ChannelImages:
        call = self._watched.call
        values = ranking.sample.values[:, channel]
        best = float(ranking.most.values[0, channel])
        return ChannelImages(
            name=call.name,
            type=call.type,
            order=call.order,
            call=call.index,
            output=self._watched.output,
            channel=channel,
            best=best,
            best_image=self._seen.image(int(ranking.most.images[0, channel])).name,
            median=_median(values),
            above_half=float((values > best / 2).double().mean()) if best > 0 else None,
            nan_images=int(ranking.n_nan[channel]),
            problem=_problem(best, float(ranking.least.values[0, channel]), ranking.n_images),
        )

    def _images(self, ranked: TopValues, channel: int) -> Iterator[ChannelImage]:
        columns = (ranked.values, ranked.images, ranked.places)
        for value, number, index in zip(*(column[:, channel].tolist() for column in columns), strict=True):
            image = self._seen.image(number)
            seen = self._fields.of(self._watched.key, image.shapes)
            place = self._watched.place(index, tuple(seen.bounds[0].shape[1:]))
            box = seen.box(self._watched.element(channel, place))
            self._shown[image.name] = image
            yield ChannelImage(image.name, value, place, box)

    def _note(self, rows: Sequence[ChannelImages]) -> str:
        """Describe the receptive field of a value, and the channels that never fire."""
        first = self._fields.of_first(self._watched.key)
        height, width = first.largest()
        is_whole = height >= first.size[0] and width >= first.size[1]
        seen = "the whole image" if is_whole else f"{height} x {width} pixels"
        silent = [str(row.channel) for row in rows if row.best <= 0]
        dead = [f"{counted(len(silent), 'channel')} of {len(rows)} never above 0: {some(silent, 8)}"] * bool(
            silent
        )
        return "; ".join([f"receptive field {seen}", *dead])


def _median(values: Tensor) -> float:
    """Return the median, the mean of the two in the middle where there are two, as NumPy's."""
    ordered = values.double().sort().values
    n = len(ordered)
    return float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)


def _problem(best: float, least: float, n_images: int) -> str:
    if best == -torch.inf:
        return "NaN or minus infinity in every image"
    if best <= 0:
        return f"never active: at most {best:.4g} in any image"
    return "the same for every image" if best == least and n_images > 1 else ""
