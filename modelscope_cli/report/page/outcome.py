"""What came of a command, in a few words and as one of four kinds."""

from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.check import NOT_JUDGED
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.watch import FAULT, UNKNOWN
from modelscope_cli.records.watch import SOUND as HEALTHY
from modelscope_cli.report import views
from modelscope_cli.report.page.html import Html, element

ERROR, WARNING, SOUND, NONE = "error", "warning", "sound", ""
KINDS = {FAULT: ERROR, UNKNOWN: WARNING, HEALTHY: SOUND}  # of the verdicts on a training, the worst first


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
    training = _worst(record)
    if training is not None:
        codes = dict.fromkeys(one.code for one in record.findings)
        words = {FAULT: f"something is wrong: {some(codes)}", HEALTHY: "nothing wrong found"}
        told = words.get(training.verdict, f"cannot tell: {training.reason}")
        return Outcome(KINDS.get(training.verdict, NONE), told)
    passed = getattr(record, "passed", None)
    if record.command == "check":
        new = [one for one in record.findings if not one.known]
        if record.verdict == NOT_JUDGED:
            return Outcome(WARNING, NOT_JUDGED)
        if not passed:
            return Outcome(ERROR, "failed")
        if new:
            return Outcome(WARNING, f"passed with {counted(len(new), 'finding')}")
        return Outcome(SOUND, "passed")
    if record.command == "diff":
        return Outcome(SOUND if record.is_same else WARNING, "the same" if record.is_same else "different")
    if record.command == "attack":
        return Outcome(WARNING, "fooled") if record.success_saved else Outcome(NONE, "not fooled")
    return None


def _worst(record: Any) -> Any:
    """Return the training that is judged, of several the one with the worst verdict; None of other results."""
    trainings = [record] if record.command == "watch" else getattr(record, "trainings", ())
    order = [*KINDS]
    return min(
        trainings, key=lambda one: order.index(one.verdict) if one.verdict in order else -1, default=None
    )


def badge(found: Outcome, words: str = "") -> Html:
    """Return an outcome as it stands at the head of a page. `words`: others than its own."""
    return element("p", element("span", words or found.words, class_=f"verdict {found.kind}".strip()))
