"""`predict --doctor`: how far a classifier's predictions hang on the way images are prepared for it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor

from modelscope_cli.analysis.predictions.class_names import ClassNames
from modelscope_cli.analysis.predictions.predict import named_labels
from modelscope_cli.analysis.predictions.scores import check_labels, class_scores
from modelscope_cli.analysis.predictions.tally import FirstBatchNorm, Tally, evidence
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.model_config import configured_outputs, is_published
from modelscope_cli.inputs.preprocess import Preprocessing, Preset, ProcessorPreset
from modelscope_cli.inputs.preprocessing_choice import Varied, plain, plan_preprocessing, variations
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.truth import class_folder
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.keywords import Keywords, spelled_out
from modelscope_cli.records.predict import DoctorRecord, Variation
from modelscope_cli.records.progress import Progress

if TYPE_CHECKING:
    from modelscope_cli.models.request import Model

AS_MEANT, AS_GIVEN = "as meant", "as given"
# Two ways to prepare an image that are one: at most so many of 255 levels apart.
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
    """Prepare images in all the usual wrong ways, one at a time, and return how many predictions change.

    They are held against the preparation that the weights state. Where `size`, `mean`, `std` or `normalize` ask for
    another one, that is a variation, too. Where nobody states one, it is the preparation that would be used.

    Args:
        model: a classifier: a name or file as on the command line, a module of yours, or what `load` returned.
        inputs: paths or PIL images.
        labels: names of the classes, or a file of them, instead of those of the weights. Where the folder of every
            image is called after its class, the accuracy is told, too.

    Raises:
        UsageError: a keyword that means nothing, or inputs that are not images (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raised, or is not a classifier of images, or a file cannot be
            read (exit 4).
    """
    names, of_labels = named_labels(labels)
    subject = Subject("predict", model, inputs, keywords, progress=progress)
    used = _open(subject)
    loaded, request = subject.loaded, subject.given.request
    stated_by, assumed = _stated(loaded)
    options = request.size_options() + request.value_options()
    meant = used if stated_by is None or not options else _own_plan(loaded)
    varied, left_out = _varied(meant, subject.first)
    first = [Varied(AS_MEANT, "meant", meant.words, meant)]
    if meant is not used:
        first.append(Varied(AS_GIVEN, "given", " ".join(options), used))
    norm = FirstBatchNorm(loaded.module)
    tallies = [Tally(one) for one in (*first, *varied)]
    categories = names or loaded.categories or ()
    classes = ClassNames(categories, len(categories))
    n_classes = 0
    with HookSession(loaded.module, [norm], names=norm.names) as session:
        for batch in subject.track(subject.inputs, "images"):
            for tally, logits, as_meant in _predict(session, norm, batch, tallies):
                if names is not None:
                    check_labels(names, logits.shape[1], of_labels)
                n_classes = logits.shape[1]
                tally.add(logits, as_meant, _truth(batch.names, classes))
    subject.conclude()
    rows = [tally.row(norm.module) for tally in tallies]
    return DoctorRecord(
        run=replace(subject.run(), command="predict-doctor"),
        images=subject.inputs.n_images,
        classes=n_classes,
        stated_by=stated_by,
        assumed=assumed,
        meant=meant.words,
        given=" ".join(options) if meant is not used else None,
        variations=(*sorted(rows[1:], key=_damage, reverse=True), rows[0]),
        evidence=evidence(rows),
        left_out=left_out,
    )


def _open(subject: Subject) -> Preprocessing:
    """Open the images, and return how they are prepared.

    Raises:
        UsageError: not images (exit 2).
        CannotRunError: not a model that classifies images, or a file that cannot be read (exit 4).
    """
    given, family = subject.given, subject.loaded.family
    if given.named is not None:
        raise UsageError(
            f"{given.name} is a named input, which the doctor does not vary", "give images alone"
        )
    if not (given.request.files or given.images):
        raise UsageError(f"{given.name} is not prepared, so it cannot be varied", "give images")
    if family not in _FAMILIES:
        what = f"a model of the family '{family.replace('_', ' ')}' is not a classifier of images"
        raise CannotRunError(what, "leave out --doctor")
    if configured_outputs(subject.loaded.module).has_no_classes:
        message = "the model has no head: its outputs are features, not scores of classes"
        raise CannotRunError(message, "modelscope summary ...   shows its output")
    subject.open()
    if subject.inputs.preprocessing is None:
        raise UsageError(f"{given.name} holds tensors, which are not prepared", "give images")
    return subject.inputs.preprocessing


def _damage(row: Variation) -> tuple[int, float]:
    return row.changed, math.inf if math.isnan(row.kl_divergence) else row.kl_divergence


def _predict(
    session: HookSession, norm: FirstBatchNorm, batch: Batch, tallies: Sequence[Tally]
) -> Iterator[tuple[Tally, Tensor, Tensor]]:
    """Yield the logits of a batch for every preparation, and those of the first, which is meant."""
    assert batch.prepared is not None
    images = logits = None
    for tally, args in zip(tallies, batch.prepared(one.varied.plan for one in tallies), strict=True):
        norm.into = tally.entering
        made = class_scores(session.run(args), batch.n_images).double().cpu()
        if images is None or logits is None:
            if not made.isfinite().all():
                message = "the model's logits are NaN or infinite, so there is nothing to compare with"
                raise CannotRunError(message, "modelscope stats ...   shows where they begin")
            images, logits = args[0], made
        tally.compare(args[0], images)
        yield tally, made, logits


def _varied(meant: Preprocessing, batch: Batch) -> tuple[tuple[Varied, ...], str | None]:
    """Return the variations; those of the size only where it is known how the images get theirs."""
    assert batch.prepared is not None
    if not isinstance(meant.preset, ProcessorPreset):
        return variations(meant), None
    (made,), (written,) = batch.prepared([meant, plain(meant)])
    scale = made.new_tensor(meant.std)[:, None, None]
    is_alike = made.shape == written.shape and bool(((made - written) * scale).abs().max() <= _LEVELS / 255)
    kind = type(meant.preset.own.call).__name__
    left_out = f"crops and resizing: {kind} does more than resize, crop and normalise"
    return variations(meant, is_framed_alike=is_alike), None if is_alike else left_out


def _own_plan(loaded: LoadedModel) -> Preprocessing:
    return plan_preprocessing(InputRequest(), loaded.family, loaded.transforms, loaded.module)


def _truth(files: Sequence[str], classes: ClassNames) -> list[int] | None:
    """Return the class of each image by the name of its folder; None where one is not in the folder of a class."""
    found = [classes.labelled(class_folder(file)) for file in files]
    return [indices[0] for indices in found] if all(len(indices) == 1 for indices in found) else None


def _stated(loaded: LoadedModel) -> tuple[str | None, str | None]:
    """Return who states how images are prepared for the weights, else where what is used instead comes from."""
    weights, preset = loaded.info.weights, loaded.transforms
    if loaded.info.source == "zoo":
        says, is_of_others = f"torchvision's preset of the weights of {loaded.info.name}", True
        if weights.origin in ("cache", "download"):
            return f"torchvision's preset of the weights {weights.resolved}", None
    elif isinstance(preset, Preset):
        says, is_of_others = preset.origin, weights.origin == "checkpoint" and is_published(loaded.module)
    else:
        says, is_of_others = "what most models trained on ImageNet expect", True
    if weights.resolved == "random":
        return None, f"{says}; the weights are random"
    return (None, says) if is_of_others else (says, None)
