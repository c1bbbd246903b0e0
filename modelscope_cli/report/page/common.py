"""Shared sections of pages: outcome, marked rows, environment, images."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from modelscope_cli.errors import UsageError, commented
from modelscope_cli.records.findings import NOT_JUDGED, Finding
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Run
from modelscope_cli.records.watch import CRASHED, FAULT, LEARNING, UNKNOWN, TrainingFinding
from modelscope_cli.records.watch import SOUND as HEALTHY
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import to_png
from modelscope_cli.report.page.html import NOTHING, Html, Section, element, facts, folded, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.sheet import Sheet

ERROR, WARNING, SOUND, NONE = "error", "warning", "sound", ""
KINDS = {CRASHED: ERROR, FAULT: ERROR, UNKNOWN: WARNING, LEARNING: SOUND, HEALTHY: SOUND}  # of a training


def kind_of(record: Any, sheet: Sheet) -> str:
    """Return the kind of a result: `error`, `warning`, `sound`, or empty without a verdict or a marked row."""
    if record.command in ("watch", "train"):
        return KINDS.get((record if record.command == "watch" else record.training).verdict, NONE)
    if record.command == "check":
        is_new = any(not one.known for one in record.findings)
        is_doubtful = record.verdict == NOT_JUDGED or (record.passed and is_new)
        passed = NONE if record.run.model.weights.resolved == "random" else SOUND
        return WARNING if is_doubtful else passed if record.passed else ERROR
    if record.command == "diff":
        return SOUND if record.is_same else WARNING
    return WARNING if any(map(sheet.is_bad, sheet.rows)) else NONE


_MOST_NAMED = 12


def finding(
    one: Finding | TrainingFinding,
    *,
    name: str | None = None,
    anchor: str | None = None,
    where: Sequence[str] = (),
    inner: Html = NOTHING,
) -> Html:
    """Return a finding as a card.

    Args:
        name: its own anchor. `anchor`: of the row that it is about.
        where: more about the location: a step, a line of a script.
        inner: its consequences.
    """
    place = element("a", one.layer, href=f"#{anchor}") if one.layer and anchor else one.layer
    kind = element("span", one.severity, class_=f"verdict {one.severity}")
    code = element("span", one.code, class_="code")
    head = joined([code, kind, " ", one.rule.replace("-", " ")])
    about = joined(filter(None, [place, *where]), ", ")
    return element(
        "li",
        element("p", head),
        element("p", about, ": " if about else "", one.message),
        element("p", "Try: ", commented(one.hint), class_="quiet"),
        inner,
        class_=f"finding is-{one.severity}",
        id=name,
    )


def notes(sheet: Sheet) -> Html:
    """Return the facts of a table without the answer, which heads the page; definitions folded."""
    pairs = [one for one in sheet.facts_of(is_answer=False) if one[0] not in sheet.definitions]
    defined = [(label, words) for label, words in sheet.facts if label in sheet.definitions]
    return joined([facts(pairs), folded("What the columns mean", defined)])


def table_section(
    sheet: Sheet, anchor: Callable[[Any], str], name: str = "rows", title: str = "Table", **how: Any
) -> Section:
    """Return a table with its notes."""
    body = [notes(sheet), sheet_section(sheet, name, "", anchor=anchor, **how)]
    return Section(f"{name}-section" if name != "rows" else "table", title, joined(body))


def anchors(sheet: Sheet, prefix: str = "row") -> Callable[[Any], str]:
    places = {id(row): f"{prefix}-{n}" for n, row in enumerate(sheet.rows)}
    return lambda row: places[id(row)]


def environment(record: Any) -> Section:
    """Return the provenance of a result: command line, model and input, versions."""
    run = getattr(record, "run", None)
    argv = run.argv if run else record.argv
    lines: list[tuple[str, str]] = []
    if argv:
        lines.append(("command", element("code", f"modelscope {shlex.join(argv)}")))
    if run is not None:
        lines += _circumstances(run)
    versions = run.versions if run else record.versions
    names = {"version": "modelscope", "python": "Python"}
    lines.append(("versions", ", ".join(f"{names.get(key, key)} {value}" for key, value in versions.items())))
    return Section("environment", "How it was made", facts(lines))


def _circumstances(run: Run) -> list[tuple[str, str]]:
    weights = run.model.weights
    is_data_set = run.device == "none"
    name = f" ({run.model.class_name})" if run.model.class_name else ""
    lines = [("model", f"{run.model.name}{name}")]
    is_object = weights.resolved == "object"
    lines.append(("weights", weights.origin if is_object else f"{weights.resolved} ({weights.origin})"))
    if is_data_set:
        lines = [("data set", run.model.name)]
    if weights.sha256:
        lines.append(("SHA-256 of the weights", element("code", weights.sha256)))
    if run.input is not None:
        files = f": {some(run.input.files, _MOST_NAMED)}" if run.input.files else ""
        shape = numbers.shapes(run.input.shape)
        lines.append(("input", f"{run.input.source}{f' {shape}' if shape else ''}{files}"))
        if run.input.preprocessing:
            lines.append(("preprocessing", run.input.preprocessing))
    if not is_data_set:
        lines.append(("device", f"{run.device}, {run.dtype}"))
    lines += [("warning", warning.message) for warning in run.warnings]
    seconds = run.elapsed_ms / 1000
    return [*lines, ("took", f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s")]


_SHOWN = {
    "ablation": "Change of the target without each layer",
    "distributions": "The values of every layer's output",
    "activations": "The loss, the accuracy, and the outputs of the layers over the steps",
    **dict.fromkeys(("curves", "training"), "The loss, the layers and the updates over the steps"),
    "explanation": "Evidence by position: red raises the score, blue lowers it; half of the red is in the box",
    **dict.fromkeys(("gradient_flow", "flow"), "The gradients of the layers and of their parameters"),
    "memory": "The memory of a training step while each layer runs",
    **dict.fromkeys(("lr", "range test"), "The loss over the learning rate"),
    "reliability": "Accuracy by confidence",
    "worst": "The wrong predictions with the highest scores",
}


def figure_of(record: Any, embedded: EmbeddedImages, file: str, draw: Callable[[Any], Any]) -> Html:
    """Return a figure from the folder of the result, else drawn now; or the command that draws it."""
    alt, caption = _alt(record, file), _words(file)
    from_folder = embedded.figure(file, alt, caption, is_chart=True)
    if from_folder is None and embedded.later is not None:
        again = f"modelscope report {shlex.quote(str(embedded.later))}"
        return element(
            "p", "The figures are not drawn yet: ", element("code", again), " adds them to this page."
        )
    return from_folder or embedded.drawn(to_png(draw(record)), alt, caption, is_chart=True) or NOTHING


def images_section(
    record: Any, embedded: EmbeddedImages, figures: Mapping[str, Callable[[Any], Any]]
) -> list[Section]:
    """Return every image of a result with its name; without images, the `figures` of its view."""
    names = [name for name in getattr(record, "files", ()) if isinstance(name, str) and name.endswith(".png")]
    images = [embedded.figure(name, _alt(record, name), _words(name), is_chart=True) for name in names]
    if not any(images):
        images = [
            embedded.drawn(data, _alt(record, name), _words(name), is_chart=True)
            for name, data in _drawn(record, figures)
        ]
    present = [image for image in images if image is not None]
    return [Section("figures", "Figures", element("div", *present, class_="gallery"))] if present else []


def _alt(record: Any, name: str) -> str:
    return f"{_words(name)}: {record.run.model.short_name}. The table has the numbers."


def _drawn(record: Any, figures: Mapping[str, Callable[[Any], Any]]) -> Iterator[tuple[str, bytes]]:
    for name, draw in figures.items():
        with suppress(UsageError):  # there is nothing to draw
            yield name, to_png(draw(record))


def _words(name: str) -> str:
    stem = name.removesuffix(".png")
    return _SHOWN.get(stem, stem.replace("_", " "))
