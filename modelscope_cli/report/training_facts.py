"""What is said below a table about a training: the verdict and its causes."""

from collections.abc import Sequence

from modelscope_cli.errors import commented
from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import CRASHED, LEARNING, SOUND, TrainingFinding

NO_METRIC = "no fault found; without a metric the quality is unknown"


def story(findings: Sequence[TrainingFinding], verdict: str, reason: str | None) -> list[tuple[str, str]]:
    """Return the verdict with its reason, the causes and consequences as lines below a table."""
    lines = []
    if not findings or verdict == CRASHED:
        sentence = training_answer((), verdict, reason)
        lines.append(("verdict", f"{sentence[:1].lower()}{sentence[1:]}"))
    for cause in (one for one in findings if one.follows is None):
        where = f"{cause.layer}: " if cause.layer else ""
        place = f" ({cause.place})" if cause.place else ""
        lines.append((f"{cause.severity} {cause.code}", f"{where}{cause.message}{place}"))
        lines.append(("", f"try: {commented(cause.hint)}"))
        if followed := [one for one in findings if one.follows == cause.code]:
            lines.append(("", f"consequences: {', '.join(map(_briefly, followed))}"))
    return lines


def training_answer(
    findings: Sequence[TrainingFinding], verdict: str, reason: str | None, course: str = ""
) -> str:
    """Return the verdict on a training in one sentence: the first cause, or the course of loss and accuracy."""
    if verdict == CRASHED and reason is not None:
        more = f"; {counted(len(findings), 'finding')}" if findings else ""
        return f"{reason[:1].upper()}{reason[1:]}{more}"
    if not findings:
        if verdict == LEARNING:
            return f"Learning: {reason}; {NO_METRIC}"
        if verdict == SOUND:
            is_told = "the loss fell" in (reason or "")
            return "; ".join(filter(None, ["Nothing wrong found", reason, "" if is_told else course]))
        return f"Cannot tell yet: {reason}"
    first, n = findings[0], len(findings) - 1
    where = f"{first.layer}: " if first.layer else ""
    message = first.proved.sentence if first.proved else first.message.partition("; also ")[0]
    is_dated = first.since_step is not None and "step" not in message
    since = f" since step {first.since_step}" if is_dated else ""
    more = f"; {counted(n, 'more finding')}" if n else ""
    return f"{where}{message} ({first.code}{since}){more}"


def _briefly(finding: TrainingFinding) -> str:
    details = [finding.layer or "", f"since step {finding.since_step}" if finding.since_step else ""]
    shown = ", ".join(filter(None, details))
    return f"{finding.code} {finding.rule}" + (f" ({shown})" if shown else "")
