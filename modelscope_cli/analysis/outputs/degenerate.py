"""Whether the scores of a model can be judged: not if they are not finite, all the same, or saturated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modelscope_cli.analysis.outputs.classes import ClassScores, PixelScores
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import Scoring
from modelscope_cli.analysis.predictions.scores import probabilities
from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.records.naming import counted, dtype_name
from modelscope_cli.records.run import NONFINITE, SATURATED, UNDECIDED, Notice

_UNSEEN = "changes of a probability that are smaller than its rounding cannot be seen"
_SO = {  # what follows from saturated scores, by command
    "grads": "the loss is zero within rounding, and its gradients say nothing about the model",
    "attack": "the loss has no gradient to follow, and an attack that fails does not prove robustness",
    "predict": "they do not tell how sure the model is",
}


@dataclass(frozen=True, slots=True)
class Degenerate:
    """How many images have scores that cannot be judged."""

    images: int = 0
    nonfinite: int = 0  # a score is NaN
    flat: int = 0  # the same for all classes, or all values of an output without classes
    alike: int = 0  # the same as those of the other images of the batch, which are not the same
    saturated: int = 0  # each probability rounds to 0 or 1, so that the loss of the prediction rounds to 0
    dtype: str = ""  # in which they are
    is_narrow: bool = False  # whether they are not saturated in float32
    other: int | None = None  # the second best class of an image, where the loss of a class has a gradient

    def __add__(self, more: "Degenerate") -> "Degenerate":
        return Degenerate(
            self.images + more.images,
            self.nonfinite + more.nonfinite,
            self.flat + more.flat,
            self.alike + more.alike,
            self.saturated + more.saturated,
            more.dtype,
            more.is_narrow,
            more.other,
        )

    @property
    def code(self) -> str:
        """What is wrong with the scores; empty if they can be judged, at least those of some images."""
        counts = {SATURATED: self.saturated, UNDECIDED: max(self.flat, self.alike)}
        wrong = (code for code, n in counts.items() if n == self.images > 0)
        return NONFINITE if self.nonfinite else next(wrong, "")

    def notices(self, command: str, remedies: Sequence[str] = ()) -> tuple[Notice, ...]:
        """Return the warning of a command, with what to try; none for scores that can be judged."""
        so = _SO.get(command, _UNSEEN)
        same = (
            "all values of the output are the same" if self.flat else "the output is the same for all images"
        )
        words = {
            NONFINITE: f"the scores of {counted(self.nonfinite, 'image')} are NaN or infinite and say nothing; "
            "modelscope stats shows the first layer with such values",
            UNDECIDED: f"{same}, so the prediction is arbitrary; modelscope stats shows which layers are dead",
            SATURATED: f"the scores are saturated: each probability rounds to 0 or 1 in {self.dtype}; {so}",
        }
        tries = f"; try {', or '.join(remedies)}" if remedies else ""
        return (Notice(self.code, words[self.code] + tries),) if self.code else ()


def look_at(answer: ModelOutput, args: Any = (), scoring: Scoring | None = None) -> Degenerate:
    """Judge the scores of some images, in the dtype that they have.

    Args:
        args: the inputs of the model, to see whether different ones have the same scores.
        scoring: of probabilities; None for that of the output.
    """
    part, n = answer.main, len(answer)
    values = part.tensor().detach()
    rows = values.flatten(1)
    if part.kind == "boxes" or not rows.numel():
        return Degenerate(n, nonfinite=int(rows.isnan().any(1).sum()))
    is_narrow, has_other, other = torch.tensor(False), False, torch.tensor(0)
    if isinstance(part, ClassScores | PixelScores):
        has_several = isinstance(part, ClassScores) and (part.has_several or part.n_classes == 1)
        scoring = scoring or Scoring("sigmoid" if has_several else "softmax")
        scores = values / scoring.temperature
        is_nan = probabilities(scores, scoring.activation).isnan()
        if part.ending and scoring.temperature == 1:  # the scores were made of clamped probabilities
            shares = dict(answer.leaves)[answer.path].detach()
            is_certain = torch.maximum(shares, 1 - shares) == 1
        elif scoring.activation == "sigmoid":
            is_certain = scores.abs().sigmoid() == 1
        else:
            is_certain = scores.log_softmax(1).amax(1) == 0
            is_narrow = (scores.float().log_softmax(1).amax(1) < 0).any()
        has_other = part.n_classes > 1 and not part.ending
        if has_other:
            other = values[0].reshape(part.n_classes, -1).mean(1).topk(2).indices[1]
    else:
        values, is_nan, is_certain = rows, ~rows.isfinite(), torch.zeros_like(rows, dtype=torch.bool)
    is_flat = (values.amax(1) == values.amin(1)) & (values.shape[1] > 1)
    found = (
        is_nan.reshape(n, -1).any(1).sum(),
        is_flat.reshape(n, -1).all(1).sum(),
        is_certain.reshape(n, -1).all(1).sum(),
        (rows == rows[:1]).all(),
        is_narrow,
        other,
    )
    n_nan, n_flat, n_certain, is_alike, is_narrow, other = fetch(found)
    return Degenerate(
        n,
        nonfinite=int(n_nan),
        flat=int(n_flat),
        alike=n if n > 1 and is_alike and _differ(args, n) else 0,
        saturated=int(n_certain),
        dtype=dtype_name(rows.dtype),
        is_narrow=bool(is_narrow),
        other=int(other) if has_other else None,
    )


def _differ(args: Any, n: int) -> bool:
    """Return whether the images of a batch are not all the same."""
    images = [tensor for _, tensor in tensors_in(args) if tensor.ndim > 1 and len(tensor) == n]
    return any(bool((tensor != tensor[:1]).any()) for tensor in images)
