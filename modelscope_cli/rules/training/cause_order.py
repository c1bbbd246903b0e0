"""Order findings from cause to symptom. Standard library only."""

from collections.abc import Sequence

from modelscope_cli.records.check import ERROR
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingRule, TrainingSighting

Found = tuple[TrainingRule, TrainingSighting]

# Faults that explain no other finding.
_EXPLAINS_NOTHING = {"MS716", "MS718", "MS732", "MS734", "MS743"}
_NOT_FINITE = {"MS701", "MS702", "MS703"}
_FIRST_SEEN = 1  # the first step at which a change between two steps can be seen


def tell(case: Case, found: Sequence[Found]) -> list[tuple[Found, str | None]]:
    """Return each finding and the code of the one that explains it, with each cause before its symptoms.

    Findings explain those later in the chain; with the same link, the first one does. Certain faults in the data or
    the script are always causes. Findings that begin after the first non-finite value follow from that.
    """
    places = {id(row): at for at, row in enumerate((*case.course.layers, *case.course.parameters))}
    ordered = sorted(found, key=lambda one: _key(one, places))
    broken = min((sighting.step or 0 for rule, sighting in ordered if rule.code in _NOT_FINITE), default=None)
    causes: list[Found] = []
    follows: list[tuple[Found, str]] = []
    for one in _spoilt_last(ordered, broken):
        cause = next((other for other in causes if _explains(other, one)), None)
        if cause is None:
            causes.append(one)
        else:
            follows.append((one, cause[0].code))
    explained: list[tuple[Found, str | None]] = []
    for cause in causes:
        explained.append((cause, None))
        explained += [(one, code) for one, code in follows if code == cause[0].code]
    return explained


def _key(one: Found, places: dict[int, int]) -> tuple[int, bool, int, int]:
    rule, sighting = one
    link = _link(one)
    is_certain = link <= Link.WIRING
    severity = sighting.severity or rule.severity
    # Certain findings are sorted by severity, symptoms by their first step.
    return link, is_certain and severity != ERROR, sighting.step or 0, places.get(id(sighting.row), -1)


def _spoilt_last(ordered: Sequence[Found], broken: int | None) -> list[Found]:
    """Put findings that begin with or after the first non-finite value behind that finding."""
    if broken is None:
        return list(ordered)

    def is_spoilt(one: Found) -> bool:
        rule, sighting = one
        return (
            _link(one) >= Link.STEP_SIZE and rule.code not in _NOT_FINITE and (sighting.step or 0) >= broken
        )

    return sorted(ordered, key=is_spoilt)


def _explains(cause: Found, one: Found) -> bool:
    (rule, sighting), (other, after) = cause, one
    if _link(one) is Link.SPEED:
        return False
    if rule.code in _EXPLAINS_NOTHING or max(other.link, _link(one)) <= Link.WIRING:
        return False  # two faults in a script are independent
    if rule.code in _NOT_FINITE:
        return (after.step or 0) >= (sighting.step or 0) or other.code in _NOT_FINITE
    if after.step is not None and after.step < (sighting.step or 0) > _FIRST_SEEN:
        return False  # it began earlier
    if _link(cause) < _link(one):
        return True
    return _link(cause) == _link(one) >= Link.STEP_SIZE


def _link(one: Found) -> Link:
    rule, sighting = one
    return sighting.link or rule.link
