"""`predict`: the likeliest classes of images, or their best boxes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Unpack

from torch import Tensor

from modelscope_cli.analysis.blocks.blocks import Blocks
from modelscope_cli.analysis.health.lost_signal import HARDLY, has_zero_weights
from modelscope_cli.analysis.outputs.classes import ClassScores
from modelscope_cli.analysis.outputs.degenerate import Degenerate, look_at
from modelscope_cli.analysis.outputs.model_output import MAY_BE_LABELS, MAY_BE_NUMBERS, ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import last_name
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.analysis.predictions.folder_truth import (
    EQUAL,
    NAN,
    Guessed,
    guessed_classes,
    tell_no_truth,
)
from modelscope_cli.analysis.predictions.ground_truth import Evaluator
from modelscope_cli.analysis.predictions.metrics import EvaluatedBatch, pictures_of
from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
from modelscope_cli.analysis.predictions.scores import in_files, predictions_of
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.inputs.noise import IMAGES, texts_of
from modelscope_cli.inputs.truth import AUTO, NONE, GivenTruth, read_truth
from modelscope_cli.models.request import Model
from modelscope_cli.records.keywords import OutputBlockKeywords, block_keywords, spelled_out
from modelscope_cli.records.predict import DrawnMap, PredictedImages, Prediction, PredictRecord
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.refusals import check_range, check_word
from modelscope_cli.records.run import NONFINITE, UNDECIDED
from modelscope_cli.records.stats import LARGE_SCORES

MOST_DRAWN = 16  # images whose maps are kept and drawn


@spelled_out
def predict(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    top: int | None = None,
    scores: str = "auto",
    threshold: float | None = None,
    truth: Any = AUTO,
    hook: str | Sequence[str] = (),
    each: Callable[[PredictRecord], object] | None = None,
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[OutputBlockKeywords],
) -> PredictRecord:
    """Return the predictions for images: the likeliest classes of each image or pixel, the best boxes, or numbers.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise of
            the model's input size.
        top: how many classes or boxes to print per image: by default 5, or 1 for several images.
        scores: softmax: exactly one class per image; the scores sum to 1. sigmoid: several classes or none, each
            scored independently. auto: sigmoid if the model or the truth has several, else softmax.
        threshold: with sigmoid, the score from which a class counts as predicted; 0.5 by default.
        truth: compare the predictions with the truth. folders: each folder has the name of a class, a label or an
            index; auto does so if all folders are labels. FILE: lines of image,class or JSON {image: class}; with
            several labels image,class|class. In Python also a mapping, or a list in image order, of labels (in any
            case), indices, or lists of these for several labels. The record then has no predictions, except with
            auto.
        hook: changes to values during the pass, in the syntax of `--hook`.
        each: called with the record of each batch as it is predicted. Without `out` the returned record then has no
            predictions, so that memory does not grow with the number of images.
        out: folder that gets every finished block of image files, so that `resume` can continue; `record.save(out)`
            adds the report. `force` allows one that is not empty.

    Raises:
        UsageError: a keyword or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error, or predicts nothing, or a file cannot be read
            (exit 4).
    """
    _check_scoring(scores, threshold, top)
    blocks = Blocks(out, force=force, **block_keywords(keywords))
    given_truth = None if truth is None or (isinstance(truth, str) and truth == NONE) else read_truth(truth)
    subject = Subject(
        "predict",
        model,
        inputs,
        keywords,
        hook=hook,
        labels=keywords.get("labels"),
        needs_weights=given_truth is not None and not given_truth.is_auto,
        progress=progress,
    )
    categories, limits = subject.loaded.categories, {"sigmoid": 0.5 if threshold is None else threshold}
    given_truth = given_truth and given_truth.taken_apart(categories)
    names = subject.labels
    _compare_with(names, subject)
    subject.open()
    activation = _activation(scores, given_truth, subject.progress)
    interventions = subject.bind().interventions
    record = PredictRecord(subject.run(), (), activation=activation, classes=0)
    reader = OutputReader.of(subject.loaded)
    n_done, judge = 0, None
    if given_truth is not None and given_truth.may_hold(subject.inputs.files, categories, activation):
        judge = Evaluator(given_truth, subject, categories, limits["sigmoid"])

    def see(batch: Batch) -> Predicted:
        nonlocal n_done
        answer = reader.read(session.run(batch.args), batch.args, batch.n_images).settled()
        answer = _as_predictions(answer, subject, scores, activation, has_truth=judge is not None)
        own = "sigmoid" if scores == "auto" and getattr(answer.main, "has_several", False) else activation
        _check_scoring(own, threshold)
        subject.check_labels(answer.n_named, unit=answer.named)
        has_rows = judge is None or judge.truth.is_auto or each is not None
        is_of_one = (answer.kind, own) == ("classes", "softmax")
        most = top or (1 if is_of_one and subject.inputs.n_listed > 1 else 5)
        first, n_done = n_done, n_done + len(answer)
        rows = predictions_of(answer, most, categories, batch, first, own) if has_rows else ()
        return Predicted(
            answer.kind,
            answer.main.n_classes or 0,
            answer.note,
            in_files(rows, batch, subject.inputs),
            judge.look(answer, batch, first, own) if judge is not None else None,
            look_at(answer, batch.args, own),
            _maps_of(answer, batch, MOST_DRAWN - first) if first < MOST_DRAWN else (),
            own,
        )

    settings = {"top": top, "scores": activation, "threshold": threshold}
    options = {**settings, "labels": names, "truth": judge.words_sha256() if judge is not None else None}
    predictions, maps, guessed, degenerate = list[Prediction](), list[Tensor](), Guessed(), Degenerate()
    with (
        blocks.begin(subject, options, "--hook counts its changes over all batches" if hook else ""),
        HookSession(subject.loaded.module, interventions=interventions) as session,
    ):
        for part in blocks.over("images", see, Predicted):
            if not degenerate.codes:  # the first
                _tell(part, subject)
            degenerate += part.degenerate
            guessed.update(guessed_classes(subject.inputs.files, part.predictions))
            record = replace(record, output=part.output, classes=part.classes or len(categories or ()))
            record = replace(record, activation=part.activation, threshold=limits.get(part.activation))
            maps += part.maps[: MOST_DRAWN - len(maps)]
            if judge is not None and part.judged is not None:
                judge.add(part.judged, part.activation)
            if each is not None:
                each(replace(record, predictions=part.predictions))
            if each is None or blocks.out is not None:
                predictions += part.predictions
    hooks = subject.conclude()
    subject.warn(judge.warnings() if judge is not None else ())
    _tell_of_all(
        subject, record, predictions, degenerate, guessed, has_truth=judge is not None or given_truth is None
    )
    report, worst = (None, []) if judge is None or degenerate.told() == UNDECIDED else judge.report()
    return replace(record, run=subject.run(), predictions=tuple(predictions), hooks=hooks, truth=report).keep(
        PredictedImages(partial(_to_draw, subject.inputs, maps), partial(_worst_of, subject.inputs, worst))
    )


def _check_scoring(scores: str, threshold: float | None, top: int | None = None) -> None:
    """Refuse values out of bounds, and a threshold with softmax."""
    check_word("scores", scores, ("auto", "softmax", "sigmoid"))
    check_range("threshold", threshold, least=0, most=1)
    check_range("top", top, least=1)
    if threshold is not None and scores == "softmax":
        raise UsageError(f"'--threshold {threshold:g}' needs sigmoid scores", "--scores sigmoid")


def _activation(scores: str, truth: GivenTruth | None, progress: Progress) -> str:
    """Return `softmax` or `sigmoid`: as requested, or by the truth; an output of its own kind comes before both."""
    if scores == "auto" and truth is not None and truth.has_several:
        progress.note(f"score: sigmoid, because images of {truth.name} have several classes")
        return "sigmoid"
    return "softmax" if scores == "auto" else scores


def _maps_of(answer: ModelOutput, batch: Batch, most: int) -> tuple[Tensor, ...]:
    """Return the maps of the first images of a batch; see `OutputPart.drawn`."""
    sizes = (tensor.shape[2:] for _, tensor in tensors_in(batch.args) if tensor.is_floating_point())
    maps = answer.main.drawn(next(sizes, ()), most)
    return () if maps is None else tuple(maps)


def _to_draw(inputs: Inputs, maps: Sequence[Tensor]) -> tuple[DrawnMap, ...]:
    """Return the maps of the first images with their images, which are read again."""
    if not maps:
        return ()
    pictures = pictures_of(inputs, range(len(maps)))
    names = [file.name for file in inputs.files] or [str(n) for n in range(len(maps))]
    return tuple(DrawnMap(names[n], pictures.get(n), one) for n, one in enumerate(maps))


def _worst_of(inputs: Inputs, numbers: Sequence[int]) -> tuple[Tensor, ...]:
    """Return these images as the model saw them; they are read again."""
    return tuple(pictures_of(inputs, numbers).values()) if numbers else ()


def _tell(part: "Predicted", subject: Subject) -> None:
    """Report the size of the images, and how the output was read."""
    tell_of_size(subject)
    if part.note is not None:
        subject.progress.note(part.note)


def _tell_of_all(
    subject: Subject,
    record: PredictRecord,
    predictions: list[Prediction],
    degenerate: Degenerate,
    guessed: Guessed,
    *,
    has_truth: bool,
) -> None:
    """Report what an accuracy of class folders is or lacks, and scores that say nothing."""
    if not has_truth:
        is_equal = degenerate.told() == UNDECIDED
        is_of_one = (record.output, record.activation) == ("classes", "softmax") and not is_equal
        is_nan = {*degenerate.codes} == {NONFINITE}
        what = EQUAL if is_equal else NAN if is_nan else "accuracy: not computed"
        tell_no_truth(subject, record.classes, what, guessed=guessed if is_of_one else None)
    best = [index for _, index in guessed.elements()]
    is_one = record.output == "classes" and len({*best}) == 1
    if is_one and len(best) == 1:  # not for every image: the model runs twice more
        is_large = any(abs(one.top[0].logit or 0.0) > LARGE_SCORES for one in predictions)
        is_one = is_large or has_zero_weights(subject.loaded.module)
    subject.tell_if_degenerate(degenerate, best, least=HARDLY if is_one else None)


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predictions for a batch, and their evaluation."""

    # output, classes: kind of output and number of classes
    output: str
    classes: int
    note: str | None  # how the output was read
    predictions: tuple[Prediction, ...]
    judged: EvaluatedBatch | None
    degenerate: Degenerate
    maps: tuple[Tensor, ...] = ()  # of the first images, see `OutputPart.drawn`
    activation: str = "softmax"


def _compare_with(names: tuple[str, ...] | None, subject: Subject) -> None:
    """Give the names of the classes as texts to a model that compares images with them."""
    given, loaded = subject.given, subject.loaded
    images: list[Any] = [*given.images] or [*given.request.files]
    if names is None or not images:
        return
    texts = texts_of(loaded.module, names)
    if texts is not None:
        named = {IMAGES: images, **texts}
        subject.given = replace(given, request=replace(given.request, files=()), images=(), named=named)


def _as_predictions(
    answer: ModelOutput, subject: Subject, scores: str, activation: str, *, has_truth: bool
) -> ModelOutput:
    """Return an output as predictions; one value per image is a class that is on or off if `scores` is sigmoid."""
    is_known = has_truth or (answer.why == MAY_BE_LABELS and "sigmoid" in (scores, activation))
    if is_known and answer.why in (MAY_BE_NUMBERS, MAY_BE_LABELS):
        answer = replace(answer, why="")
    main = answer.main
    has_texts = subject.given.named is not None
    if last_name(answer.path) == "logits_per_image" and not has_texts:
        message = "the model compares images with texts, but no text is given"
        raise CannotRunError(message, "--labels 'a cat,a dog'   compares the images with these texts")
    if activation == "sigmoid" and getattr(main, "ending", "") == "softmax":
        message = "the scores of the model sum to 1, so they are not of independent classes"
        raise CannotRunError(message, f"leave out {'--truth' if scores == 'auto' else '--scores sigmoid'}")
    if isinstance(main, Vectors) and main.is_one_value and scores == "sigmoid":
        return replace(answer, main=ClassScores(main.values.reshape(len(main), 1), has_several=True))
    return answer
