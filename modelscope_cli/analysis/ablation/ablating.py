"""`ablate`: take out every selected call, or every channel of it, in turn, and see what becomes of the answer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.ablation.candidates import CandidateFinder
from modelscope_cli.analysis.ablation.effect import Effect, at, by_effect, label_of_class
from modelscope_cli.analysis.ablation.partial_rerun import Replay, took_another_way
from modelscope_cli.analysis.ablation.replacement import replace_output
from modelscope_cli.analysis.gradients.losses import class_index
from modelscope_cli.analysis.gradients.request import PREDICTED
from modelscope_cli.analysis.health.determinism import Holdings
from modelscope_cli.analysis.predictions.scores import class_scores, top_guesses, undecided
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import map_tensors
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import HookSession, Intervention
from modelscope_cli.hooks.snapshot import RandomState
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.ablate import Ablation, Baseline
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.run import Notice

_TOP = 5  # guesses kept of the whole model's answer
Track = Callable[[Iterator[None], str, int], Iterable[None]]


@dataclass(frozen=True, slots=True)
class AblationRequest:
    """What `ablate` was asked for.

    Attributes:
        how: `zero`, `mean` or `shuffle`; see `replacement.py`.
        is_by_channel: one channel at a time instead of whole outputs.
        target: a class index, a label, or `predicted`: each image's own prediction.
        seed: of the shuffling.
    """

    how: str = "zero"
    is_by_channel: bool = False
    target: str = PREDICTED
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ablations:
    """Everything `ablate` found out; `rows` by effect.

    Attributes:
        why_whole: what the model does that lets no pass begin at the changed layer; None where they all do.
        called: every layer that ran.
    """

    baseline: Baseline
    rows: tuple[Ablation, ...]
    classes: int
    why_whole: str | None
    called: frozenset[str]
    warnings: tuple[Notice, ...]


def ablate(
    loaded: LoadedModel,
    inputs: Inputs,
    selection: Selection,
    request: AblationRequest,
    *,
    interventions: Sequence[Intervention] = (),
    track: Track = lambda passes, what, total: passes,
) -> Ablations:
    """Take out every selected call in turn, for all images, batch by batch.

    Args:
        interventions: change every pass, the whole model's too.
        track: shows progress; gets the passes, a word for them, and how many they are.

    Raises:
        UsageError: no such class; nothing that was selected can be taken out (exit 2).
        CannotRunError: the model is not a classifier, answers with NaN, or its forward raises (exit 4).
    """
    ablating = _Ablating(loaded, selection, request, interventions)
    with ablating.session:
        n_passes = ablating.prepare(next(iter(inputs))) * inputs.n_batches
        for _ in track(ablating.go_through(inputs), "ablating", n_passes):
            pass
    return ablating.result()


class _Ablating:
    """One run of `ablate`; its session is open from `prepare` to the end of `go_through`."""

    def __init__(
        self,
        loaded: LoadedModel,
        selection: Selection,
        request: AblationRequest,
        interventions: Sequence[Intervention],
    ) -> None:
        self._module, self._family, self._categories = loaded.module, loaded.family, loaded.categories
        self._request = request
        self._finder = CandidateFinder(selection)
        self._interventions = interventions
        self._replay = Replay(skips_blocks=not interventions)
        self.session = HookSession(
            loaded.module, [self._finder], interventions=[*interventions, self._replay]
        )
        self._answers: list[tuple[Tensor, Tensor]] = []  # logits and target classes of the whole model
        self._predictions: list[Prediction] = []
        self._warnings: list[Notice] = []
        self._why_whole: str | None = None

    def prepare(self, batch: Batch) -> int:
        """Run the first batch once, to learn what there is; return how many ablations a batch takes."""
        self._random = RandomState(self._module)
        self._trial = self._run_whole(batch)
        self._called = frozenset(self.session.first_calls)
        candidates = self._finder.found
        if not candidates:
            message = "no selected layer has an output that can be taken out"
            raise UsageError(message, "modelscope stats   lists the layers' outputs")
        self._calls = [candidate.call for candidate in candidates]
        typed, n_classes = self._request.target, self._trial.shape[1]
        self._target = None if typed == PREDICTED else class_index(typed, n_classes, self._categories)
        self._effects = [
            Effect(candidate, channel)
            for candidate in candidates
            for channel in (range(candidate.n_channels) if self._request.is_by_channel else [None])
        ]
        return len(self._effects)

    def go_through(self, inputs: Inputs) -> Iterator[None]:
        """Make one ablated pass after another."""
        for number, batch in enumerate(inputs):
            self._replay.forget()
            holdings = Holdings(self._module)
            before = self._run_whole(batch, is_again=number == 0)  # it was the trial
            if [candidate.call for candidate in self._finder.found] != self._calls:
                raise took_another_way()
            if number == 0:
                self._judge(before, holdings)
            targets = self._targets(before)
            self._remember(batch, before, targets)
            for effect in self._effects:
                effect.add(before, self._run_ablated(batch, effect), targets)
                yield

    def _begin(self, *, is_again: bool) -> None:
        for intervention in self._interventions:
            intervention.begin(is_again=is_again)
        self._random.restore()  # a model that draws numbers draws the same ones in every pass

    def _run_whole(self, batch: Batch, *, is_again: bool = False) -> Tensor:
        """Return the logits of the model as it is, `(N, classes)` on the CPU."""
        self._begin(is_again=is_again)
        self._finder.look()
        logits = class_scores(self.session.run(_fresh(batch.args))).cpu()
        self._finder.is_looking = False
        if self._family == "detection" or len(logits) != batch.n_images:
            message = "the model's output is not a row of scores for each image: it is not a classifier"
            raise CannotRunError(message, "modelscope summary MODEL   shows its output")
        if not logits.isfinite().all():
            message = "the model's logits are NaN or infinite, so there is nothing to compare with"
            raise CannotRunError(message, "modelscope stats   shows where they begin")
        return logits

    def _run_ablated(self, batch: Batch, effect: Effect) -> Tensor:
        def change(output: Any) -> Any:
            request, dims = self._request, effect.candidate.channel_dims
            return replace_output(output, dims, request.how, request.seed, effect.channel)

        self._begin(is_again=True)
        place = effect.candidate.call.order
        return class_scores(self._replay.rerun(self.session, _fresh(batch.args), place, change)).cpu()

    def _judge(self, again: Tensor, holdings: Holdings) -> None:
        """Compare the first batch's second pass with its first."""
        if self._random.has_moved():
            self._why_whole = "draws random numbers"
        elif not holdings.are_same():
            self._why_whole = "keeps something of the one before"
        self._replay.is_whole = self._why_whole is not None
        if not torch.equal(again, self._trial):
            gap = float((again - self._trial).abs().max())
            message = (
                f"the same input gave logits up to {gap:.2g} apart: effects as small as that mean nothing"
            )
            self._warnings.append(Notice("unsteady", message))

    def _targets(self, logits: Tensor) -> Tensor:
        answers = logits.argmax(1)
        return answers if self._target is None else torch.full_like(answers, self._target)

    def _remember(self, batch: Batch, logits: Tensor, targets: Tensor) -> None:
        n_before = len(self._predictions)
        names = batch.names or [str(n_before + i) for i in range(len(logits))]
        guesses = top_guesses(logits, _TOP, self._categories)
        self._predictions += map(Prediction, names, guesses)
        self._answers.append((logits, targets))

    def result(self) -> Ablations:
        rows = [effect.to_row(self._request.how, self._categories) for effect in self._effects]
        return Ablations(
            baseline=self._baseline(),
            rows=by_effect(rows),
            classes=self._trial.shape[1],
            why_whole=self._why_whole,
            called=self._called,
            warnings=(*self._warnings, *undecided(self._predictions)),
        )

    def _baseline(self) -> Baseline:
        logits, targets = (torch.cat(parts) for parts in zip(*self._answers, strict=True))
        first = int(targets[0])
        is_one = bool((targets == first).all())
        label = label_of_class(first, self._categories)
        words = f"{first} ({label})" if label else str(first)
        if self._target is None:
            words = f"predicted: {words}" if is_one else "each image's own prediction"
        return Baseline(
            target=words,
            target_index=first if is_one else None,
            target_label=label if is_one else None,
            target_logit=float(at(logits.double(), targets).mean()),
            target_probability=float(at(logits.double().softmax(1), targets).mean()),
            predictions=tuple(self._predictions),
        )


def _fresh(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy the input: a model may write into it."""
    return map_tensors(args, lambda _, tensor: tensor.clone())
