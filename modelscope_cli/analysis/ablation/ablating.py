"""Replace the output of every selected call, or each of its channels, in turn and compare the model's outputs."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from modelscope_cli.analysis.ablation.partial_rerun import Holdings, Replay, took_another_way
from modelscope_cli.analysis.outputs.degenerate import Degenerate, look_at
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.output_kinds import FollowedScore
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import (
    PREDICTED,
    THE_PREDICTED,
    TargetSpec,
    label_of_class,
    name_class,
)
from modelscope_cli.analysis.predictions.folder_truth import RightPredictions
from modelscope_cli.analysis.predictions.scores import is_undecided, predictions_of
from modelscope_cli.analysis.supported import check_output
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import ChannelFinder, cloned, tensors_in
from modelscope_cli.hooks.random_states import RandomState
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.hooks.torch_private import leaves_of, map_leaves
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.interrupts import deferred
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.ablate import Ablation, Baseline
from modelscope_cli.records.naming import counted
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.progress import SILENT, Progress, spell_time
from modelscope_cli.records.run import Notice, Share


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call whose output can be replaced."""

    call: Call
    channel_dims: tuple[int, ...]  # the channel dimension of each replaceable tensor of its output
    n_channels: int  # number of channels of the first of these tensors
    shape: torch.Size  # of this tensor
    is_block: bool  # whether layers run inside it, and its input has this shape, too


class CandidateFinder(Observer):
    """Collects the selected calls whose output can be replaced, in the order in which they finish."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.is_for_all = selection.is_innermost_only  # no layers are named
        self.look()

    def look(self) -> None:
        """Start to observe, with an empty list."""
        self.found: list[Candidate] = []  # the candidates of the last observed pass
        self.is_looking = True  # whether passes are observed
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if not self.is_looking:
            return
        self._channels.see(module, output)
        if self.is_for_all and isinstance(module, _DropoutNd) and not module.training:
            return  # that of the layer before
        tensors = [leaf for leaf in leaves_of(output) if is_replaceable(leaf)]
        if tensors and self._selection.means(call.name, call.index, is_innermost):
            # Never None with two dimensions or more.
            channel_dims = (self._channels.find(module, tensor) for tensor in tensors)
            dims = tuple(dim for dim in channel_dims if dim is not None)
            shape = tensors[0].shape
            is_block = not is_innermost and any(tensor.shape == shape for _, tensor in tensors_in(inputs))
            self.found.append(Candidate(call, dims, shape[dims[0]], shape, is_block))


_CONSTANT = 1e-3  # of the range of the scores over the images, up to which they are the same for all


@dataclass(slots=True)
class Effect:
    """The effect of one ablation, summed over images."""

    candidate: Candidate
    channel: int | None  # the replaced channel; None for all of them
    n_images: int = 0  # number of images compared
    divergences: list[Tensor] = field(default_factory=list)  # of each batch, `(N,)`
    # Of the images compared, the scores of the first before and after, and how far others are from these at most
    _firsts: list[Tensor] = field(default_factory=list)
    _ranges: Sequence[float] = (0.0, 0.0)
    _sums: dict[str, float] = field(default_factory=dict)
    _answers: Counter[int | None] = field(default_factory=Counter)
    _has_changed: bool = False
    _right: RightPredictions = field(default_factory=RightPredictions)

    def add(
        self, before: ModelOutput, after: ModelOutput, followed: FollowedScore, truth: Tensor | None
    ) -> None:
        """Add the difference between the outputs for some images before and after the ablation, on the CPU."""
        changed = before.scores.changed(after.scores)
        figures = {
            "change": followed.score(after.main).double() - followed.score(before.main).double(),
            "divergence": before.scores.divergence(after.scores),
            "distance": before.scores.difference(after.scores).norm(dim=1),
            "changed": changed,
        }
        if followed.probability is not None:
            figures["probability"] = followed.probability(after.main)
        self.divergences.append(figures["divergence"].double())
        pair = [before.scores.tensor(), after.scores.tensor()]
        self._firsts = self._firsts or [scores[:1] for scores in pair]
        if pair[0].ndim == 2:
            gaps = (scores.sub(one).abs().max() for scores, one in zip(pair, self._firsts, strict=True))
            self._ranges = tuple(map(max, self._ranges, map(float, gaps)))
        for name, figure in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(figure.double().sum())
        self._has_changed |= bool(changed.any())
        undecided = is_undecided(after.scores.tensor()).reshape(len(after), -1).all(1).tolist()
        answers = zip(after.scores.best_classes(), undecided, strict=True)
        self._answers.update(None if is_none else answer for answer, is_none in answers)
        self._right.add(after.scores.tensor(), truth)
        self.n_images += len(after)

    def to_row(self, categories: Sequence[str] | None, before: Share | None) -> Ablation:
        """`before`: the accuracy of the intact model."""
        accuracy = self._right.share()
        means = {name: total / self.n_images for name, total in self._sums.items()}
        ((answer, n_answers),) = self._answers.most_common(1)
        rounding = 1e-6 * float(self._firsts[0].abs().max())
        return Ablation(
            **self.candidate.call.fields,
            channel=self.channel,
            target_logit_change=_finite(means["change"]),
            target_probability=_finite(means.get("probability")),
            prediction_changed=self._has_changed,
            changed_fraction=means["changed"],
            kl_divergence=_finite(means["divergence"]),
            output_l2=_finite(means["distance"]),
            answer_index=answer,
            answer_label=None if answer is None else label_of_class(answer, categories),
            accuracy=accuracy,
            accuracy_drop=before.value - accuracy.value if before and accuracy else None,
            answer_fraction=n_answers / self.n_images,
            is_constant=self._ranges[1] <= _CONSTANT * self._ranges[0] and self._ranges[0] > rounding,
        )


def _is_within_noise(gaps: Tensor) -> bool:
    """Tell whether the mean of differences, one an image, is within two standard errors of zero."""
    return len(gaps) > 1 and bool(gaps.mean().abs() <= 2 * gaps.std() / math.sqrt(len(gaps)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rank(row: Ablation) -> tuple[bool, float, float, float, int, int]:
    """Return the key that sorts rows: non-finite outputs first, then the largest divergence."""
    divergence, change = row.kl_divergence or 0.0, abs(row.target_logit_change or 0.0)
    changed = row.changed_fraction if row.kl_divergence is None else 0.0
    return row.output_l2 is not None, -divergence, -changed, -change, row.order, row.channel or 0


_ENDINGS = ("Sigmoid", "Softmax", "Softmax2d", "LogSoftmax")  # types of layers
_TOP = 5  # predictions of the unchanged model per image
_LONG = 10  # seconds from which the cost is announced


@dataclass(frozen=True, slots=True)
class AblationRequest:
    """Options of an ablation."""

    how: str = "zero"  # `zero`, `mean` or `shuffle`; see `replaced`
    is_by_channel: bool = False  # whether to replace one channel at a time instead of whole outputs
    target: TargetSpec = THE_PREDICTED  # the output number to follow
    seed: int = 0  # the seed of the shuffling


class Ablating:
    """Replaces the output of every selected call in turn, for all images, batch by batch.

    `interventions` are applied in every pass, the baseline included.

    Attributes:
        baseline, rows, unranked, classes, is_independent, score_name, images: as in `AblateRecord`; `rows` sorted.
        output, output_note: the kind of output, and how it was interpreted, where that is ambiguous.
        spared: the layer at the end that is left out; None if none is.
        why_whole: why every pass runs the whole model; None if passes start at the changed layer.
        called: the names of all layers that ran. `blocks`: the calls whose output may hold their input.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        selection: Selection,
        request: AblationRequest,
        interventions: Sequence[Intervention] = (),
    ) -> None:
        self._right = RightPredictions()
        self._module, self._categories = loaded.module, loaded.categories
        self._reader = OutputReader.of(loaded)
        self._request = request
        self._finder = CandidateFinder(selection)
        self._interventions = interventions
        self._replay = Replay(skips_blocks=not interventions)
        self._session = HookSession(
            loaded.module, [self._finder], interventions=[*interventions, self._replay]
        )
        # Of every batch only the followed numbers are stored: whole outputs may be as large as images.
        self._scores: list[Tensor] = []
        self._probabilities: list[Tensor] = []
        self._classes: set[int] = set()
        self._predictions: list[Prediction] = []
        self.warnings: list[Notice] = []
        self.degenerate = Degenerate()
        self.why_whole: str | None = None
        self.spared: str | None = None

    def run(self, inputs: Inputs, progress: Progress = SILENT) -> Self:
        """Return itself with the results; before a long run `progress` says how many passes and how long."""
        with self._session:
            started = time.perf_counter()
            n_passes = self._prepare(next(iter(inputs))) * inputs.n_batches
            seconds = n_passes * (time.perf_counter() - started)
            if seconds > _LONG:
                progress.note(f"{n_passes:,} passes through the model, about {spell_time(seconds)} at most")
            with deferred() as is_interrupted:
                for _ in progress.track(self._go_through(inputs, is_interrupted), "ablating", n_passes):
                    pass
        self._conclude()
        return self

    def _prepare(self, batch: Batch) -> int:
        """Run the first batch once to find the candidates; return the number of ablations per batch."""
        self._random = RandomState()
        self._trial = self._run_whole(batch)
        self.called = frozenset(self._session.first_calls)
        candidates = self._finder.found
        if not candidates:
            message = "no selected layer has an output that can be replaced"
            raise UsageError(message, "modelscope summary ...   lists the layers")
        self._calls = [candidate.call for candidate in candidates]
        self.blocks = [candidate.call.label for candidate in candidates if candidate.is_block]
        # What turns the logits into probabilities is not ablated unasked: zeros are none, and their logits a clamp.
        last, main = candidates[-1], dict(self._trial.leaves)[self._trial.path]
        is_ending = (
            last.call.type in _ENDINGS
            and last.shape in (main.shape, (*main.shape, 1))
            and len(candidates) > 1
        )
        if is_ending and self._finder.is_for_all:
            candidates, self.spared = candidates[:-1], last.call.label
        followed = self._trial.follow(self._request.target, self._categories)  # raises for a wrong target
        self._target_words, self.score_name = followed.words, followed.name
        self._effects = [
            Effect(candidate, channel)
            for candidate in candidates
            for channel in (range(candidate.n_channels) if self._request.is_by_channel else [None])
        ]
        return len(self._effects)

    def _go_through(self, inputs: Inputs, is_interrupted: Callable[[], bool]) -> Iterator[None]:
        """Run one ablated pass per iteration; after Ctrl-C end within the first batch, or after a later one."""
        for number, batch in enumerate(inputs):
            self._replay.forget()
            holdings = Holdings(self._module)
            before = self._run_whole(batch, is_again=number == 0)  # `prepare` has run the first
            if [candidate.call for candidate in self._finder.found] != self._calls:
                raise took_another_way()
            if number == 0:
                self._judge(before, holdings)
            followed = before.follow(self._request.target, self._categories)
            is_of_one = before.kind == "classes" and not getattr(before.main, "has_several", False)
            truth = batch.truth(before.main.n_classes or 0) if is_of_one else None
            self._right.add(before.scores.tensor(), truth)
            self._remember(batch, before, followed)
            for n, effect in enumerate(self._effects, 1):
                effect.add(before, self._run_ablated(batch, effect), followed, truth)
                yield
                if is_interrupted() and number == 0:
                    self._cut_short(n)
                    return
            if is_interrupted():
                self._cut_short(len(self._effects))
                return

    def _cut_short(self, n_effects: int) -> None:
        what = f"{n_effects} of {len(self._effects)} outputs on {counted(self._n_images(), 'image')}"
        self.warnings.append(Notice("interrupted", f"Ctrl-C: only {what} were ablated"))
        del self._effects[n_effects:]

    def _begin(self, *, is_again: bool) -> None:
        for intervention in self._interventions:
            intervention.begin(is_again=is_again)
        self._random.restore()  # the same random numbers in every pass

    def _run_whole(self, batch: Batch, *, is_again: bool = False) -> ModelOutput:
        """Return the output of the unchanged model, on the CPU."""
        self._begin(is_again=is_again)
        self._finder.look()
        answer = self._read(self._session.run(cloned(batch.args)), batch)
        self._finder.is_looking = False
        return answer.checked()

    def _read(self, output: Any, batch: Batch) -> ModelOutput:
        answer = self._reader.read(output, batch.args, batch.n_images).settled()
        check_output("ablate", answer)
        return answer

    def _run_ablated(self, batch: Batch, effect: Effect) -> ModelOutput:
        def change(output: Any) -> Any:
            request, dims = self._request, effect.candidate.channel_dims
            return replace_output(output, dims, request.how, request.seed, effect.channel)

        self._begin(is_again=True)
        place = effect.candidate.call.order
        return self._read(self._replay.rerun(self._session, cloned(batch.args), place, change), batch)

    def _judge(self, second_pass: ModelOutput, holdings: Holdings) -> None:
        """Compare two passes of the first batch, to see whether the model is deterministic."""
        if self._random.has_moved():
            self.why_whole = "draws random numbers"
        elif not holdings.are_same():
            self.why_whole = "keeps state between runs"
        self._replay.is_whole = self.why_whole is not None
        gap = float(second_pass.scores.difference(self._trial.scores).abs().max())
        if gap > 0:
            message = (
                f"the outputs for the same input differ by up to {gap:.2g}, so smaller effects may be noise"
            )
            self.warnings.append(Notice("unsteady", message))

    def _n_images(self) -> int:
        return sum(map(len, self._scores))

    def _remember(self, batch: Batch, answer: ModelOutput, followed: FollowedScore) -> None:
        self._predictions += predictions_of(answer, _TOP, self._categories, batch, self._n_images())
        self.degenerate += look_at(answer, batch.args)
        self._scores.append(followed.score(answer.main).cpu())
        if followed.probability is not None:
            self._probabilities.append(followed.probability(answer.main).cpu())
        self._classes.update(followed.classes or ())

    def _conclude(self) -> None:
        accuracy, main = self._right.share(), self._trial.main
        ranked = [
            (effect.to_row(self._categories, accuracy), torch.cat(effect.divergences))
            for effect in self._effects
        ]
        ranked.sort(key=lambda pair: _rank(pair[0]))
        self.rows = tuple(row for row, _ in ranked)
        first, *others = (divergences for _, divergences in ranked)
        self.unranked = 1 + sum(_is_within_noise(first - other) for other in others)
        index = next(iter(self._classes)) if len(self._classes) == 1 else None
        self.baseline = Baseline(
            target=self._words(index),
            target_index=index,
            target_logit=_mean(self._scores),
            target_probability=_mean(self._probabilities) if self._probabilities else None,
            predictions=tuple(self._predictions),
            accuracy=accuracy,
        )
        self.classes = main.n_classes or len(self._categories or ())
        self.output, self.output_note = self._trial.kind, self._trial.note
        self.is_independent: bool = getattr(main, "has_several", False)
        self.images = self._n_images()

    def _words(self, index: int | None) -> str:
        if self._trial.main.kind != "classes" or self._request.target.kind != PREDICTED:
            return self._target_words
        return (
            f"predicted: {name_class(index, self._categories)}"
            if index is not None
            else "each image's own prediction"
        )


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).double().mean())


ZERO, MEAN = "zero", "mean"


def is_replaceable(leaf: Any) -> bool:
    """Check that a part of a layer's output is a non-empty float tensor with at least two dimensions."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim >= 2 and leaf.numel() > 0


def replace_output(
    output: Any, channel_dims: Sequence[int], how: str, seed: int, channel: int | None = None
) -> Any:
    """Return a copy of a layer's output with its tensors replaced; tuples and dicts keep their structure.

    Args:
        channel_dims: the channel dimension of each replaceable tensor, in order.
        channel: replace only this channel of the first tensor.
    """
    places = [n for n, leaf in enumerate(leaves_of(output)) if is_replaceable(leaf)]
    dims = dict(list(zip(places, channel_dims, strict=True))[: None if channel is None else 1])
    numbers = itertools.count()

    def change(leaf: Any) -> Any:
        dim = dims.get(next(numbers))
        return leaf if dim is None else replaced(leaf, dim, how, seed, channel)

    return map_leaves(output, change)


def replaced(tensor: Tensor, channel_dim: int, how: str, seed: int, channel: int | None = None) -> Tensor:
    """Return a new tensor of the same shape, all channels or one of them replaced.

    `zero`: zeros. `mean`: the mean over positions of each channel of each image. `shuffle`: the positions in
    a seeded random order, the same for all channels and images, which keeps the values and loses the places.
    Where every channel has a single value, the channels are treated as positions.
    """
    positions = [dim for dim in range(1, tensor.ndim) if dim != channel_dim]
    if math.prod(tensor.shape[dim] for dim in positions) == 1:
        positions = [channel_dim]
    if how == ZERO:
        new = torch.zeros_like(tensor)
    elif how == MEAN:
        new = torch.empty_like(tensor).copy_(tensor.mean(positions, keepdim=True))
    else:
        new = torch.empty_like(tensor).copy_(_shuffled(tensor, positions, seed))
    if channel is None:
        return new
    whole = tensor.clone()
    whole.narrow(channel_dim, channel, 1).copy_(new.narrow(channel_dim, channel, 1))
    return whole


def _shuffled(tensor: Tensor, positions: list[int], seed: int) -> Tensor:
    last = list(range(-len(positions), 0))
    by_position = tensor.movedim(positions, last)
    flat = by_position.flatten(-len(positions))
    order = torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(seed)).to(tensor.device)
    return flat[..., order].reshape(by_position.shape).movedim(last, positions)
