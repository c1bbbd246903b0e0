"""Titles and facts that tables share: inputs, hooks, files."""

from collections.abc import Iterator, Sequence

from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import HookReport, Run
from modelscope_cli.records.stats import InputStats
from modelscope_cli.report import numbers

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
