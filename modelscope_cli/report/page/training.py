"""Shared sections of `watch` and `train`: the verdict, the rows of layers and parameters."""

import math
from collections.abc import Sequence

from modelscope_cli.records.watch import TrainingFinding, WatchedParameter, labelling
from modelscope_cli.report import numbers
from modelscope_cli.report.page.common import finding
from modelscope_cli.report.page.html import NOTHING, Html, Section, element, facts, joined
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.sheet import Column, Sheet, figure
from modelscope_cli.report.training_panels import NUMBERS, Row, Trained, last_of

Facts = Sequence[tuple[str, str]]


class Anchors:
    """The anchors of layers and parameters by label, and of the cards of findings."""

    def __init__(self, training: Trained) -> None:
        self.label = labelling(training.layers, training.parameters)
        rows: list[tuple[Row, str]] = [(row, f"layer-{n}") for n, row in enumerate(training.layers)]
        rows += [(row, f"parameter-{n}") for n, row in enumerate(training.parameters)]
        self._rows = {id(row): anchor for row, anchor in rows}
        self._labels = {self.label(row): anchor for row, anchor in rows}
        self._cards = {id(one): f"finding-{n}" for n, one in enumerate(training.findings)}

    def row(self, row: Row) -> str:
        return self._rows[id(row)]

    def labelled(self, label: str | None) -> str | None:
        return self._labels.get(label or "")

    def card(self, one: TrainingFinding) -> str:
        return self._cards[id(one)]


def training_sections(
    training: Trained, sheet: Sheet, lines: Facts, figures: Sequence[Section]
) -> list[Section]:
    """Return the verdict, the figures, the layers and the parameters.

    Args:
        sheet: the table of the layers; `lines`: about the run as a whole.
    """
    anchors = Anchors(training)
    return [
        Section("verdict", "Verdict", verdict(training, anchors, lines)),
        *figures,
        Section("layers", "Layers", _layer_rows(training, sheet, anchors)),
        Section("parameters", "Parameters", _parameter_rows(training, anchors)),
    ]


def verdict(training: Trained, anchors: Anchors, lines: Facts) -> Html:
    """Return the findings, each cause with its consequences, and the course of the training.

    The verdict itself is the heading of the page.

    Args:
        lines: about the run as a whole.
    """
    followed: dict[str, list[TrainingFinding]] = {}
    for one in training.findings:
        if one.follows is not None:
            followed.setdefault(one.follows, []).append(one)
    causes = [one for one in training.findings if one.follows is None]
    cards = [_card(one, followed.pop(one.code, []), anchors) for one in causes]
    said = " ".join(words for _, words in lines)
    happened = [(event.kind, event.message) for event in training.events if event.message not in said]
    began = [("not finite", f"step {birth.step}: {birth.words}") for birth in training.births]
    summary = facts([*lines, *happened, *began])
    return joined([element("ul", *cards, class_="findings") if cards else NOTHING, summary])


def _card(one: TrainingFinding, followed: Sequence[TrainingFinding], anchors: Anchors) -> Html:
    inner = NOTHING
    if followed:
        cards = [_card(other, (), anchors) for other in followed]
        inner = joined([element("p", "Consequences:"), element("ul", *cards, class_="findings")])
    since = f"since step {one.since_step}" if one.since_step is not None else "over the whole run"
    where = [since, one.place or ""]
    anchor = anchors.labelled(one.layer)
    return finding(one, name=anchors.card(one), anchor=anchor, where=where, inner=inner)


def _layer_rows(training: Trained, sheet: Sheet, anchors: Anchors) -> Html:
    """Return the table of the layers, whose rows can be opened."""
    if not training.layers:
        return NOTHING
    place = {id(row): n for n, row in enumerate(training.layers)}
    caption = (
        "Every layer's output: values at the first and at the last recorded step. Click a row to see its "
        "histograms, gradients and updates."
    )
    return sheet_section(sheet, "layer-rows", caption, anchor=anchors.row, series=lambda row: place[id(row)])


def _parameter_rows(training: Trained, anchors: Anchors) -> Html:
    """Return the parameters; those with a finding and those that no optimizer holds are marked."""
    if not training.parameters:
        return NOTHING
    bad_names = {one.layer for one in training.findings}

    def at_the_end(key: str) -> Column:
        def read(row: WatchedParameter) -> float | None:
            is_lost = row.series.weight_norm[-1:] == (None,)  # the document has no NaN
            return math.nan if is_lost else last_of(getattr(row.series, key))

        return figure(key, NUMBERS[key], read)

    columns = (
        Column("name", "parameter", anchors.label, is_number=False),
        Column("shape", "shape", lambda row: numbers.shape(row.shape), is_number=False),
        Column("optimizer", "optimizer", lambda row: row.optimizer or "in none", is_number=False),
        at_the_end("grad_norm"),
        at_the_end("weight_norm"),
        at_the_end("update_ratio"),
    )

    def is_bad(row: WatchedParameter) -> bool:
        is_trained = row.facts is not None and row.facts.requires_grad and row.facts.has_gradient
        return anchors.label(row) in bad_names or (is_trained and not row.optimizer)

    sheet = Sheet("", columns, training.parameters, is_bad=is_bad)
    caption = (
        "Every parameter at the last recorded step. Updates of about 0.001 of the weight norm are typical."
    )
    return sheet_section(sheet, "parameter-rows", caption, anchor=anchors.row)
