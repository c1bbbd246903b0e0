"""The page of `watch`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.records.naming import layer_of
from modelscope_cli.records.watch import (
    ScalarSeries,
    TrainingFinding,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
    labelling,
)
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import Line, Mark, line_chart, spark
from modelscope_cli.report.page.common import finding
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.page.pictures import Pictures
from modelscope_cli.report.page.section import Section, facts
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.page.tree import Shade, tree
from modelscope_cli.report.sheet import Column, Sheet

_KINDS = {"fault": "error", "nothing wrong": "sound", "cannot tell": "warning"}


def sections(record: WatchRecord, pictures: Pictures) -> list[Section]:
    """Return the verdict first, then what it rests on."""
    sheet = watch_sheet(record)
    anchors = _Anchors(record)
    found = [
        Section("verdict", "Verdict", _verdict(record, anchors)),
        Section("steps", "Loss over steps", _curves(record)),
        Section("layers", "Layers", _layers(record, sheet, anchors)),
        Section("tree", "Tree", _tree(record, sheet)),
        Section("parameters", "Parameters", _parameters(record, anchors)),
        Section("input", "Input", _input(record, pictures)),
        Section("optimizer", "Optimizer", _optimizer(record)),
    ]
    return [section for section in found if section.body]


class _Anchors:
    """Where the row of a layer or a parameter stands, by its label."""

    def __init__(self, record: WatchRecord) -> None:
        label = labelling(record.layers, record.parameters)
        self._places = {label(row): f"layer-{n}" for n, row in enumerate(record.layers)}
        self._places |= {label(row): f"parameter-{n}" for n, row in enumerate(record.parameters)}

    def __call__(self, label: str | None) -> str | None:
        return self._places.get(label or "")


def _verdict(record: WatchRecord, anchors: _Anchors) -> Html:
    words = {"fault": "Something is wrong", "nothing wrong": "Nothing wrong was found", "cannot tell": "It cannot be told"}
    badge = element("span", words[record.verdict], class_=f"verdict {_KINDS[record.verdict]}")
    lead = element("p", badge, f" {record.reason}" if record.reason else None)
    causes = [one for one in record.findings if one.follows is None]
    cards = [_card(one, record.findings, anchors) for one in causes]
    return joined([lead, element("ul", *cards, class_="findings") if cards else NOTHING, _summary(record)])


def _card(one: TrainingFinding, every: Sequence[TrainingFinding], anchors: _Anchors) -> Html:
    followed = [other for other in every if other.follows == one.code]
    inner = NOTHING
    if followed:
        cards = [_card(other, (), anchors) for other in followed]
        inner = joined([element("p", "From this follows:"), element("ul", *cards, class_="findings")])
    where = [f"since step {one.since_step}" if one.since_step is not None else "", one.place or ""]
    return finding(one, name=f"finding-{one.code}", anchor=anchors(one.layer), where=where, inner=inner)


def _summary(record: WatchRecord) -> Html:
    lines: list[tuple[str, str | Html]] = [("steps", f"{record.steps:,}, {record.recorded:,} of them looked at closely")]
    for series in record.loss:
        known = [v for v in series.value if v is not None]
        if known:
            lines.append(("loss", f"{numbers.number(known[0])} at first, {numbers.number(known[-1])} at the end"))
    lines += [(event.kind, event.message) for event in record.events]
    lines += [("not finite", f"step {birth.step}: {birth.words}") for birth in record.births]
    return facts(lines)


def _curves(record: WatchRecord) -> Html:
    last = max((series.step[-1] for series in record.loss if series.step), default=record.steps)
    validation = [one for one in record.facts.criteria if not one.is_training and one.series.step]
    lines = [
        *_lines(record.loss, "training loss"),
        *(Line(f"{one.name} {one.place or ''}, evaluation", one.series.step, one.series.value, 1 + n) for n, one in enumerate(validation)),
    ]
    scored = [one for one in record.facts.criteria if any(v is not None for v in one.series.accuracy)]
    accuracy = [
        Line(f"{one.name} {one.place or ''}" + ("" if one.is_training else ", evaluation"), one.series.step, one.series.accuracy, n)
        for n, one in enumerate(scored)
    ]
    rates = _lines([one for one in record.lr if one.group == 0 or _differs(one, record.lr)], "learning rate")
    charts = [
        line_chart("Loss", lines, _marks(record.findings), last=last) if lines else None,
        line_chart("Learning rate", rates, height=90, last=last) if rates else None,
        line_chart("Accuracy", accuracy, height=90, last=last) if accuracy else None,
    ]
    return joined(charts)


def _differs(one: ScalarSeries, every: Sequence[ScalarSeries]) -> bool:
    first = next(other for other in every if other.optimizer == one.optimizer)
    return one.value != first.value


def _lines(every: Sequence[ScalarSeries], name: str) -> list[Line]:
    is_alone = len(every) == 1
    named = [name if is_alone else f"{name}, {one.optimizer}" + (f" group {one.group}" if one.group else "") for one in every]
    return [Line(words, one.step, one.value, n) for n, (words, one) in enumerate(zip(named, every, strict=True))]


def _marks(findings: Iterable[TrainingFinding]) -> list[Mark]:
    """Return a mark a step: findings that begin at the same one share it."""
    by_step: dict[int, list[TrainingFinding]] = {}
    for one in findings:
        if one.since_step is not None:
            by_step.setdefault(one.since_step, []).append(one)
    return [
        Mark(step, " ".join(dict.fromkeys(one.code for one in found)), f"finding-{found[0].code}")
        for step, found in sorted(by_step.items())
    ]


def _layers(record: WatchRecord, sheet: Sheet, anchors: _Anchors) -> Html:
    if not record.layers:
        return NOTHING
    place = {id(row): n for n, row in enumerate(record.layers)}

    def std(row: WatchedLayer) -> Html:
        return spark(row.series.std, row.series.step)

    caption = (
        "Every layer's output: figures of the first and of the last step that was looked at. "
        "A row opens into its histograms, gradients and updates."
    )
    return sheet_section(
        sheet,
        "layer-rows",
        caption,
        anchor=lambda row: f"layer-{place[id(row)]}",
        extras=[("std over steps", std)],
        series=lambda row: place[id(row)],
    )


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _tree(record: WatchRecord, sheet: Sheet) -> Html:
    place = {id(row): n for n, row in enumerate(record.layers)}
    label = labelling(record.layers, record.parameters)

    def shade(name: str, field: str, words: Callable[[float | None], str]) -> Shade:
        return Shade(name, lambda row: _last(getattr(row.series, field) or ()), lambda row: words(_last(getattr(row.series, field) or ())))

    shades = [
        shade("zero, at the end", "zero_fraction", numbers.percent),
        shade("standard deviation, at the end", "std", numbers.number),
        shade("gradient, at the end", "grad_norm", numbers.number),
        shade("dead channels, at the end", "dead_fraction", numbers.percent),
    ]
    return tree(sheet.rows, label, lambda row: f"layer-{place[id(row)]}", shades, sheet.is_bad)


def _parameters(record: WatchRecord, anchors: _Anchors) -> Html:
    if not record.parameters:
        return NOTHING
    label = labelling(record.layers, record.parameters)
    found = {one.layer for one in record.findings}
    place = {id(row): n for n, row in enumerate(record.parameters)}

    def figure(key: str, title: str) -> Column:
        def value(row: WatchedParameter) -> float | None:
            return _last(getattr(row.series, key))

        return Column(key, title, value, lambda row: numbers.number(value(row)))

    columns = (
        Column("name", "parameter", label, is_number=False),
        Column("shape", "shape", lambda row: numbers.shape(row.shape), is_number=False),
        Column("optimizer", "optimizer", lambda row: row.optimizer or "none holds it", is_number=False),
        figure("grad_norm", "gradient"),
        figure("weight_norm", "weight"),
        figure("update_ratio", "update / weight"),
    )
    sheet = Sheet("", columns, record.parameters, is_bad=lambda row: label(row) in found or _is_forgotten(row))

    def course(row: WatchedParameter) -> Html:
        return spark(row.series.update_ratio, row.series.step)

    caption = "Every parameter at the last step that was looked at. An update of about 0.001 of the weight is usual."
    return sheet_section(
        sheet,
        "parameter-rows",
        caption,
        anchor=lambda row: f"parameter-{place[id(row)]}",
        extras=[("updates over steps", course)],
    )


def _is_forgotten(row: WatchedParameter) -> bool:
    return not row.optimizer and row.facts is not None and row.facts.requires_grad and row.facts.has_gradient


def _input(record: WatchRecord, pictures: Pictures) -> Html:
    lines: list[tuple[str, str | Html]] = []
    for one in record.facts.inputs:
        if one.type:
            continue
        series = one.series
        lows = [v for v in series.min if v is not None]
        highs = [v for v in series.max if v is not None]
        words = [f"{numbers.shape(one.shape)} {one.dtype}"]
        words += [f"mean {numbers.number(_last(series.mean))}", f"standard deviation {numbers.number(_last(series.std))}"]
        if lows and highs:
            words.append(f"from {numbers.number(min(lows))} to {numbers.number(max(highs))}")
        lines.append((f"{one.model} {one.name}", ", ".join(words)))
    seen = pictures.figure("inputs.png", "The first images of the first batch, as the model was given them", class_="pixels")
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
    lines += [("never stepped", f"{name}" + (f", made at {place}" if place else "")) for name, place in record.facts.idle]
    held = [row for row in record.parameters if not row.optimizer]
    if held:
        names = ", ".join(row.name for row in held[:12]) + (f" and {len(held) - 12} more" if len(held) > 12 else "")
        layers = {layer_of(row.name) for row in held}
        lines.append(("held by none", f"{len(held)} parameters of {len(layers)} layers: {names}"))
    elif lines:
        lines.append(("held by none", "every parameter has an optimizer"))
    return facts(lines) if lines else NOTHING


