"""`ablate`: take out every selected call, or every channel of it, in turn, and see what becomes of the answer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.ablation.candidates import CandidateFinder
from modelscope_cli.analysis.ablation.effect import Effect, by_effect
from modelscope_cli.analysis.ablation.partial_rerun import Holdings, Replay, took_another_way
from modelscope_cli.analysis.ablation.replacement import replace_output
from modelscope_cli.analysis.outputs.aim import PREDICTED, THE_PREDICTED, Aim, label_of_class, name_class
from modelscope_cli.analysis.outputs.answer import Answer, FollowedAnswer
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.predictions.guesses import predictions_of, undecided
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import cloned
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
        target: which number of the output is followed.
        seed: of the shuffling.
    """

    how: str = "zero"
    is_by_channel: bool = False
    target: Aim = THE_PREDICTED
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ablations:
    """Everything `ablate` found out; `rows` by effect.

    Attributes:
        output, score_name: what the model gives, and what the followed number of it is.
        output_note: which tensor is taken for what, where that has to be said.
        why_whole: what the model does that lets no pass begin at the changed layer; None where they all do.
        called: every layer that ran.
    """

    baseline: Baseline
    rows: tuple[Ablation, ...]
    classes: int
    output: str
    score_name: str
    output_note: str | None
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
        UsageError: no such target; nothing that was selected can be taken out (exit 2).
        CannotRunError: the model gives nothing that can be followed, or NaN, or its forward raises (exit 4).
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
        self._module, self._categories = loaded.module, loaded.categories
        self._reader = OutputReader.of(loaded)
        self._request = request
        self._finder = CandidateFinder(selection)
        self._interventions = interventions
        self._replay = Replay(skips_blocks=not interventions)
        self.session = HookSession(
            loaded.module, [self._finder], interventions=[*interventions, self._replay]
        )
        # What is followed, for every batch of the whole model: numbers, as answers may be as large as images.
        self._scores: list[Tensor] = []
        self._probabilities: list[Tensor] = []
        self._classes: set[int] = set()
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
            raise UsageError(message, "modelscope summary ...   lists the layers")
        self._calls = [candidate.call for candidate in candidates]
        followed = self._trial.follow(self._request.target, self._categories)  # or it means nothing
        self._target_words, self._score_name = followed.words, followed.name
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
            followed = before.follow(self._request.target, self._categories)
            self._remember(batch, before, followed)
            for effect in self._effects:
                effect.add(before, self._run_ablated(batch, effect), followed)
                yield

    def _begin(self, *, is_again: bool) -> None:
        for intervention in self._interventions:
            intervention.begin(is_again=is_again)
        self._random.restore()  # a model that draws numbers draws the same ones in every pass

    def _run_whole(self, batch: Batch, *, is_again: bool = False) -> Answer:
        """Return what the model as it is says, on the CPU."""
        self._begin(is_again=is_again)
        self._finder.look()
        answer = self._read(self.session.run(cloned(batch.args)), batch)
        self._finder.is_looking = False
        if not answer.is_finite():
            message = "the model's logits are NaN or infinite, so there is nothing to compare with"
            raise CannotRunError(message, "modelscope stats ...   shows where they begin")
        return answer

    def _read(self, output: Any, batch: Batch) -> Answer:
        return self._reader.read(output, batch.args, batch.n_images).settled()

    def _run_ablated(self, batch: Batch, effect: Effect) -> Answer:
        def change(output: Any) -> Any:
            request, dims = self._request, effect.candidate.channel_dims
            return replace_output(output, dims, request.how, request.seed, effect.channel)

        self._begin(is_again=True)
        place = effect.candidate.call.order
        return self._read(self._replay.rerun(self.session, cloned(batch.args), place, change), batch)

    def _judge(self, again: Answer, holdings: Holdings) -> None:
        """Compare the first batch's second pass with its first."""
        if self._random.has_moved():
            self._why_whole = "draws random numbers"
        elif not holdings.are_same():
            self._why_whole = "keeps state from the run before"
        self._replay.is_whole = self._why_whole is not None
        gap = float(again.largest_change(self._trial).max())
        if gap > 0:
            message = (
                f"the outputs for the same input differ by up to {gap:.2g}: effects that small mean nothing"
            )
            self._warnings.append(Notice("unsteady", message))

    def _remember(self, batch: Batch, answer: Answer, followed: FollowedAnswer) -> None:
        n_before = sum(map(len, self._scores))
        self._predictions += predictions_of(answer, _TOP, self._categories, batch, n_before)
        self._scores.append(followed.score(answer).cpu())
        if followed.probability is not None:
            self._probabilities.append(followed.probability(answer).cpu())
        self._classes.update(followed.classes or ())

    def result(self) -> Ablations:
        rows = [effect.to_row(self._request.how, self._categories) for effect in self._effects]
        return Ablations(
            baseline=self._baseline(),
            rows=by_effect(rows),
            classes=self._trial.main.n_classes or len(self._categories or ()),
            output=self._trial.kind,
            score_name=self._score_name,
            output_note=self._trial.note,
            why_whole=self._why_whole,
            called=self._called,
            warnings=(*self._warnings, *undecided(self._predictions)),
        )

    def _baseline(self) -> Baseline:
        one = next(iter(self._classes)) if len(self._classes) == 1 else None
        return Baseline(
            target=self._words(one),
            target_index=one,
            target_label=None if one is None else label_of_class(one, self._categories),
            target_logit=_mean(self._scores),
            target_probability=_mean(self._probabilities) if self._probabilities else None,
            predictions=tuple(self._predictions),
        )

    def _words(self, one: int | None) -> str:
        if self._trial.main.kind != "classes" or self._request.target.kind != PREDICTED:
            return self._target_words
        return (
            f"predicted: {name_class(one, self._categories)}"
            if one is not None
            else "each image's own prediction"
        )


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).double().mean())
