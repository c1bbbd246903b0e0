"""Whether the scores of images can be judged: not if they are not finite, saturated, or all the same."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.batch_norm import trains_batch_norm
from modelscope_cli.analysis.outputs.classes import ClassScores, PixelScores
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import Scores
from modelscope_cli.analysis.predictions.scores import is_undecided, probabilities
from modelscope_cli.hooks.fetch import Deferred
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import ALIKE, FLAT, NONFINITE, SATURATED, UNDECIDED, Notice
from modelscope_cli.records.stats import LARGE_SCORES


@dataclass(frozen=True, slots=True)
class Degenerate:
    """What is wrong with the scores of some images; several are added."""

    codes: tuple[str, ...] = ()  # of each image the code of a warning, or an empty string

    def __add__(self, other: "Degenerate") -> "Degenerate":
        return Degenerate(self.codes + other.codes)

    def told(self) -> str:
        """Return the code to warn of: if the scores of any image are not finite, or those of all say nothing."""
        return NONFINITE if NONFINITE in self.codes else self.codes[0] if len({*self.codes}) == 1 else ""


_WORDS = {
    NONFINITE: "the scores of {images} are NaN or infinite; modelscope stats shows where that begins",
    UNDECIDED: "the scores are the same for all classes, so the prediction is arbitrary",
    FLAT: "all numbers of the output are the same",
    ALIKE: "the output is the same for all images",
    SATURATED: "the scores are saturated: each probability rounds to 0 or 1, and smaller changes cannot be seen",
}


def message_of(code: str, n_images: int) -> str:
    """Return what a code says of the scores of some images."""
    return _WORDS[code].format(images=counted(n_images, "image"))


def score_std(scores: Tensor) -> Tensor:
    """Return the standard deviation of `(images, classes)` over the classes, root mean square over the images."""
    return scores.detach().float().var(1, correction=0).mean().sqrt()


def too_large(std: float, model: nn.Module, *, is_training: bool) -> tuple[Notice, ...]:
    """Warn of an output with this standard deviation; running statistics may be of other inputs."""
    if not std > LARGE_SCORES or (trains_batch_norm(model) and not is_training):
        return ()
    words = f"the output explodes: its standard deviation is {std:.3g}; over {LARGE_SCORES:g}, class scores"
    effect = "saturate a softmax and multiply the gradients; modelscope help MS206"
    return (Notice("large_scores", f"{words} {effect}"),)


def alike(rows: Tensor, args: Any) -> Tensor:
    """Return whether the rows of all images are the same, though the inputs differ; zero-dimensional."""
    are_alike, n = (rows == rows[:1]).all(), len(rows)
    found = torch.zeros_like(are_alike)
    if n > 1 and (not rows.is_cpu or are_alike):  # an accelerator is not waited for: it compares the inputs
        for tensor in (one for _, one in tensors_in(args) if one.ndim > 1 and len(one) == n):
            found = found | (are_alike & (tensor != tensor[:1]).any().to(rows.device))
    return found


def look_at(answer: ModelOutput, args: Any = (), activation: str | None = None) -> Degenerate:
    """Return what `judged` finds, at once."""
    return judged(answer, args, activation)()


def judged(answer: ModelOutput, args: Any = (), activation: str | None = None) -> Deferred[Degenerate]:
    """Judge the scores of some images, in the dtype that they have.

    They are saturated if every probability rounds to 0 or 1, so that the loss of the prediction rounds to 0,
    undecided if they are the same for all classes up to rounding, and alike if they are the same for images that
    differ. Numbers that are not scores are flat if all are the same.

    Args:
        args: the inputs of the model, to see whether they differ.
        activation: of probabilities; None for that of the output.
    """
    part, n = answer.main, len(answer)
    values = part.tensor().detach()
    rows = values.flatten(1)
    is_nan, is_certain = ~rows.isfinite(), torch.zeros_like(rows, dtype=torch.bool)
    if part.kind == "boxes" or not rows.numel():
        return Deferred(
            (is_nan.any(1),), lambda nan: Degenerate(tuple(NONFINITE * bad for bad in nan.tolist()))
        )
    if isinstance(part, ClassScores | PixelScores):
        has_several = isinstance(part, ClassScores) and (part.has_several or part.n_classes == 1)
        activation = activation or ("sigmoid" if has_several else "softmax")
        is_nan = probabilities(values, activation).isnan()
        if part.ending:  # the scores were made of clamped probabilities
            shares = dict(answer.leaves)[answer.path].detach()
            is_certain = torch.maximum(shares, 1 - shares) == 1
        elif activation == "sigmoid":
            is_certain = values.abs().sigmoid() == 1
        else:
            is_certain = values.log_softmax(1).amax(1) == 0
        is_same = is_undecided(values.to(torch.promote_types(values.dtype, torch.float32)))
    else:
        is_same = (rows.amax(1) == rows.amin(1)) & (rows.shape[1] > 1)
    same = UNDECIDED if isinstance(part, Scores) else FLAT
    is_alike = alike(rows, args).expand(n)

    def words(*found: Tensor) -> Degenerate:
        images = zip(*(one.tolist() for one in found), strict=True)
        codes = (
            NONFINITE * nan or SATURATED * certain or same * undecided or ALIKE * alike
            for nan, certain, undecided, alike in images
        )
        return Degenerate(tuple(codes))

    silent = (
        is_nan.reshape(n, -1).any(1),
        *(one.reshape(n, -1).all(1) for one in (is_certain, is_same)),
        is_alike,
    )
    return Deferred(silent, words)
