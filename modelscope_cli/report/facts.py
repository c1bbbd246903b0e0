"""Lines that stand under several tables: what every `--hook` did, what was not called, what was written."""

from collections.abc import Iterator, Sequence

from modelscope_cli.records.certificate import Certificate
from modelscope_cli.records.hooks import HookReport
from modelscope_cli.report import numbers


def hook_facts(reports: Sequence[HookReport]) -> Iterator[tuple[str, str]]:
    """Give one line a hook."""
    for report in reports:
        yield "hook", f"{report.spec}: {_what_it_did(report)}"


def not_called_facts(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name the layers that were asked for and that the forward did not call, if any."""
    if layers:
        yield "not called", ", ".join(layers)


def report_facts(folder: str | None, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Say where the report was written, if it was."""
    if folder is not None:
        yield "report", f"{folder} ({', '.join(files)})"


def certificate_facts(certificate: Certificate | None) -> Iterator[tuple[str, str]]:
    """Say what the result vouches for, where it was made of blocks."""
    if certificate is not None:
        yield "certificate", certificate.words


def _what_it_did(report: HookReport) -> str:
    n = len(report.layers)
    where = report.layers[0] if n == 1 else f"{n} layers"
    if not report.fired:
        return f"never fired at {where}"
    times = "once" if report.fired == 1 else f"{numbers.count(report.fired)} times"
    parts = [f"fired {times} at {where}"]
    if report.never_fired:
        parts.append(f"{len(report.never_fired)} of them not reached")
    if report.changed_fraction is not None:
        gap = numbers.number(report.max_abs_difference)
        parts.append(f"{numbers.percent(report.changed_fraction)} of the values changed, by at most {gap}")
    if report.file:
        parts.append(f"wrote {report.file}")
    if report.moved:
        parts.append("in place, see the warning")
    return ", ".join(parts)
