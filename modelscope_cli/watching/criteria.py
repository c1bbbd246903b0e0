"""The calls of torch's own criteria, in training and in evaluation.

Their arguments show the number of classes, the cost of guessing, the accuracy, and whether the script applies an
activation that the criterion applies, too.
"""

import functools
import inspect
import math
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import add
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from modelscope_cli.devices import widest_float
from modelscope_cli.hooks.fetch import Deferred, fetch
from modelscope_cli.hooks.torch_private import is_transformed, left_alone_by_compiler
from modelscope_cli.records.watch import RANGE, SELF
from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching.contrast import compared_with_itself
from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.hand_written import JOINED, activation_of, out_of_reach
from modelscope_cli.watching.parameters import is_sharded

# The targets of a criterion: the number of a class, or numbers of the same shape.
CLASSES, BINARY, NUMBERS, DIVERGENCE = "classes", "binary", "numbers", "divergence"
ALIGNMENT = "alignment"  # scores for each time step, against a shorter sequence of classes
PICKED = "the cross-entropy with the labels"  # of a loss written by hand
RANKING = "ranking"  # distances or scores that should differ by a margin, which equal ones cost
KINDS = {
    "cross_entropy": CLASSES,
    "nll_loss": CLASSES,
    PICKED: CLASSES,
    "binary_cross_entropy": BINARY,
    "binary_cross_entropy_with_logits": BINARY,
    "mse_loss": NUMBERS,
    "l1_loss": NUMBERS,
    "smooth_l1_loss": NUMBERS,
    "huber_loss": NUMBERS,
    "gaussian_nll_loss": NUMBERS,
    "poisson_nll_loss": NUMBERS,
    "kl_div": DIVERGENCE,
    "ctc_loss": ALIGNMENT,
    "triplet_margin_loss": RANKING,
    "triplet_margin_with_distance_loss": RANKING,
    "margin_ranking_loss": RANKING,
}
_ARGUMENTS = ("input", "log_probs", "anchor", "input1"), ("target", "targets", "negative")
_CLASS_DIM = {"cross_entropy": 1, "nll_loss": 1, "ctc_loss": -1}
_VECTOR = 4  # values of a target: fewer may be a reward, which is nearly random for a long time
_MOST_CLASSES = 4096  # that are counted individually, but for joined scores of a positive and negatives
_MOST_SUMMED = 1 << 20  # values
_MOST_READ, _FEWEST_ROWS = 1 << 15, 64  # values of an input in training, and rows that are read in any case
_SUM, _FAR_FROM = 1e-3, 0.1  # distance of a sum from 1: of probabilities, and of other values
_MOST_PENDING = 256  # calls in evaluation before their sums are fetched


@dataclass(frozen=True, slots=True)
class CriterionKey:
    """A criterion, the line that calls it, and whether it is used for training."""

    name: str
    place: str | None
    is_training: bool


T = TypeVar("T", Tensor, float)


class _Figures(NamedTuple, Generic[T]):
    """Figures of one call, on the device; or their sums over several calls."""

    value: T
    rows: T
    labelled_rows: T
    right: T
    variance: T
    guess: T
    shared: T
    n_other: T  # calls with an input that is not probabilities
    n_negative: T  # calls with a negative value in the input


@dataclass(slots=True)
class CriterionSums:
    """Sums over the calls of one criterion between two steps; results stay on the device until they are fetched."""

    kind: str  # the kind of targets
    is_logits: bool  # whether the input is logits, not probabilities
    n_classes: int | None  # of the logits; None if it compares numbers
    # The activation that computed the input, of `_MADE_BY`, else None; `softmax over dimension 0` if the
    # input sums to 1 over that dimension, not over the classes
    made_by: str | None
    # Of input and target, if they differ and are broadcast
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    is_summed: bool  # whether the loss is a sum over the batch
    is_weighted: bool = False  # whether classes have weights
    smoothing: float = 0.0  # of the labels
    _pending: list[Tensor] = field(default_factory=list)
    _sums: _Figures[float] = field(default_factory=lambda: _Figures(*[0.0] * 9))
    _is_labelled: bool = True
    _labels: Tensor | None = None
    _predictions: Tensor | None = None

    def add(
        self,
        value: Tensor,
        x: Tensor,
        target: Tensor,
        ignored: int | None,
        guess: Tensor | None,
        shared: Tensor | None = None,
    ) -> None:
        """Add one call: its loss as a sum over the rows, and its input and target.

        Args:
            guess: cost of the best constant prediction; see `_best_constant`.
            shared: covariance of prediction and target; see `_shared`.
        """
        with torch.no_grad():
            has_no_labels = self.kind in (ALIGNMENT, RANKING) or target.requires_grad
            x, target = x.detach(), target.detach()
            nothing = value.new_zeros(())
            if self.kind == BINARY:
                limit = 0.0 if self.is_logits else 0.5
                right, rows = self._compare((x > limit).long(), (target > 0.5).long(), None)
                is_label = (target == 0) | (target == 1)  # else probabilities
                labelled_rows = rows * (is_label & x.isfinite()).all()
            elif self.n_classes is None or target.is_floating_point():
                rows = value.new_tensor(float(max(x.shape[0] if x.ndim else 1, 1)))
                right, labelled_rows = nothing, nothing
            else:
                score, predicted = x.max(1 if x.ndim > 1 else 0)
                right, rows = self._compare(predicted, target, ignored)
                labelled_rows = rows * score.isfinite().all()  # NaN predicts nothing; -inf may mask a class
            variance = nothing if self.n_classes is not None else target.float().var(correction=0)
            if has_no_labels or target.numel() < 2:
                variance = nothing + math.nan  # one number has none
            n_other, n_negative = _as_probabilities(x, self.kind)
            figures = _Figures(
                value=value * rows,
                rows=rows,
                labelled_rows=labelled_rows,
                right=right,
                variance=variance * rows,
                guess=(nothing + math.nan if guess is None else guess) * rows,
                shared=(nothing + math.nan if shared is None else shared) * rows,
                n_other=n_other,
                n_negative=n_negative,
            )
            dtype = widest_float(x.device)
            self._pending.append(torch.stack([one.detach().to(x.device, dtype) for one in figures]))
        if len(self._pending) >= _MOST_PENDING:
            self._add_up()

    def _compare(self, predictions: Tensor, target: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
        """Return the number of correct predictions, and the number of labels."""
        is_counted = torch.ne(target, -100 if ignored is None else ignored)
        if self.n_classes is not None and (self.n_classes <= _MOST_CLASSES or self.made_by == JOINED):
            labels = _count(target, is_counted, self.n_classes)
            guesses = _count(predictions, is_counted, self.n_classes)
            self._labels = labels if self._labels is None else self._labels + labels
            self._predictions = guesses if self._predictions is None else self._predictions + guesses
        return ((predictions == target) & is_counted).sum(), is_counted.sum()

    def _add_up(self) -> None:
        for one in fetch(self._pending):
            added = _Figures[float](*one.tolist())
            self._is_labelled &= added.rows == added.labelled_rows
            self._sums = _Figures(*map(add, self._sums, added))
        self._pending = []

    def fetched(self) -> Deferred[None]:
        """Bring the sums to the CPU."""
        counts = [x for x in (self._labels, self._predictions) if x is not None]
        n = len(self._pending)

        def keep(*tensors: Tensor) -> None:
            self._pending[:n] = tensors[:n]
            if counts:
                self._labels, self._predictions = tensors[n:]

        return Deferred((*self._pending, *counts), keep)

    def row(self) -> list[Any]:
        """Return the statistics between two steps, in the order in which `rank_log` reads them."""
        self.fetched()()
        self._add_up()
        sums, rows = self._sums, self._sums.rows
        is_labelled = self._is_labelled and self._labels is not None
        labels = self._labels.tolist() if self._labels is not None and is_labelled else None
        guesses = self._predictions.tolist() if self._predictions is not None and is_labelled else None
        return [
            sums.value / rows if rows else math.nan,  # mean over the rows, in nats for the entropies
            int(rows),  # labels that are not ignored; else rows of the batches
            # Share of rows whose largest score is the label's; None without labels, or of NaN
            sums.right / sums.labelled_rows if sums.labelled_rows and self._is_labelled else None,
            # Of the classes that occur; None if the targets are not classes, or too many
            None if labels is None else [(index, n) for index, n in enumerate(labels) if n],
            # Share of the most frequent prediction
            None if guesses is None else max(guesses) / max(sum(guesses), 1),
            sums.variance / rows if rows and self.n_classes is None else None,  # of numeric targets
            not sums.n_other,  # whether every row of the input is non-negative and sums to 1
            not sums.n_negative,  # whether nothing in the input is negative
            # Cost of the best constant prediction, in the unit of the value; None if unknown
            sums.guess / rows if rows and math.isfinite(sums.guess) else None,
            # Covariance of predictions and targets over the rows, as a share of the variance of the targets
            sums.shared / rows if rows and math.isfinite(sums.shared) else None,
        ]


def _mean_of(value: Tensor, x: Tensor, target: Tensor, ignored: int | None, sums: CriterionSums) -> Tensor:
    """Return a criterion's own mean, else that over the labels that are not ignored, or over the rows."""
    if sums.kind == CLASSES and not target.is_floating_point() and (sums.is_summed or value.ndim):
        return value.sum() / torch.ne(target, -100 if ignored is None else ignored).sum().clamp_min(1)
    return value.mean() / (max(x.shape[0] if x.ndim else 1, 1) if sums.is_summed else 1)


def _as_probabilities(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return 0 if the input is probabilities, else 1; and 1 if any value is negative, else 0."""
    low, high = x.min(), x.max()
    is_unit = (low >= 0) & (high <= 1)
    if kind == CLASSES:
        sums = x.sum(1 if x.ndim > 1 else 0, dtype=torch.float32)
        is_unit = is_unit & ((sums - 1).abs().max() < 1e-2)
    return ~is_unit, low < 0


def _best_constant(name: str, target: Tensor, options: dict[str, Any]) -> Tensor | None:
    """Return the lowest mean loss of one prediction for all samples, the margin for equal distances or scores.

    It has a constant for each output, as for each pixel. The estimate from one batch of n rows is too low by a
    factor of (n - 1) / n, which is corrected. None if unknown, and for targets that a model computes.
    """
    if KINDS[name] == RANKING:
        return torch.tensor(float(options.get("margin", 1.0 if name.startswith("triplet") else 0.0)))
    if target.requires_grad:
        return None
    n, reduction = len(target) if target.ndim else 1, options.get("reduction", "mean")
    if n < 2 or not target.is_floating_point() or (name == "cross_entropy" and target.ndim != 2):
        return None
    with torch.no_grad():
        t = target.detach().float()
        if name == "kl_div":
            t = t.exp() if options.get("log_target") else t
            total = (torch.xlogy(t, t) - torch.xlogy(t, t.mean(0, keepdim=True))).sum()
            cost = total / (n if reduction in ("batchmean", "sum") else t.numel())
        elif name == "cross_entropy":
            cost = -torch.xlogy(t.mean(0), t.mean(0)).sum()
        elif name.startswith("binary") and options.get("weight") is None:
            weight = 1.0 if (given := options.get("pos_weight")) is None else given.detach().float()
            mean = t.mean(0)
            best = weight * mean / (weight * mean + 1 - mean)
            cost = -(weight * torch.xlogy(mean, best) + torch.xlogy(1 - mean, 1 - best)).mean()
        elif name == "mse_loss":
            cost = (t - t[:1]).var(0, correction=0).mean()  # exactly 0 for equal targets
        elif name == "gaussian_nll_loss" and t.numel() == n:  # the best variance is that of the targets
            variance = t.var().clamp_min(float(options.get("eps", 1e-6)))
            constant = 1 + (math.log(2 * math.pi) if options.get("full") else 0.0)
            cost = (variance.log() + constant) / 2 * (n - 1) / n
        elif name in ("l1_loss", "smooth_l1_loss", "huber_loss"):
            off = (t - t.median(0).values).abs()
            width = float(options.get("beta", options.get("delta", 1.0))) if name != "l1_loss" else 0.0
            near = off * off / 2 / (width if name == "smooth_l1_loss" else 1.0) if width else off
            far = off - width / 2 if name == "smooth_l1_loss" else width * (off - width / 2)
            cost = (torch.where(off < width, near, far) if width else off).mean()
        else:
            return None
        if reduction == "sum" and name not in ("kl_div", "cross_entropy"):
            cost = cost * (t.numel() / n)
        return cost * n / (n - 1)


def _shared(kind: str, name: str, x: Tensor, target: Tensor) -> Tensor | None:
    """Return the covariance of predictions and targets over the rows as a share of the variance of the targets.

    It is 0 if predictions are independent of the targets, and the share of explained variance at the least mean
    squared error. None if the targets are not vectors of numbers, or computed by a model.
    """
    if kind == RANKING or target.requires_grad or not target.is_floating_point():
        return None
    if x.shape != target.shape or x.ndim < 2 or len(x) < 2 or x[0].numel() < _VECTOR:
        return None
    with torch.no_grad():
        p = x.detach().float()
        if kind == DIVERGENCE:
            p = p.exp()
        elif kind == CLASSES:
            p = p.softmax(1)
        elif name.endswith("logits"):
            p = p.sigmoid()
        t = target.detach().float()
        off = t - t.mean(0, keepdim=True)
        is_one = (t == t.flatten(1)[:, :1].view(-1, *[1] * (t.ndim - 1))).all()  # patches: real or generated
        return torch.where(is_one, math.nan, (p * off).sum() / (off * off).sum())


def _misplaced(name: str, x: Tensor) -> str | None:
    """Return `softmax over dimension 0` if the input of a criterion sums to 1 over that one, not over the classes.
    Certain, as sums within a thousandth of 1 everywhere cannot occur by chance."""
    class_dim = _CLASS_DIM.get(name)
    if class_dim is None or x.ndim < 2 or x.numel() > _MOST_SUMMED:
        return None
    class_dim %= x.ndim
    with torch.no_grad():
        p = x.detach().float()
        p = p if name == "cross_entropy" else p.exp()
        if bool((p < 0).any()) or not bool(torch.isfinite(p).all()):
            return None
        off = [float((p.sum(dim) - 1).abs().max()) if x.shape[dim] > 1 else math.inf for dim in range(x.ndim)]
    wrong = next((dim for dim in range(x.ndim) if off[dim] < _SUM), class_dim)
    return f"softmax over dimension {wrong}" if wrong != class_dim and off[class_dim] > _FAR_FROM else None


def _some_rows(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return every n-th row of a large input and of its target."""
    has_rows = x.ndim and target.ndim and len(x) == len(target)
    n = max(min(x.numel() // _MOST_READ, len(x) // _FEWEST_ROWS), 1) if has_rows else 1
    return (x[::n], target[::n]) if n > 1 else (x, target)


def _count(labels: Tensor, is_counted: Tensor, n_classes: int) -> Tensor:
    if labels.is_cpu:  # in a tenth of the time
        counted = labels.reshape(-1) if is_counted.all() else labels[is_counted]
        return torch.bincount(counted.clamp(0, n_classes - 1), minlength=n_classes)
    counts = torch.zeros(n_classes, dtype=torch.int64, device=labels.device)
    indices = labels.clamp(0, n_classes - 1).reshape(-1)
    return counts.scatter_add_(0, indices, is_counted.reshape(-1).to(torch.int64))


class CriterionWatch:
    """The sums of every criterion that is called.

    Args:
        is_looking: returns whether criteria of the current step are recorded; those of evaluation always are.
        evaluated: counts a criterion that is not a loss; False if its arguments depend on no model.
        tell: called with the kind and the message of each certain fault.
    """

    def __init__(
        self,
        is_looking: Callable[[], bool],
        evaluated: Callable[[Any], bool],
        tell: Callable[[str, str], object],
    ) -> None:
        self._is_looking, self._evaluated, self._tell = is_looking, evaluated, tell
        # In evaluation and in training, since the last call of `take`
        self._sums: tuple[dict[CriterionKey, CriterionSums], dict[CriterionKey, CriterionSums]] = {}, {}
        self._misplaced: dict[CriterionKey, str | None] = {}

    def take(self, is_training: bool) -> dict[CriterionKey, CriterionSums]:
        """Return the sums since the last call, and reset them."""
        sums = dict(self._sums[is_training])
        self._sums[is_training].clear()
        return sums

    def is_looking(self, value: Any) -> bool:
        """Tell whether a call of a criterion is recorded."""
        is_training = torch.is_grad_enabled() and isinstance(value, Tensor) and value.requires_grad
        return not is_training or self._is_looking()

    def see(self, name: str, x: Any, target: Any, value: Any, options: dict[str, Any]) -> None:
        """Add one call of a criterion, which returned `value`."""
        if not (isinstance(x, Tensor) and isinstance(target, Tensor) and isinstance(value, Tensor)):
            return
        if not x.is_floating_point() or not x.numel() or x.is_meta or is_sharded(x) or is_transformed():
            return
        is_training = torch.is_grad_enabled() and value.requires_grad
        if not is_training and not self._evaluated((x, target)):
            return
        key, ignored = CriterionKey(name, place_of_caller(), is_training), options.get("ignore_index", -100)
        is_new = is_training and key not in self._misplaced
        if is_new and name == "cross_entropy" and (fault := compared_with_itself(x, target)):
            self._tell(SELF, f"{name}: {fault} ({key.place})")
        is_distance = is_new and name.endswith(("mse_loss", "l1_loss", "huber_loss"))
        if is_distance and (fault := out_of_reach(x, target)):
            self._tell(RANGE, f"{fault} ({key.place})")
        if (sums := self._sums_of(key, x, target, options)) is None:
            return
        mean = _mean_of(value.detach(), x, target, ignored, sums)
        if is_training:
            x, target = _some_rows(x, target)
        guess = _best_constant(name, target, options)
        shared = _shared(sums.kind, name, x, target) if is_training else None
        sums.add(mean, x, target, ignored, guess, shared)

    def _sums_of(
        self, key: CriterionKey, x: Tensor, target: Tensor, options: dict[str, Any]
    ) -> CriterionSums | None:
        """Return the sums to which a call is added; None if they are of another model, at the same line."""
        kind, name = KINDS[key.name], key.name
        n_classes = 2 if kind == BINARY else None
        if kind == CLASSES and not target.is_floating_point():
            n_classes = x.shape[1] if x.ndim > 1 else x.shape[0]
        if (sums := self._sums[key.is_training].get(key)) is None:
            is_weighted = not (options.get("weight") is options.get("pos_weight") is None)
            if key not in self._misplaced:
                self._misplaced[key] = _misplaced(name, x) if key.is_training else None
            shapes, made_by = None, self._misplaced[key] or activation_of(x)
            if kind not in (CLASSES, ALIGNMENT, RANKING) and x.shape != target.shape:
                shapes = tuple(x.shape), tuple(target.shape)
            is_summed = options.get("reduction", "mean") == "sum"
            smoothing = options.get("label_smoothing") or 0.0
            is_logits = name.endswith("logits")
            facts = kind, is_logits, n_classes, made_by, shapes, is_summed, is_weighted, smoothing
            sums = self._sums[key.is_training][key] = CriterionSums(*facts)
        return sums if sums.n_classes == n_classes else None


def watched_criteria(watch: CriterionWatch, guard: Callable[..., None]) -> AbstractContextManager[None]:
    """Observe torch's criteria, called as functions or inside their modules, while open.

    Args:
        guard: calls a function so that no error of it reaches the script.
    """

    def see(*call: Any) -> None:
        guard(watch.see, *call)

    originals = {name: getattr(functional, name) for name in KINDS if name != PICKED}
    watched = {name: _watched(name, one, see, watch.is_looking) for name, one in originals.items()}
    return replaced(*[(functional, name, one) for name, one in watched.items()])


def _watched(name: str, original: Any, see: Callable[..., None], is_looking: Callable[[Any], bool]) -> Any:
    """Wrap `original` in a function that passes its arguments and result to `see`.

    TorchScript compiles the source of the wrapped function with the globals of the wrapper, which are therefore
    those of the original.
    """
    signature = inspect.signature(original)

    @left_alone_by_compiler
    def look(value: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling() and is_looking(value):
            arguments = signature.bind(*args, **kwargs).arguments
            x, target = (next((arguments[n] for n in names if n in arguments), None) for names in _ARGUMENTS)
            see(name, x, target, value, arguments)

    def criterion(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        look(value, args, kwargs)
        return value

    left_alone_by_compiler(criterion, with_callees=False)
    with_globals = types.FunctionType(
        criterion.__code__, original.__globals__, name, None, criterion.__closure__
    )
    return functools.wraps(original)(with_globals)
