"""One story: the cause first, and below it what follows from it. Standard library only."""

from collections.abc import Sequence

from modelscope_cli.records.check import ERROR
from modelscope_cli.rules.training.case import Case, Link, TrainingRule, TrainingSighting

Found = tuple[TrainingRule, TrainingSighting]

# Wrong, and yet nothing else follows from them.
_EXPLAINS_NOTHING = {"MS716", "MS718", "MS732", "MS734", "MS743", "MS771", "MS772", "MS773"}
_NOT_FINITE = {"MS701", "MS702", "MS703"}
_FIRST_SEEN = 1  # the step at which what happens between two steps can be seen first


def tell(case: Case, found: Sequence[Found]) -> list[tuple[Found, str | None]]:
    """Return each finding and the code of the one that explains it: every cause, followed by what follows.

    What is wrong earlier in the chain explains what is wrong later in it; of the same link, what came first. What
    is certain, a mistake in the data or in the script, is always a cause of its own. What begins once values are
    no longer finite follows from that.
    """
    places = {id(row): at for at, row in enumerate((*case.course.layers, *case.course.parameters))}
    ordered = sorted(found, key=lambda one: _key(one, places))
    broken = min((seen.step or 0 for rule, seen in ordered if rule.code in _NOT_FINITE), default=None)
    causes: list[Found] = []
    follows: list[tuple[Found, str]] = []
    for one in _spoilt_last(ordered, broken):
        cause = next((other for other in causes if _explains(other, one)), None)
        if cause is None:
            causes.append(one)
        else:
            follows.append((one, cause[0].code))
    told: list[tuple[Found, str | None]] = []
    for cause in causes:
        told.append((cause, None))
        told += [(one, code) for one, code in follows if code == cause[0].code]
    return told


def _key(one: Found, places: dict[int, int]) -> tuple[int, bool, int, int]:
    rule, seen = one
    link = _link(one)
    is_certain = link <= Link.WIRING
    severity = seen.severity or rule.severity
    # What is certain goes by its weight, what is a symptom by when it began.
    return link, is_certain and severity != ERROR, seen.step or 0, places.get(id(seen.row), -1)


def _spoilt_last(ordered: Sequence[Found], broken: int | None) -> list[Found]:
    """Put what begins only with, or after, the first value that is not finite behind that value."""
    if broken is None:
        return list(ordered)

    def is_spoilt(one: Found) -> bool:
        rule, seen = one
        return _link(one) >= Link.STEP_SIZE and rule.code not in _NOT_FINITE and (seen.step or 0) >= broken

    return sorted(ordered, key=is_spoilt)


def _explains(cause: Found, one: Found) -> bool:
    (rule, seen), (other, after) = cause, one
    if rule.code in _EXPLAINS_NOTHING or max(other.link, _link(one)) <= Link.WIRING:
        return False  # two mistakes in a script do not follow from each other
    if rule.code in _NOT_FINITE:
        return (after.step or 0) >= (seen.step or 0) or other.code in _NOT_FINITE
    if after.step is not None and after.step < (seen.step or 0) > _FIRST_SEEN:
        return False  # it was there before
    if _link(cause) < _link(one):
        return True
    return _link(cause) == _link(one) >= Link.STEP_SIZE


def _link(one: Found) -> Link:
    rule, seen = one
    return seen.link or rule.link
