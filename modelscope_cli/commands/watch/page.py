"""The page of `watch`."""

from collections.abc import Sequence

from modelscope_cli.commands.watch.page_rows import last_of, layer_rows, layer_tree, parameter_rows
from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.records.naming import layer_of
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
from modelscope_cli.report.page.pictures import Pictures
from modelscope_cli.report.page.section import Section, facts

_VERDICTS = {
    FAULT: ("Something is wrong", "error"),
    SOUND: ("Nothing wrong was found", "sound"),
    UNKNOWN: ("It cannot be told yet", "warning"),
}


def sections(record: WatchRecord, pictures: Pictures) -> list[Section]:
    """Return the verdict first, then what it rests on."""
    sheet = watch_sheet(record)
    anchors = _Anchors(record)
    found = [
        Section("verdict", "Verdict", _verdict(record, anchors)),
        Section("steps", "Loss over steps", _curves(record, anchors)),
        Section("layers", "Layers", layer_rows(record, sheet)),
        Section("tree", "Tree", layer_tree(record, sheet)),
        Section("parameters", "Parameters", parameter_rows(record)),
        Section("input", "Input", _input(record, pictures)),
        Section("optimizer", "Optimizer", _optimizer(record)),
    ]
    return [section for section in found if section.body]


class _Anchors:
    """Where the row of a layer or a parameter stands, by its label, and the card of a finding."""

    def __init__(self, record: WatchRecord) -> None:
        label = labelling(record.layers, record.parameters)
        self._places = {label(row): f"layer-{n}" for n, row in enumerate(record.layers)}
        self._places |= {label(row): f"parameter-{n}" for n, row in enumerate(record.parameters)}
        self._cards = {id(one): f"finding-{n}" for n, one in enumerate(record.findings)}

    def row(self, label: str | None) -> str | None:
        return self._places.get(label or "")

    def card(self, one: TrainingFinding) -> str:
        return self._cards[id(one)]


def _verdict(record: WatchRecord, anchors: _Anchors) -> Html:
    words, kind = _VERDICTS.get(record.verdict, (record.verdict, "warning"))
    badge = element("span", words, class_=f"verdict {kind}")
    lead = element("p", badge, f" {record.reason}" if record.reason else None)
    followed: dict[str, list[TrainingFinding]] = {}
    for one in record.findings:
        if one.follows is not None:
            followed.setdefault(one.follows, []).append(one)
    causes = [one for one in record.findings if one.follows is None]
    cards = [_card(one, followed.pop(one.code, []), anchors) for one in causes]
    return joined([lead, element("ul", *cards, class_="findings") if cards else NOTHING, _summary(record)])


def _card(one: TrainingFinding, followed: Sequence[TrainingFinding], anchors: _Anchors) -> Html:
    inner = NOTHING
    if followed:
        cards = [_card(other, (), anchors) for other in followed]
        inner = joined([element("p", "From this follows:"), element("ul", *cards, class_="findings")])
    where = [f"since step {one.since_step}" if one.since_step is not None else "", one.place or ""]
    return finding(one, name=anchors.card(one), anchor=anchors.row(one.layer), where=where, inner=inner)


def _summary(record: WatchRecord) -> Html:
    lines: list[tuple[str, str | Html]] = [
        ("steps", f"{record.steps:,}, {record.recorded:,} of them looked at closely")
    ]
    for series in record.loss:
        known = [v for v in series.value if v is not None]
        if known:
            lines.append(
                ("loss", f"{numbers.number(known[0])} at first, {numbers.number(known[-1])} at the end")
            )
    lines += [(event.kind, event.message) for event in record.events]
    lines += [("not finite", f"step {birth.step}: {birth.words}") for birth in record.births]
    return facts(lines)


def _curves(record: WatchRecord, anchors: _Anchors) -> Html:
    last = max((series.step[-1] for series in record.loss if series.step), default=record.steps)
    validation = [one for one in record.facts.criteria if not one.is_training and one.series.step]
    lines = [
        *_lines(record.loss, "training loss"),
        *(
            Line(f"{one.name} {one.place or ''}, evaluation", one.series.step, one.series.value, 1 + n)
            for n, one in enumerate(validation)
        ),
    ]
    scored = [one for one in record.facts.criteria if any(v is not None for v in one.series.accuracy)]
    accuracy = [
        Line(
            f"{one.name} {one.place or ''}" + ("" if one.is_training else ", evaluation"),
            one.series.step,
            one.series.accuracy,
            n,
        )
        for n, one in enumerate(scored)
    ]
    rates = _lines([one for one in record.lr if one.group == 0 or _differs(one, record.lr)], "learning rate")
    charts = [
        line_chart("Loss", lines, _marks(record, anchors), last=last) if lines else None,
        line_chart("Learning rate", rates, height=90, last=last) if rates else None,
        line_chart("Accuracy", accuracy, height=90, last=last) if accuracy else None,
    ]
    return joined(charts)


def _differs(one: ScalarSeries, every: Sequence[ScalarSeries]) -> bool:
    first = next(other for other in every if other.optimizer == one.optimizer)
    return one.value != first.value


def _lines(every: Sequence[ScalarSeries], name: str) -> list[Line]:
    is_alone = len(every) == 1
    named = [
        name if is_alone else f"{name}, {one.optimizer}" + (f" group {one.group}" if one.group else "")
        for one in every
    ]
    return [
        Line(words, one.step, one.value, n) for n, (words, one) in enumerate(zip(named, every, strict=True))
    ]


def _marks(record: WatchRecord, anchors: _Anchors) -> list[Mark]:
    """Return a mark a step: findings that begin at the same one share it."""
    by_step: dict[int, list[TrainingFinding]] = {}
    for one in record.findings:
        if one.since_step is not None:
            by_step.setdefault(one.since_step, []).append(one)
    return [
        Mark(step, " ".join(dict.fromkeys(one.code for one in found)), anchors.card(found[0]))
        for step, found in sorted(by_step.items())
    ]


def _input(record: WatchRecord, pictures: Pictures) -> Html:
    lines: list[tuple[str, str | Html]] = []
    for one in record.facts.inputs:
        if one.type:
            continue
        series = one.series
        lows = [v for v in series.min if v is not None]
        highs = [v for v in series.max if v is not None]
        words = [f"{numbers.shape(one.shape)} {one.dtype}"]
        words += [
            f"mean {numbers.number(last_of(series.mean))}",
            f"standard deviation {numbers.number(last_of(series.std))}",
        ]
        if lows and highs:
            words.append(f"from {numbers.number(min(lows))} to {numbers.number(max(highs))}")
        lines.append((f"{one.model} {one.name}", ", ".join(words)))
    seen = pictures.figure(
        "inputs.png", "The first images of the first batch, as the model was given them", class_="pixels"
    )
    return joined([facts(lines), seen]) if lines else NOTHING


def _optimizer(record: WatchRecord) -> Html:
    lines: list[tuple[str, str | Html]] = []
    for one in record.facts.optimizers:
        rates = [series for series in record.lr if series.optimizer == one.optimizer]
        groups = f"{len(rates)} groups" if len(rates) != 1 else "1 group"
        made = f", made at {one.made}" if one.made else ""
        lines.append((one.optimizer, f"holds {one.held} parameters in {groups}{made}"))
        for series in rates:
            first, last = numbers.number(series.value[0]), numbers.number(series.value[-1])
            words = first if first == last else f"{first} at first, {last} at the end"
            lines.append((f"learning rate, group {series.group}", words))
        if one.uncleared:
            lines.append(("gradients", f"not cleared in {one.uncleared} of {one.cycles} steps"))
    lines += [
        ("never stepped", f"{name}" + (f", made at {place}" if place else ""))
        for name, place in record.facts.idle
    ]
    held = [row for row in record.parameters if not row.optimizer]
    if held:
        names = ", ".join(row.name for row in held[:12]) + (
            f" and {len(held) - 12} more" if len(held) > 12 else ""
        )
        layers = {layer_of(row.name) for row in held}
        lines.append(("held by none", f"{len(held)} parameters of {len(layers)} layers: {names}"))
    elif lines:
        lines.append(("held by none", "every parameter has an optimizer"))
    return facts(lines) if lines else NOTHING
