"""Sections that pages of several commands have."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Run
from modelscope_cli.report import numbers
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.page.outcome import Outcome, badge
from modelscope_cli.report.page.section import Section, facts
from modelscope_cli.report.sheet import Sheet

_MOST_NAMED = 12


class Found(Protocol):
    """A finding, of a model or of a training."""

    @property
    def code(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def layer(self) -> str | None: ...
    @property
    def message(self) -> str: ...
    @property
    def hint(self) -> str: ...


def finding(
    one: Found,
    *,
    name: str | None = None,
    anchor: str | None = None,
    rule: str | None = None,
    where: Sequence[str] = (),
    inner: Html = NOTHING,
) -> Html:
    """Return a finding as a card.

    Args:
        name: what a link jumps to in order to reach it. `anchor`: of the row that it speaks of; `rule`: of that
            of its rule.
        where: more about the place: a step, a line of a script.
        inner: what follows from it.
    """
    place = element("a", one.layer, href=f"#{anchor}") if one.layer and anchor else one.layer
    kind = element("span", one.severity, class_=f"verdict {one.severity}")
    code = element("a", one.code, href=f"#{rule}", class_="code") if rule else None
    code = code or element("span", one.code, class_="code")
    head = joined([code, kind, " ", one.rule.replace("-", " ")])
    told = [place, *where]
    about = joined(
        [part for n, word in enumerate(filter(None, told)) for part in ((", ", word) if n else (word,))]
    )
    return element(
        "li",
        element("p", head),
        element("p", about, ": " if about else "", one.message),
        element("p", "Try: ", one.hint, class_="quiet"),
        inner,
        class_=f"finding is-{one.severity}",
        id=name,
    )


def glance(sheet: Sheet, anchor: Callable[[Any], str | None], verdict: Outcome | None = None) -> Section:
    """Give the verdict if there is one, say what stands under a table, and name the rows that deserve a look."""
    labels = sheet.columns[0].cells(sheet.rows)
    marked = [(row, label) for row, label in zip(sheet.rows, labels, strict=True) if sheet.is_bad(row)]
    lines: list[tuple[str, str | Html]] = [*sheet.facts]
    if marked:
        links = [element("a", label, href=f"#{anchor(row)}") for row, label in marked[:_MOST_NAMED]]
        more = f" and {len(marked) - _MOST_NAMED} more" if len(marked) > _MOST_NAMED else ""
        named = joined(part for n, link in enumerate(links) for part in ((", ", link) if n else (link,)))
        lines.insert(
            0, ("deserve a look", joined([f"{len(marked)} of {len(sheet.rows)} rows: ", named, more]))
        )
    told = facts(lines) if lines else element("p", "Nothing to add.")
    return Section("verdict", "At a glance", joined([badge(verdict) if verdict else None, told]))


def environment(record: Any) -> Section:
    """Say how a result came about: what was typed, on what, with which versions."""
    run = getattr(record, "run", None)
    argv = run.argv if run else record.argv
    lines: list[tuple[str, str | Html]] = []
    if argv:
        lines.append(("command", element("code", f"modelscope {shlex.join(argv)}")))
    if run is not None:
        lines += _circumstances(run)
    versions = run.versions if run else record.versions
    lines.append(("versions", ", ".join(f"{_name(key)} {value}" for key, value in versions.items())))
    return Section("environment", "How it was made", facts(lines))


def _circumstances(run: Run) -> list[tuple[str, str | Html]]:
    weights = run.model.weights
    lines: list[tuple[str, str | Html]] = [
        ("model", f"{run.model.name} ({run.model.class_name}), {weights.resolved} weights: {weights.origin}")
    ]
    if weights.sha256:
        lines.append(("SHA-256 of the weights", element("code", weights.sha256)))
    if run.input is not None:
        files = f": {some(run.input.files, _MOST_NAMED)}" if run.input.files else ""
        lines.append(("input", f"{run.input.source} {numbers.shapes(run.input.shape)}{files}"))
        if run.input.preprocessing:
            lines.append(("preprocessing", run.input.preprocessing))
    lines.append(("device", f"{run.device}, {run.dtype}"))
    lines += [("warning", warning.message) for warning in run.warnings]
    lines.append(("took", f"{run.elapsed_ms / 1000:.1f} s"))
    return lines


def _name(key: str) -> str:
    return "modelscope" if key == "version" else "Python" if key == "python" else key
