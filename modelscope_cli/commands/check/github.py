"""Findings as GitHub Actions shows them beside a change: workflow commands, one a line."""

from modelscope_cli.plain_text import plain
from modelscope_cli.records.check import CheckRecord, Finding


def render_github(record: CheckRecord) -> str:
    """Return `::error title=...::message` for every finding that is not known.

    The escapes are those of actions/toolkit, packages/core/src/command.ts.
    """
    return "".join(_command(finding) + "\n" for finding in record.findings if not finding.known)


def _command(finding: Finding) -> str:
    title = _property(plain(f"{finding.code} {finding.rule}"))
    where = f"{finding.layer}: " if finding.layer else ""
    return f"::{finding.severity} title={title}::{_data(plain(f'{where}{finding.message} ({finding.hint})'))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
