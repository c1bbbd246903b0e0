"""What GitHub Actions shows: findings beside the lines they are about, and a summary of the step."""

import os
from pathlib import Path

from modelscope_cli.commands.check.table import sentence, unjudged_reasons
from modelscope_cli.plain_text import plain
from modelscope_cli.records.check import CheckRecord, Finding


def render_github(record: CheckRecord) -> str:
    """Return `::error file=...,line=...,title=...::message` for every finding that is not known, a `::notice` of
    what was not judged, and the verdict.

    A finding about what is in no file of the repository has a title only, and stands on the page of the run. The
    escapes are those of actions/toolkit, packages/core/src/command.ts.
    """
    commands = [_command(finding) for finding in record.findings if not finding.known]
    if record.unjudged:
        title = f"not judged: {len(record.unjudged)} of {len(record.rules)} rules"
        commands.append(
            f"::notice title={_property(title)}::{_data(plain('; '.join(unjudged_reasons(record))))}"
        )
    return "".join(f"{line}\n" for line in (*commands, f"modelscope check: {plain(sentence(record))}"))


def append_summary(text: str) -> None:
    """Append Markdown to the page of the run where GitHub Actions says which file that is.

    Raises:
        OSError: the file cannot be written.
    """
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if file:
        with Path(file).open("a", encoding="utf-8") as summary:
            summary.write(f"{text}\n")


def _command(finding: Finding) -> str:
    at = finding.made_at
    place = f"file={_property(plain(at.file))},line={at.line}," if at else ""
    title = _property(plain(f"{finding.code} {finding.rule}"))
    where = f"{finding.layer}: " if finding.layer else ""
    text = _data(plain(f"{where}{finding.message} ({finding.hint})"))
    return f"::{finding.severity} {place}title={title}::{text}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
