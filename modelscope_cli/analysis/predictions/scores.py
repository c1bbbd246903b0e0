"""Scores of a classifier: the best classes, and the divergence of two outputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import leaves_of, main_leaf
from modelscope_cli.analysis.outputs.target_spec import label_of_class
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.inputs.image import Placement, upright_size
from modelscope_cli.records.naming import with_article
from modelscope_cli.records.predict import Guess, Prediction


def predictions_of(
    answer: ModelOutput,
    n: int,
    categories: Sequence[str] | None,
    batch: Batch,
    first: int,
    activation: str = "softmax",
) -> tuple[Prediction, ...]:
    """Return the `n` best guesses for every image of a batch, or its numbers where they are not scores.

    Args:
        first: number of the batch's first image, its name where it comes from no file.
    """
    names = batch.names or tuple(str(first + number) for number in range(len(answer)))
    if isinstance(answer.main, Vectors):
        rows = zip(names, answer.main.ranges(), answer.main.numbers(), strict=True)
        return tuple(Prediction(name, (), values, numbers) for name, values, numbers in rows)
    guesses = answer.main.guesses(n, categories, activation) or ()
    return tuple(Prediction(name, top) for name, top in zip(names, guesses, strict=False))


def in_files(predictions: tuple[Prediction, ...], batch: Batch, inputs: Inputs) -> tuple[Prediction, ...]:
    """Return the predictions with boxes in pixels of the image files; without files they stay as they are."""
    plan = inputs.preprocessing
    sizes = [t.shape[-2:] for _, t in tensors_in(batch.args) if t.is_floating_point() and t.ndim > 2]
    has_boxes = any(guess.box is not None for prediction in predictions for guess in prediction.top)
    if not has_boxes or plan is None or len(batch.numbers) != len(predictions):
        return predictions
    sizes = sizes if len(sizes) == len(predictions) else sizes[:1] * len(predictions)
    moved = []
    for prediction, number, (height, width) in zip(predictions, batch.numbers, sizes, strict=True):
        place = plan.placement(upright_size(inputs.files[number]), (height, width))
        top = prediction.top if place is None else tuple(_placed(guess, place) for guess in prediction.top)
        moved.append(replace(prediction, top=top))
    return tuple(moved)


def _placed(guess: Guess, place: Placement) -> Guess:
    if guess.box is None:
        return guess
    return replace(guess, box=(*place.point(*guess.box[:2]), *place.point(*guess.box[2:])))


def class_scores(output: Any, n_images: int | None = None) -> Tensor:
    """Return the logits of a classifier's output, `(N, classes)` float32; see `output_kinds.main_leaf`.

    Args:
        n_images: the required number of rows, if known.
    """
    leaves = leaves_of(output)
    # Detection: a dict of boxes for each image, and boxes have two dimensions as well.
    is_detection = isinstance(output, list) and any(isinstance(item, dict) for item in output)
    logits = main_leaf(leaves)[1] if leaves and not is_detection else None
    is_scores = logits is not None and logits.ndim == 2 and logits.shape[1] > 1
    if logits is None or not is_scores or n_images not in (None, len(logits)):
        shape = with_article(type(output).__name__) if logits is None else "x".join(map(str, logits.shape))
        raise CannotRunError(
            f"the model's output is {shape}, not a row of scores for each image: it is not a classifier",
            "modelscope summary ...   shows its output",
        )
    return logits.float()


def probabilities(logits: Tensor, activation: str = "softmax") -> Tensor:
    """Return the scores of all classes, `(N, classes)`: `softmax` of one class an image, `sigmoid` of several
    or none."""
    return logits.softmax(1) if activation == "softmax" else logits.sigmoid()


def top_guesses(
    logits: Tensor, n: int | None, categories: Sequence[str] | None, activation: str = "softmax"
) -> tuple[tuple[Guess, ...], ...]:
    """Return the `n` likeliest classes of every image, likeliest first."""
    best, indices = logits.sort(dim=1, descending=True, stable=True)
    best, indices = best[:, :n], indices[:, :n]
    scores = probabilities(logits, activation).gather(1, indices)
    return tuple(
        tuple(
            Guess(index, label_of_class(index, categories), score, logit)
            for index, score, logit in zip(*row, strict=True)
        )
        for row in zip(indices.tolist(), scores.tolist(), best.tolist(), strict=True)
    )


def same_best(before: Tensor, after: Tensor) -> Tensor:
    """Tell whether a class has the best score in both, `(N, C, ...)` each, up to rounding: several may share it.

    With NaN among the scores, none has it; and none does if all classes share it in one of them.
    """
    after = after.to(before.device)
    is_one_undecided = is_undecided(before) != is_undecided(after)
    return (_best(before) & _best(after)).any(1) & ~is_one_undecided


def is_undecided(scores: Tensor) -> Tensor:
    """Tell whether all classes of `(N, C, ...)` have the same score up to rounding, so that none is predicted."""
    return _best(scores).all(1) & (scores.shape[1] > 1)


def _best(scores: Tensor) -> Tensor:
    top, limits = scores.amax(1, keepdim=True), torch.finfo(scores.dtype)
    return scores >= top - 4 * limits.eps * top.abs().clamp(1, limits.max)


def kl_divergence(before: Tensor, after: Tensor) -> Tensor:
    """Return KL(before || after) of the softmax of two sets of logits, `(N,)`, in nats."""
    log_before, log_after = before.double().log_softmax(1), after.double().log_softmax(1)
    # A class of probability zero adds nothing, whatever its other probability.
    terms = torch.where(log_before.exp() == 0, 0.0, log_before.exp() * (log_before - log_after))
    sums = terms.sum(1)
    return sums.masked_fill(sums < torch.finfo(sums.dtype).eps, 0.0)  # less is the rounding of the terms
