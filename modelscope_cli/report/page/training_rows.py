"""The rows of a training on a page: layers as a table and as a tree, and parameters."""

from collections.abc import Callable, Sequence

from modelscope_cli.records.watch import WatchedLayer, WatchedParameter, labelling
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import spark
from modelscope_cli.report.page.html import NOTHING, Html
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.page.training import Trained
from modelscope_cli.report.page.tree import tree
from modelscope_cli.report.shades import Shade
from modelscope_cli.report.sheet import Column, Sheet, figure


def layer_rows(training: Trained, sheet: Sheet) -> Html:
    """Return the table of the layers, whose rows open."""
    if not training.layers:
        return NOTHING
    place = {id(row): n for n, row in enumerate(training.layers)}

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


def last_of(values: Sequence[float | None]) -> float | None:
    """Return the last number there is."""
    return next((value for value in reversed(values) if value is not None), None)


def layer_tree(training: Trained, sheet: Sheet) -> Html:
    """Return the layers as the modules they lie in."""
    place = {id(row): n for n, row in enumerate(training.layers)}
    label = labelling(training.layers, training.parameters)

    def shade(name: str, field: str, words: Callable[[float | None], str]) -> Shade:
        return Shade(
            name,
            lambda row: last_of(getattr(row.series, field) or ()),
            lambda row: words(last_of(getattr(row.series, field) or ())),
        )

    shades = [
        shade("zero, at the end", "zero_fraction", numbers.percent),
        shade("standard deviation, at the end", "std", numbers.number),
        shade("gradient, at the end", "grad_norm", numbers.number),
        shade("dead channels, at the end", "dead_fraction", numbers.percent),
    ]
    return tree(sheet.rows, label, lambda row: f"layer-{place[id(row)]}", shades, sheet.is_bad)


def parameter_rows(training: Trained) -> Html:
    """Return the table of the parameters; marked is what a finding is about, and what no optimizer holds."""
    if not training.parameters:
        return NOTHING
    label = labelling(training.layers, training.parameters)
    found = {one.layer for one in training.findings}
    place = {id(row): n for n, row in enumerate(training.parameters)}

    def at_the_end(key: str, title: str) -> Column:
        return figure(key, title, lambda row: last_of(getattr(row.series, key)))

    columns = (
        Column("name", "parameter", label, is_number=False),
        Column("shape", "shape", lambda row: numbers.shape(row.shape), is_number=False),
        Column("optimizer", "optimizer", lambda row: row.optimizer or "none holds it", is_number=False),
        at_the_end("grad_norm", "gradient"),
        at_the_end("weight_norm", "weight"),
        at_the_end("update_ratio", "update / weight"),
    )
    sheet = Sheet(
        "", columns, training.parameters, is_bad=lambda row: label(row) in found or _is_forgotten(row)
    )

    def course(row: WatchedParameter) -> Html:
        return spark(row.series.update_ratio, row.series.step)

    caption = (
        "Every parameter at the last step that was looked at. An update of 0.001 of the weight is usual."
    )
    return sheet_section(
        sheet,
        "parameter-rows",
        caption,
        anchor=lambda row: f"parameter-{place[id(row)]}",
        extras=[("updates over steps", course)],
    )


def _is_forgotten(row: WatchedParameter) -> bool:
    return not row.optimizer and row.facts is not None and row.facts.requires_grad and row.facts.has_gradient
