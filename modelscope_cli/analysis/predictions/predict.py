"""`predict`: from a classifier and images to the likeliest classes of each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from modelscope_cli.analysis.predictions.request import check_scoring
from modelscope_cli.analysis.predictions.scores import (
    check_labels,
    name_guesses,
    stream_logits,
    top_guesses,
)
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.inputs.labels import read_labels
from modelscope_cli.records.keywords import Keywords, check_number, spelled_out
from modelscope_cli.records.predict import Prediction, PredictRecord
from modelscope_cli.records.progress import Progress

if TYPE_CHECKING:
    from modelscope_cli.models.request import Model


@spelled_out
def predict(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    top: int = 5,
    labels: str | PathLike[str] | Sequence[str] | None = None,
    scores: str = "softmax",
    threshold: float | None = None,
    temperature: float = 1.0,
    hook: str | Sequence[str] = (),
    each: Callable[[PredictRecord], object] | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[Keywords],
) -> PredictRecord:
    """Return what a classifier says of images: the likeliest classes of each.

    Args:
        model: a name or file as on the command line, a module of yours, or what `load` returned.
        inputs: paths, PIL images, tensors, a `DataLoader`; None for seeded noise of the model's own size.
        top: how many classes an image.
        labels: names of the classes, or a file of them, instead of those of the weights.
        scores: `softmax`, exactly one class an image; `sigmoid`, several classes or none.
        threshold: with `sigmoid`, a class is on from this score; None for 0.5.
        temperature: the logits are divided by this.
        hook: what changes on the way, as `--hook` takes it.
        each: called with a record of every batch as soon as it is known. Nothing of it is kept then, for any
            number of images, and the record that is returned has no predictions.

    Raises:
        UsageError: a keyword or a combination that means nothing (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raised, or is not a classifier, or a file cannot be read
            (exit 4).
    """
    check_number("top", top, 1)
    check_scoring(scores, threshold, temperature)
    names, of_labels = _named(labels)
    subject = Subject("predict", model, inputs, keywords, hook=hook, progress=progress)
    subject.open()
    interventions = subject.bind().interventions
    record = PredictRecord(
        run=subject.run(),
        predictions=(),
        activation=scores,
        temperature=temperature,
        classes=0,
        threshold=(0.5 if threshold is None else threshold) if scores == "sigmoid" else None,
    )
    predictions: list[Prediction] = []
    n_done = 0
    batches = subject.track(subject.inputs, "images")
    for batch, logits in stream_logits(subject.loaded.module, batches, interventions):
        if names is not None:
            check_labels(names, logits.shape[1], of_labels)
        categories = names or subject.loaded.categories
        guesses = top_guesses(logits, top, categories, scores, temperature)
        named = name_guesses(guesses, batch, n_done)
        n_done += len(named)
        record = replace(record, classes=logits.shape[1])
        if each is None:
            predictions += named
        else:
            each(replace(record, predictions=named))
    hooks = subject.conclude()
    return replace(record, run=subject.run(), predictions=tuple(predictions), hooks=hooks)


def _named(labels: str | PathLike[str] | Sequence[str] | None) -> tuple[tuple[str, ...] | None, str]:
    """Return the names of the classes, and what to call them in a message."""
    if labels is None:
        return None, ""
    if isinstance(labels, str | PathLike):
        return read_labels(Path(labels)), f"labels file '{fspath(labels)}'"
    return tuple(labels), "the list of labels"
