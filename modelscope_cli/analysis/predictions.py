"""What a classifier says: scores of its classes, the best of them, and how far two answers lie apart."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.records import Guess


def class_scores(output: Any) -> Tensor:
    """Return the logits in what a model gave, `(N, classes)` float32; of several outputs the first.

    Raises:
        CannotRunError: the model is no classifier (exit 4).
    """
    floats = [tensor for _, tensor in tensors_in(output) if tensor.is_floating_point()]
    if not floats or floats[0].ndim != 2 or floats[0].shape[1] < 2:
        shape = "x".join(map(str, floats[0].shape)) if floats else f"a {type(output).__name__}"
        raise CannotRunError(
            f"the model's output is {shape}, not a row of scores for each image: it is no classifier",
            "modelscope summary MODEL   shows what it gives",
        )
    return floats[0].float()


def probabilities(logits: Tensor, activation: str = "softmax", temperature: float = 1.0) -> Tensor:
    """Return the scores of all classes, `(N, classes)`: `softmax` of one class an image, `sigmoid` of several
    or none; logits are divided by `temperature` first."""
    scaled = logits / temperature
    return scaled.softmax(1) if activation == "softmax" else scaled.sigmoid()


def top_guesses(
    logits: Tensor,
    n: int,
    categories: Sequence[str] | None,
    activation: str = "softmax",
    temperature: float = 1.0,
) -> tuple[tuple[Guess, ...], ...]:
    """Return the `n` likeliest classes of every image, likeliest first."""
    scores, indices = probabilities(logits, activation, temperature).topk(min(n, logits.shape[1]))
    chosen = logits.gather(1, indices)
    return tuple(
        tuple(
            Guess(index, categories[index] if categories and index < len(categories) else None, score, logit)
            for index, score, logit in zip(*row, strict=True)
        )
        for row in zip(indices.tolist(), scores.tolist(), chosen.tolist(), strict=True)
    )


def kl_divergence(before: Tensor, after: Tensor) -> Tensor:
    """Return KL(before || after) of the softmax of two sets of logits, `(N,)`, in nats."""
    log_before, log_after = before.double().log_softmax(1), after.double().log_softmax(1)
    # A class of probability zero adds nothing, whatever the other answer says of it.
    terms = torch.where(log_before.exp() > 0, log_before.exp() * (log_before - log_after), 0.0)
    return terms.sum(1).clamp_min(0.0)
