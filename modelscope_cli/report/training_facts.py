"""What is said below a table about a training: the verdict, its causes, and what differs from a healthy run."""

from collections.abc import Sequence

from modelscope_cli.records.naming import counted
from modelscope_cli.records.training_facts import Comparison
from modelscope_cli.records.watch import SOUND, TrainingFinding


def story(
    findings: Sequence[TrainingFinding], verdict: str, reason: str | None, at: str = ""
) -> list[tuple[str, str]]:
    """Return the verdict, causes and consequences as lines below a table.

    Args:
        reason: why there is no verdict, or what it does not cover.
        at: prefix of each cause: the name of the training, if there are several.
    """
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
    findings: Sequence[TrainingFinding], verdict: str, reason: str | None, course: str = ""
) -> str:
    """Return the verdict on a training in one sentence: the first cause, or how it went.

    Args:
        course: how loss and accuracy went.
    """
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


def comparison(compared: Comparison | None) -> list[tuple[str, str]]:
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


def _briefly(finding: TrainingFinding) -> str:
    since = f"since step {finding.since_step}" if finding.since_step is not None else "over the whole run"
    return f"{finding.code} {finding.rule} ({f'{finding.layer}, ' if finding.layer else ''}{since})"
