"""Titles and facts that tables share: inputs, hooks, files, findings of a training."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import HookReport, Run
from modelscope_cli.records.stats import InputStats
from modelscope_cli.report import numbers

if TYPE_CHECKING:  # many classes, needed only for a training
    from modelscope_cli.records.training_facts import Comparison
    from modelscope_cli.records.watch import TrainingFinding


PROVENANCE = ("report", "folder", "at a glance", "all at a glance")
"""Labels of facts about written files. A page leaves them out or shows them at its end."""


def headline(run: Run, images: int, *details: str) -> str:
    """Return `resnet34 (ResNet, weights random) on 2 images, train mode, cpu`; empty details are left out."""
    where = ", ".join(filter(None, (given(run, images), *details, run.device)))
    return f"{run.model.described} on {where}"


def given(run: Run, images: int) -> str:
    """Return the input of the model: the number of images, or the shape of other input."""
    if run.input and run.input.source != "image":
        return f"{run.input.source} {numbers.shapes(run.input.shape)}"
    return counted(images, "image")


def input_facts(inputs: Sequence[InputStats]) -> list[tuple[str, str]]:
    """Return `("input", "2x3x64x64 float32, mean 0.01, std 1, from -4 to 4")` for every argument."""
    is_alone = len(inputs) == 1
    names = [
        f"input {one.name}" if one.name else "input" if is_alone else f"input {i}"
        for i, one in enumerate(inputs)
    ]
    return [(name, _words(one)) for name, one in zip(names, inputs, strict=True)]


def _words(one: InputStats) -> str:
    words = [f"{numbers.shape(one.shape)} {one.dtype}"]
    if one.mean is not None:
        words += [f"mean {numbers.number(one.mean)}", f"std {numbers.number(one.std)}"]
        words.append(f"from {numbers.number(one.min)} to {numbers.number(one.max)}")
    words += [f"{n:,} {kind}" for n, kind in ((one.nan_count, "NaN"), (one.inf_count, "infinite")) if n]
    return ", ".join(words)


def hook_facts(reports: Sequence[HookReport]) -> Iterator[tuple[str, str]]:
    for report in reports:
        yield "hook", f"{report.spec}: {_what_it_did(report)}"


def not_called_facts(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a line with the requested layers that the forward did not call, if any."""
    if layers:
        yield "not called", ", ".join(layers)


def report_facts(folder: str | None, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a line with the path of the report, if it was written."""
    if folder is not None:
        yield "report", f"{folder} ({', '.join(files)})"


def _what_it_did(report: HookReport) -> str:
    n = len(report.layers)
    where = report.layers[0] if n == 1 else f"{n} layers"
    if not report.fired:
        return f"never ran at {where}"
    times = "once" if report.fired == 1 else f"{numbers.count(report.fired)} times"
    parts = [f"ran {times} at {where}"]
    if report.never_fired:
        parts.append(f"{len(report.never_fired)} of them not reached")
    if report.changed_fraction is not None:
        gap = numbers.number(report.max_abs_difference)
        parts.append(f"{numbers.percent(report.changed_fraction)} of the values changed, by at most {gap}")
    if report.file:
        parts.append(f"wrote {report.file}")
    if report.moved:
        parts.append("in place (see the warning)")
    return ", ".join(parts)


def story(
    findings: "Sequence[TrainingFinding]", verdict: str, reason: str | None, at: str = ""
) -> list[tuple[str, str]]:
    """Return the verdict, causes and consequences as lines below a table.

    Args:
        reason: why there is no verdict, or what it does not cover.
        at: prefix of each cause: the name of the training, if there are several.
    """
    from modelscope_cli.records.watch import SOUND

    if not findings:
        if verdict == SOUND:
            return [("verdict", f"{at}nothing wrong found" + (f"; {reason}" if reason else ""))]
        return [("verdict", f"{at}cannot tell yet: {reason}")]
    lines = []
    for cause in (one for one in findings if one.follows is None):
        where = f"{cause.layer}: " if cause.layer else ""
        place = f" ({cause.place})" if cause.place else ""
        lines.append((f"{cause.severity} {cause.code}", f"{at}{where}{cause.message}{place}"))
        lines.append(("", f"try: {cause.hint}"))
        if followed := [one for one in findings if one.follows == cause.code]:
            lines.append(("", f"consequences: {', '.join(map(_briefly, followed))}"))
    return lines


def training_answer(
    findings: "Sequence[TrainingFinding]", verdict: str, reason: str | None, course: str = ""
) -> str:
    """Return the verdict on a training in one sentence: the first cause, or how it went.

    Args:
        course: how loss and accuracy went.
    """
    from modelscope_cli.records.watch import SOUND

    if not findings:
        if verdict == SOUND:
            return "; ".join(filter(None, ["Nothing wrong found", course, reason]))
        return f"Cannot tell yet: {reason}"
    first, n = findings[0], len(findings) - 1
    where = f"{first.layer}: " if first.layer else ""
    message = first.message.partition("; also ")[0]
    is_dated = first.since_step is not None and "step" not in message
    since = f" since step {first.since_step}" if is_dated else ""
    more = f"; {counted(n, 'more finding')}" if n else ""
    return f"{where}{message} ({first.code}{since}){more}"


_EFFECTS = ("loss", "update", "layer")  # kinds of differences that follow from others


def comparison(compared: "Comparison | None") -> list[tuple[str, str]]:
    """Return the differences from a healthy run, one line each; empty without one."""
    if compared is None:
        return []
    n = len(compared.deviations)
    begin = f"the losses are equal for the first {counted(compared.equal_steps, 'step')}"
    words = [begin if compared.equal_steps else "the losses differ from the first step on"]
    words.append(f"{counted(n, 'difference')}, causes first" if n else "no difference above the noise")
    lines = [(f"like {compared.reference}", "; ".join(words))]
    effects = [one for one in compared.deviations if one.kind in _EFFECTS]
    firsts = {one.kind: one for one in reversed(effects)}.values()
    for one in compared.deviations:
        if one.kind in _EFFECTS and one not in firsts:
            continue
        label = f"{one.kind}, {one.where}" if one.where else one.kind
        values = f"{one.here}; there {one.reference}" if one.reference else one.here
        since = "" if one.step is None else f" (from step {one.step} on)"
        lines.append(("", f"{label}: {values}{since}"))
    if n_more := len(effects) - len(firsts):
        lines.append(("", f"{counted(n_more, 'more effect')} on updates, layers and loss (--json lists all)"))
    return lines


def _briefly(finding: "TrainingFinding") -> str:
    since = f"since step {finding.since_step}" if finding.since_step is not None else "over the whole run"
    return f"{finding.code} {finding.rule} ({f'{finding.layer}, ' if finding.layer else ''}{since})"
