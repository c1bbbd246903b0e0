"""The verdict on a training as people read it: each cause, what to try, and what follows from it in one line."""

from collections.abc import Sequence

from modelscope_cli.records.naming import counted
from modelscope_cli.records.reference import Comparison
from modelscope_cli.records.watch import SOUND, TrainingFinding


def story(
    findings: Sequence[TrainingFinding], verdict: str, reason: str | None, at: str = ""
) -> list[tuple[str, str]]:
    """Return the lines below a table.

    Args:
        reason: why it cannot be told, or what the verdict is not about.
        at: stands before each cause: of several trainings, which.
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


def comparison(compared: Comparison | None) -> list[tuple[str, str]]:
    """Return what differs from a run that was fine, a line each; nothing where none was given."""
    if compared is None:
        return []
    n = len(compared.deviations)
    begin = f"the losses are equal for the first {counted(compared.equal_steps, 'step')}"
    words = [begin if compared.equal_steps else "the losses differ from the first step on"]
    words.append(f"{counted(n, 'difference')}, causes first" if n else "no difference beyond the noise")
    lines = [(f"like {compared.reference}", "; ".join(words))]
    for one in compared.deviations:
        what = f"{one.kind}, {one.where}" if one.where else one.kind
        values = f"{one.here}; there {one.reference}" if one.reference else one.here
        lines.append(
            ("", f"{what}: {values}" + (f" (from step {one.step} on)" if one.step is not None else ""))
        )
    return lines


def _briefly(finding: TrainingFinding) -> str:
    since = f"since step {finding.since_step}" if finding.since_step is not None else "over the whole run"
    return f"{finding.code} {finding.rule} ({f'{finding.layer}, ' if finding.layer else ''}{since})"
