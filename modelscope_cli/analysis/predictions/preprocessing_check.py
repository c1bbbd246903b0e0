"""`predict --doctor`: how far predictions depend on the preprocessing of images."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from modelscope_cli.analysis.activations.batch_norm import channel_statistics, is_fresh
from modelscope_cli.analysis.predictions.metrics import ClassNames
from modelscope_cli.analysis.predictions.predict import named_labels
from modelscope_cli.analysis.predictions.scores import check_labels, class_scores, kl_divergence
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.model_config import configured_outputs, is_published
from modelscope_cli.inputs.preprocess import Preprocessing, Preset, ProcessorPreset
from modelscope_cli.inputs.preprocessing_choice import Varied, plain, plan_preprocessing, variations
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.truth import class_folder
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model
from modelscope_cli.records.keywords import Keywords, spelled_out
from modelscope_cli.records.predict import DoctorRecord, PreparationEvidence, Variation
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Args, Kwargs

# Differences of prepared values below this are ignored: one level of 255 is ten times as much, or more.
_SAME = 1e-3
# How much better a preparation must be to be named. In trial trainings 18 images prepared as for the training had
# a misfit of 0.08 nats at most, and with another mean and std of 0.4 or more; of one image it is up to 2 for any
# preparation, so another one has to fit four times better.
_MORE_ACCURATE, _MISFIT, _FITS_BETTER = 0.05, 0.2, 0.25
# Cropping and resizing hardly change the mean and variance of a whole channel.
_OF_VALUES = ("meant", "given", "values", "channels")


@dataclass(slots=True)
class BatchNormInputs:
    """Mean and variance of each channel of the inputs of a batch norm, of each batch."""

    counts: list[int] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    variances: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> None:
        variance, mean = channel_statistics(x)
        self.counts.append(x.numel() // x.shape[1])
        self.means.append(mean)
        self.variances.append(variance)

    def misfit(self, norm: _BatchNorm) -> float:
        """Return KL(these || running statistics) of normal distributions: the mean over channels, in nats.

        `log(r / s) + (s^2 + d^2) / 2 r^2 - 1/2`, with the variances `s^2` and `r^2` and the means `d` apart.
        """
        assert norm.running_mean is not None
        assert norm.running_var is not None
        counts = torch.tensor(self.counts, dtype=torch.float64)[:, None] / sum(self.counts)
        means, variances = (torch.stack(one).double().cpu() for one in (self.means, self.variances))
        mean = (counts * means).sum(0)
        variance = (counts * (variances + (means - mean).square())).sum(0) + norm.eps
        gap = mean - norm.running_mean.double().cpu()
        running = norm.running_var.double().cpu() + norm.eps
        return float(0.5 * ((running / variance).log() + (variance + gap.square()) / running - 1).mean())


class FirstBatchNorm(Observer):
    """Observes the inputs of the batch norm that is called first; fresh ones are ignored."""

    def __init__(self, model: nn.Module) -> None:
        # Names of the layers that may be the first
        self.names = frozenset(
            name
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.running_var is not None and not is_fresh(module)
        )
        self.module: _BatchNorm | None = None  # the first, set by the first pass
        self.into = BatchNormInputs()  # collects its inputs

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if self.module is None and isinstance(module, _BatchNorm):
            self.module = module
        if module is self.module and call.index == 0:
            self.into.add(args[0] if args else kwargs["input"])


class PreprocessingSums:
    """Sums over the images of one preparation."""

    def __init__(self, varied: Varied) -> None:
        self.varied = varied
        self.entering = BatchNormInputs()  # the inputs of the first batch norm
        self._n = 0
        self._n_affected = 0
        self._sums = torch.zeros(5, dtype=torch.float64)
        self._predicted: set[int] = set()
        self._is_judged = True

    def add(self, logits: Tensor, meant: Tensor, truth: Sequence[int] | None) -> None:
        """Add a batch: its logits and those of the intended preparation, `(N, classes)` float64 on the CPU.

        Args:
            truth: the class of each image; None if unknown.
        """
        predicted, before = logits.argmax(1), meant.argmax(1)
        p, p_meant = logits.softmax(1), meant.softmax(1)
        columns = (
            (predicted != before) | ~logits.isfinite().all(1),
            (p - p_meant).gather(1, before[:, None])[:, 0].abs(),
            kl_divergence(meant, logits),
            p.amax(1),
            predicted == torch.tensor(truth) if truth is not None else torch.zeros(len(logits)),
        )
        self._is_judged = self._is_judged and truth is not None
        self._sums += torch.stack([column.double().sum() for column in columns])
        self._predicted.update(predicted.tolist())
        self._n += len(logits)

    def compare(self, images: Tensor, meant: Tensor) -> None:
        """Count the images of a batch, `(N, C, H, W)`, that differ from the intended preparation."""
        is_alike = images.shape == meant.shape
        gaps = (images - meant).abs().flatten(1).amax(1) > _SAME if is_alike else torch.ones(len(images))
        self._n_affected += int(gaps.sum())

    def row(self, norm: _BatchNorm | None) -> Variation:
        """Return the means. `norm`: the first batch norm, if there is one."""
        changed, change, kl, top, right = self._sums.tolist()
        return Variation(
            name=self.varied.name,
            kind=self.varied.kind,
            what=self.varied.what,
            affected=self._n_affected,
            changed=int(changed),
            probability_change=change / self._n,
            kl_divergence=kl / self._n,
            top_probability=top / self._n,
            predicted_classes=len(self._predicted),
            misfit=self.entering.misfit(norm) if norm is not None else None,
            accuracy=right / self._n if self._is_judged else None,
        )


def evidence(rows: Sequence[Variation]) -> tuple[PreparationEvidence, ...]:
    """Return the evidence for another preparation than the first row's, the strongest kind first."""
    meant, *others = rows
    found = []
    right = [(row.accuracy, row) for row in others if row.accuracy is not None]
    if right and meant.accuracy is not None:
        accuracy, row = max(right, key=lambda pair: pair[0])
        if accuracy > meant.accuracy + _MORE_ACCURATE:
            found.append(PreparationEvidence("accuracy", row.name, accuracy, meant.accuracy))
    of_values = [row for row in others if row.kind in _OF_VALUES]
    fitting = [(row.misfit, row) for row in of_values if row.misfit is not None]
    if fitting and meant.misfit is not None and meant.misfit > _MISFIT:
        misfit, row = min(fitting, key=lambda pair: pair[0])
        if misfit < meant.misfit * _FITS_BETTER:
            found.append(PreparationEvidence("batch norm", row.name, misfit, meant.misfit))
    return tuple(found)


AS_MEANT, AS_GIVEN = "reference", "as given"
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

    The reference is the preprocessing that the weights specify, or else the one that would be used. Other values of
    `size`, `mean` or `std` are a variation, too.

    Args:
        model: a classifier: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths or PIL images.
        labels: names of the classes, or a file of them, instead of those of the weights. If every image is in a
            folder with the name of its class, the record has the accuracy, too.

    Raises:
        UsageError: a keyword that is not valid, or inputs that are not images (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error, or is not a classifier of images, or a file
            cannot be read (exit 4).
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
    tallies = [PreprocessingSums(one) for one in (*first, *varied)]
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
    requested, family = subject.given, subject.loaded.family
    if requested.named is not None:
        raise UsageError(
            f"{requested.name} is a named input, and --doctor varies images only", "give images alone"
        )
    if not (requested.request.files or requested.images):
        raise UsageError(f"{requested.name} is not preprocessed, so there is nothing to vary", "give images")
    if family not in _FAMILIES:
        what = f"a model of the family '{family.replace('_', ' ')}' is not a classifier of images"
        raise CannotRunError(what, "leave out --doctor")
    if configured_outputs(subject.loaded.module).has_no_classes:
        message = "the model has no head: its outputs are features, not scores of classes"
        raise CannotRunError(message, "modelscope summary ...   shows its output")
    subject.open()
    if subject.inputs.preprocessing is None:
        raise UsageError(f"{requested.name} contains tensors, which are not preprocessed", "give images")
    return subject.inputs.preprocessing


def _damage(row: Variation) -> tuple[int, float]:
    return row.changed, math.inf if math.isnan(row.kl_divergence) else row.kl_divergence


def _predict(
    session: HookSession, norm: FirstBatchNorm, batch: Batch, tallies: Sequence[PreprocessingSums]
) -> Iterator[tuple[PreprocessingSums, Tensor, Tensor]]:
    """Yield the logits of a batch for every preparation, and those of the first, the intended one."""
    assert batch.prepared is not None
    images = logits = None
    for tally, args in zip(tallies, batch.prepared(one.varied.plan for one in tallies), strict=True):
        norm.into = tally.entering
        outputs = class_scores(session.run(args), batch.n_images).double().cpu()
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


def _own_plan(loaded: LoadedModel) -> Preprocessing:
    return plan_preprocessing(InputRequest(), loaded.family, loaded.transforms, loaded.module)


def _truth(files: Sequence[str], classes: ClassNames) -> list[int] | None:
    """Return the class of each image by the name of its folder; None where one is not in the folder of a class."""
    matches = [classes.labelled(class_folder(file)) for file in files]
    return [indices[0] for indices in matches] if all(len(indices) == 1 for indices in matches) else None


def _stated(loaded: LoadedModel) -> tuple[str | None, str | None]:
    """Return the source of the preprocessing stated for the weights, else that of the one assumed."""
    weights, preset = loaded.info.weights, loaded.transforms
    if loaded.info.source == "zoo":
        says, is_of_others = f"torchvision's preset of the weights of {loaded.info.name}", True
        if weights.origin in ("cache", "download"):
            return f"torchvision's preset of the weights {weights.resolved}", None
    elif isinstance(preset, Preset):
        says, is_of_others = preset.origin, weights.origin == "checkpoint" and is_published(loaded.module)
    else:
        says, is_of_others = "the usual ImageNet preprocessing", True
    if weights.resolved == "random":
        return None, f"{says}; the weights are random"
    return (None, says) if is_of_others else (says, None)
