"""What came of a command, in a few words and as one of four kinds."""

from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import counted, some
from modelscope_cli.report import views
from modelscope_cli.report.page.html import Html, element

ERROR, WARNING, SOUND, NONE = "error", "warning", "sound", ""
_OF_VERDICT = {"fault": ERROR, "nothing wrong": SOUND, "cannot tell": WARNING}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` is `error`, `warning`, `sound`, or empty where nothing is judged."""

    kind: str
    words: str


def outcome(record: Any) -> Outcome:
    """Return what a result says of the model; where nothing is judged, how many rows deserve a look."""
    found = judged(record)
    if found is not None:
        return found
    sheet = views.sheet_of(record)
    marked = sum(map(sheet.is_bad, sheet.rows))
    return Outcome(WARNING if marked else NONE, f"{counted(marked, 'row')} marked" if marked else "")


def judged(record: Any) -> Outcome | None:
    """Return the verdict of a command that gives one."""
    verdict = getattr(record, "verdict", None)
    if isinstance(verdict, str):
        codes = dict.fromkeys(one.code for one in record.findings)
        words = {"fault": f"something is wrong: {some(codes)}", "nothing wrong": "nothing wrong found"}
        return Outcome(_OF_VERDICT.get(verdict, NONE), words.get(verdict, f"cannot tell: {record.reason}"))
    passed = getattr(record, "passed", None)
    if record.command == "check":
        new = [one for one in record.findings if not one.known]
        if not passed:
            return Outcome(ERROR, "failed")
        return (
            Outcome(WARNING, f"passed with {counted(len(new), 'finding')}")
            if new
            else Outcome(SOUND, "passed")
        )
    if record.command == "diff":
        return Outcome(SOUND if record.is_same else WARNING, "the same" if record.is_same else "different")
    if record.command == "attack":
        return Outcome(WARNING, "fooled") if record.success_saved else Outcome(NONE, "not fooled")
    return None


def badge(found: Outcome, words: str = "") -> Html:
    """Return an outcome as it stands at the head of a page. `words`: others than its own."""
    return element("p", element("span", words or found.words, class_=f"verdict {found.kind}".strip()))
