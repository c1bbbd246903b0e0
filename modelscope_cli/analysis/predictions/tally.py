"""What becomes of the predictions for images that are prepared in several ways, batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from modelscope_cli.analysis.activations.batch_norm import channel_statistics, is_fresh
from modelscope_cli.analysis.predictions.scores import kl_divergence
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.inputs.preprocessing_choice import Varied
from modelscope_cli.records.predict import PreparationEvidence, Variation

# A value of a prepared image that differs by less is the same: a level of 255 is ten times as much, or more.
_SAME = 1e-3
# What a preparation has to be ahead by to be named. Over trainings tried for this, 18 images prepared as for the
# training had a misfit of 0.08 nats at most, and with another mean and std of 0.4 or more; of one image it is
# up to 2 whatever its preparation, so another one has to fit four times better.
_MORE_ACCURATE, _MISFIT, _FITS_BETTER = 0.05, 0.2, 0.25
# How an image is cropped and resized hardly shows in the mean and variance of a whole channel.
_OF_VALUES = ("meant", "given", "values", "channels")


@dataclass(slots=True)
class Sums:
    """Mean and variance of each channel of what goes into a batch norm, of each batch."""

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
    """Looks at what goes into the batch norm that is called first; there is none where all are as they were made.

    Attributes:
        names: of the layers that may be the first.
        module: the first, once a pass went through it.
        into: takes what goes into it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = frozenset(
            name
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.running_var is not None and not is_fresh(module)
        )
        self.module: _BatchNorm | None = None
        self.into = Sums()

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.module is None and isinstance(module, _BatchNorm):
            self.module = module
        if module is self.module and call.index == 0:
            self.into.add(args[0] if args else kwargs["input"])


class Tally:
    """Sums over the images of one preparation.

    Attributes:
        entering: what goes into the first batch norm.
    """

    def __init__(self, varied: Varied) -> None:
        self.varied = varied
        self.entering = Sums()
        self._n = 0
        self._n_affected = 0
        self._sums = torch.zeros(5, dtype=torch.float64)
        self._predicted: set[int] = set()
        self._is_judged = True

    def add(self, logits: Tensor, meant: Tensor, truth: Sequence[int] | None) -> None:
        """Take a batch: its logits and what they are as meant, `(N, classes)` float64 on the CPU.

        Args:
            truth: the class of each image; None where nobody knows.
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
        """Count the images of a batch, `(N, C, H, W)`, that are not what they are as meant."""
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
    """Return what speaks for another preparation than the first row's, the strongest kind first."""
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
