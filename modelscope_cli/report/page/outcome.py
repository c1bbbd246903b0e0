"""What came of a command, in a few words and as one of four kinds."""

from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import counted, some
from modelscope_cli.report import views

ERROR, WARNING, SOUND, NONE = "error", "warning", "sound", ""
_OF_VERDICT = {"fault": ERROR, "nothing wrong": SOUND, "cannot tell": WARNING}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` is `error`, `warning`, `sound`, or empty where nothing is judged."""

    kind: str
    words: str


def outcome(record: Any) -> Outcome:
    """Return what a result says of the model."""
    verdict = getattr(record, "verdict", None)
    if isinstance(verdict, str):
        codes = dict.fromkeys(one.code for one in record.findings)
        words = {"fault": f"something is wrong: {some(codes)}", "nothing wrong": "nothing wrong found"}
        return Outcome(_OF_VERDICT.get(verdict, NONE), words.get(verdict, f"cannot tell: {record.reason}"))
    passed = getattr(record, "passed", None)
    if record.command == "check":
        return Outcome(SOUND if passed else ERROR, "passed" if passed else "failed")
    if record.command == "diff":
        return Outcome(SOUND if record.is_same else WARNING, "the same" if record.is_same else "different")
    sheet = views.sheet_of(record)
    marked = sum(map(sheet.is_bad, sheet.rows))
    return Outcome(WARNING if marked else NONE, f"{counted(marked, 'row')} marked" if marked else "")
