"""What a page says of a training, somebody's own or one of `train`: the verdict, and the curves over steps."""

from collections.abc import Sequence

from modelscope_cli.records.train import Training
from modelscope_cli.records.watch import (
    FAULT,
    SOUND,
    UNKNOWN,
    ScalarSeries,
    TrainingFinding,
    WatchRecord,
    labelling,
)
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import Line, Mark, line_chart
from modelscope_cli.report.page.common import finding
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.page.outcome import KINDS, WARNING
from modelscope_cli.report.page.section import facts

Trained = WatchRecord | Training
_VERDICTS = {
    FAULT: "Something is wrong",
    SOUND: "Nothing wrong was found",
    UNKNOWN: "It cannot be told yet",
}


class Anchors:
    """Where the row of a layer or a parameter stands, by its label, and the card of a finding."""

    def __init__(self, training: Trained, variant: str = "") -> None:
        """Take the places of one training. `variant`: tells its cards from those of others on the same page."""
        label = labelling(training.layers, training.parameters)
        self._places = {label(row): f"layer-{n}" for n, row in enumerate(training.layers)}
        self._places |= {label(row): f"parameter-{n}" for n, row in enumerate(training.parameters)}
        self._cards = {id(one): f"finding-{variant}{n}" for n, one in enumerate(training.findings)}
        self._has_rows = not variant

    def row(self, label: str | None) -> str | None:
        return self._places.get(label or "") if self._has_rows else None

    def card(self, one: TrainingFinding) -> str:
        return self._cards[id(one)]


def verdict(training: Trained, anchors: Anchors, steps: str) -> Html:
    """Return what is wrong, each cause with what follows from it, and how the training went.

    Args:
        steps: how many were made, in words.
    """
    words = _VERDICTS.get(training.verdict, training.verdict)
    badge = element("span", words, class_=f"verdict {KINDS.get(training.verdict, WARNING)}")
    lead = element("p", badge, f" {training.reason}" if training.reason else None)
    followed: dict[str, list[TrainingFinding]] = {}
    for one in training.findings:
        if one.follows is not None:
            followed.setdefault(one.follows, []).append(one)
    causes = [one for one in training.findings if one.follows is None]
    cards = [_card(one, followed.pop(one.code, []), anchors) for one in causes]
    summary = _summary(training, steps)
    return joined([lead, element("ul", *cards, class_="findings") if cards else NOTHING, summary])


def _card(one: TrainingFinding, followed: Sequence[TrainingFinding], anchors: Anchors) -> Html:
    inner = NOTHING
    if followed:
        cards = [_card(other, (), anchors) for other in followed]
        inner = joined([element("p", "From this follows:"), element("ul", *cards, class_="findings")])
    since = f"since step {one.since_step}" if one.since_step is not None else "over the whole run"
    where = [since, one.place or ""]
    return finding(one, name=anchors.card(one), anchor=anchors.row(one.layer), where=where, inner=inner)


def _summary(training: Trained, steps: str) -> Html:
    lines: list[tuple[str, str | Html]] = [("steps", steps)]
    for series in training.loss:
        known = [v for v in series.value if v is not None]
        if known:
            lines.append(
                (
                    "loss",
                    f"{numbers.number(known[0])} in the first step, {numbers.number(known[-1])} in the last",
                )
            )
    lines += [(event.kind, event.message) for event in training.events]
    lines += [("not finite", f"step {birth.step}: {birth.words}") for birth in training.births]
    return facts(lines)


def curves(
    training: Trained, anchors: Anchors, validation: Sequence[Line] = (), accuracy: Sequence[Line] = ()
) -> Html:
    """Return the loss with the findings as marks, the learning rate and the accuracy, over one axis of steps.

    Args:
        validation: losses of other data; `accuracy`: of any.
    """
    last = max((series.step[-1] for series in training.loss if series.step), default=training.steps)
    losses = [*series_lines(training.loss, "training loss"), *validation]
    every = [one for one in training.lr if one.group == 0 or _differs(one, training.lr)]
    rates = series_lines(every, "learning rate")
    charts = [
        line_chart("Loss", losses, _marks(training, anchors), last=last) if losses else None,
        line_chart("Learning rate", rates, height=90, last=last) if rates else None,
        line_chart("Accuracy", accuracy, height=90, last=last) if accuracy else None,
    ]
    return joined(charts)


def _differs(one: ScalarSeries, every: Sequence[ScalarSeries]) -> bool:
    first = next(other for other in every if other.optimizer == one.optimizer)
    return one.value != first.value


def series_lines(every: Sequence[ScalarSeries], name: str) -> list[Line]:
    """Return a line of each; of several the name says whose it is."""
    is_alone = len(every) == 1
    named = [
        name if is_alone else f"{name}, {one.optimizer}" + (f" group {one.group}" if one.group else "")
        for one in every
    ]
    return [
        Line(words, one.step, one.value, n) for n, (words, one) in enumerate(zip(named, every, strict=True))
    ]


def _marks(training: Trained, anchors: Anchors) -> list[Mark]:
    """Return a mark a step: findings that begin at the same one share it."""
    by_step: dict[int, list[TrainingFinding]] = {}
    for one in training.findings:
        if one.since_step is not None:
            by_step.setdefault(one.since_step, []).append(one)
    return [
        Mark(step, " ".join(dict.fromkeys(one.code for one in found)), anchors.card(found[0]))
        for step, found in sorted(by_step.items())
    ]
