"""`predict --doctor`: how far predictions depend on the preprocessing of images."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from statistics import median_low
from typing import Any, Unpack

import torch
from torch import Tensor

from modelscope_cli.analysis.predictions.folder_truth import find_truth
from modelscope_cli.analysis.predictions.metrics import other_order
from modelscope_cli.analysis.predictions.scores import class_scores, kl_divergence, same_best
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.image import upright_size
from modelscope_cli.inputs.model_config import configured_outputs
from modelscope_cli.inputs.preprocess import Preprocessing, ProcessorPreset
from modelscope_cli.inputs.preprocessing_choice import Varied, plain, plan_preprocessing, variations
from modelscope_cli.models.request import Model
from modelscope_cli.records.keywords import Keywords, spelled_out
from modelscope_cli.records.naming import counted
from modelscope_cli.records.predict import DoctorRecord, Variation
from modelscope_cli.records.progress import Progress

# Differences of prepared values below this are ignored: one level of 255 is ten times as much, or more.
_SAME = 1e-3
_LARGE = 2  # factor above which enlarged images are worth a note, and to which doctor tries larger inputs


class PreprocessingSums:
    """Sums over the images of one preparation."""

    def __init__(self, varied: Varied) -> None:
        self.varied = varied
        self._n = 0
        self._n_affected = 0
        self._sums = torch.zeros(3, dtype=torch.float64)
        self.pairs = Counter[tuple[int, int]]()  # true class and prediction

    def add(self, logits: Tensor, meant: Tensor, truth: Tensor | None) -> None:
        """Add a batch: its logits and those of the intended preparation, `(N, classes)` float64 on the CPU, and the
        class of each image, `(N,)`; None if unknown."""
        before, p, p_meant = meant.argmax(1), logits.softmax(1), meant.softmax(1)
        columns = (
            ~same_best(meant, logits) | ~logits.isfinite().all(1),
            (p - p_meant).gather(1, before[:, None])[:, 0].abs(),
            kl_divergence(meant, logits),
        )
        if truth is not None:
            self.pairs.update(zip(truth.tolist(), logits.argmax(1).tolist(), strict=True))
        self._sums += torch.stack([column.double().sum() for column in columns])
        self._n += len(logits)

    def compare(self, images: Tensor, meant: Tensor) -> None:
        """Count the images of a batch, `(N, C, H, W)`, that differ from the intended preparation."""
        is_alike = images.shape == meant.shape
        gaps = (images - meant).abs().flatten(1).amax(1) > _SAME if is_alike else torch.ones(len(images))
        self._n_affected += int(gaps.sum())

    def row(self) -> Variation:
        """Return the means."""
        changed, change, kl = self._sums.tolist()
        right = sum(n for (truth, predicted), n in self.pairs.items() if truth == predicted)
        return Variation(
            name=self.varied.name,
            kind=self.varied.kind,
            what=self.varied.what,
            affected=self._n_affected,
            changed=int(changed),
            probability_change=change / self._n,
            kl_divergence=kl / self._n,
            accuracy=right / self._n if self.pairs else None,
        )


AS_MEANT = "reference"
# Two preparations are equal if they are at most this many of 255 levels apart.
_LEVELS = 1.5
_FAMILIES = ("classification", "quantization", "custom")


@spelled_out
def doctor(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    labels: str | PathLike[str] | Sequence[str] | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[Keywords],
) -> DoctorRecord:
    """Apply the usual preprocessing mistakes, one at a time, and return how many predictions change.

    The reference is the preprocessing of `predict`: that of the weights, with the `size`, `mean` and `std` that are
    given.

    Args:
        model: a classifier: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths or PIL images.
        labels: names of the classes, or a file of them, instead of those of the weights. If every image is in a
            folder with the name of its class, the record also has the accuracy.

    Raises:
        UsageError: a keyword that is not valid, or inputs that are not images (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error, or is not a classifier of images, or a file
            cannot be read (exit 4).
    """
    subject = Subject("predict", model, inputs, keywords, labels=labels, progress=progress)
    meant = _open(subject)
    varied, left_out = _varied(meant, subject.first)
    varied = (*varied, *_sizes(subject, meant))
    first = Varied(AS_MEANT, "meant", meant.words, meant)
    tallies = [PreprocessingSums(one) for one in (first, *varied)]
    n_classes = 0
    find_truth(subject)
    with HookSession(subject.loaded.module) as session:
        for batch in subject.track(subject.inputs, "images"):
            for tally, logits, as_meant in _predict(session, batch, tallies):
                n_classes = logits.shape[1]
                tally.add(logits, as_meant, batch.truth(n_classes))
    subject.conclude()
    rows = [tally.row() for tally in tallies]
    rows[1:] = sorted(
        rows[1:],
        key=lambda r: (r.changed, math.inf if math.isnan(r.kl_divergence) else r.kl_divergence),
        reverse=True,
    )
    return DoctorRecord(
        run=replace(subject.run(), command="predict-doctor"),
        images=subject.inputs.n_images,
        classes=n_classes,
        meant=meant.words,
        variations=(*rows[1:], rows[0]),
        left_out=left_out,
        other_order=other_order(tallies[0].pairs, subject.loaded.categories or ()),
    )


def tell_of_size(subject: Subject) -> None:
    """Report once that images get another size than the model was trained on, or are enlarged a lot, and the option
    that changes it."""
    if subject.given.request.size is not None or not (found := _own_sizes(subject)):
        return
    factor, side, (width, height) = median_low(found)
    trained, used = subject.loaded.image_size, _first_images(subject).shape[-1]
    if trained is not None and trained != used and _runs_on(subject, trained):
        subject.progress.note(
            f"the checkpoint was trained on images of {trained} pixels: give --size {trained}"
        )
    elif factor > _LARGE:
        option = f"if the model was trained on that size, give --size {side}"
        advice = option if _runs_on(subject, side) else "the model does not run at that size"
        subject.progress.note(f"images of {width} x {height} pixels are enlarged {factor:.1f}x; {advice}")
    elif small := [one for one in found if one[0] > _LARGE]:
        factor, _, (width, height) = max(small)
        words = f"enlarged more than {_LARGE}x: {len(small)} of the first {counted(len(found), 'image')}"
        subject.progress.note(f"{words}, one of {width} x {height} pixels {factor:.1f}x")


def _own_sizes(subject: Subject) -> list[tuple[float, int, tuple[int, int]]]:
    """Return the enlargement, short side and size of each image of the first batch; empty if unknown."""
    plan = subject.inputs.preprocessing
    if plan is None or subject.first.prepared is None:
        return []
    height, width = _first_images(subject).shape[-2:]
    found = []
    for number in subject.first.numbers:
        size = upright_size(subject.inputs.files[number])
        place = plan.placement(size, (height, width))
        if place is None:
            return []
        found.append((min(place.scale), min(size), size))
    return found


def _first_images(subject: Subject) -> Tensor:
    return next(tensor for _, tensor in tensors_in(subject.first.args))


def _runs_on(subject: Subject, side: int) -> bool:
    """Tell whether the model runs on an image of this side."""
    images = _first_images(subject)
    with suppress(CannotRunError), HookSession(subject.loaded.module) as session:
        session.run((images.new_zeros(1, images.shape[-3], side, side),))
        return True
    return False


def _sizes(subject: Subject, meant: Preprocessing) -> Iterator[Varied]:
    """Yield the preprocessing of `--size` for the size that the checkpoint states, and for the images' own."""
    loaded, request = subject.loaded, subject.given.request
    own = _own_sizes(subject)
    sides = {loaded.image_size: "trained on", median_low(own)[1] if own else None: "of the images"}
    used = _first_images(subject).shape[-1]
    for side, whose in sides.items():
        if side is not None and side <= _LARGE * used and _runs_on(subject, side):
            sized = replace(request, size=str(side))
            plan = plan_preprocessing(sized, loaded.family, loaded.transforms, loaded.module)
            if plan.words != meant.words:
                yield Varied(f"--size {side}", "resize", f"the size {whose}: {plan.brief}", plan)


def _open(subject: Subject) -> Preprocessing:
    requested, family = subject.given, subject.loaded.family
    if requested.named is not None:
        raise UsageError(
            f"{requested.name} is a named input, but --doctor varies images only", "give images alone"
        )
    if not (requested.request.files or requested.images):
        raise UsageError(f"{requested.name} is not preprocessed, so there is nothing to vary", "give images")
    if family not in _FAMILIES:
        what = f"a model of the family '{family.replace('_', ' ')}' is not a classifier of images"
        raise CannotRunError(what, "leave out --doctor")
    if configured_outputs(subject.loaded.module).has_no_classes:
        message = "the model has no head: its outputs are features, not class scores"
        raise CannotRunError(message, "modelscope summary ...   shows its output")
    subject.open()
    if subject.inputs.preprocessing is None:
        raise UsageError(f"{requested.name} contains tensors, which are not preprocessed", "give images")
    return subject.inputs.preprocessing


def _predict(
    session: HookSession, batch: Batch, tallies: Sequence[PreprocessingSums]
) -> Iterator[tuple[PreprocessingSums, Tensor, Tensor]]:
    """Yield the logits of a batch for every preparation, and those of the first, the intended one."""
    assert batch.prepared is not None
    images = logits = None
    for tally, args in zip(tallies, batch.prepared(one.varied.plan for one in tallies), strict=True):
        outputs = class_scores(session.run(args), batch.n_images).cpu().double()
        if images is None or logits is None:
            if not outputs.isfinite().all():
                message = "the model's logits are NaN or infinite, so there is nothing to compare with"
                raise CannotRunError(message, "modelscope stats ...   shows where they begin")
            images, logits = args[0], outputs
        tally.compare(args[0], images)
        yield tally, outputs, logits


def _varied(meant: Preprocessing, batch: Batch) -> tuple[tuple[Varied, ...], str | None]:
    """Return the variations; those of the size only if the resizing is understood."""
    assert batch.prepared is not None
    if not isinstance(meant.preset, ProcessorPreset):
        return variations(meant), None
    (made,), (written,) = batch.prepared([meant, plain(meant)])
    scale = made.new_tensor(meant.std)[:, None, None]
    is_alike = made.shape == written.shape and bool(((made - written) * scale).abs().max() <= _LEVELS / 255)
    kind = type(meant.preset.own.call).__name__
    left_out = f"crops and resizing: {kind} does more than resize, crop and normalise"
    return variations(meant, is_framed_alike=is_alike), None if is_alike else left_out
