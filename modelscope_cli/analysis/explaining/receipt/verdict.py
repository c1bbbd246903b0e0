"""The tests of a receipt, and the ranking of explanations."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from modelscope_cli.records.explain import (
    FAILED,
    LEAST_REPEATED,
    MOST_HEAD,
    MOST_INCOMPLETE,
    MOST_OTHER_IMAGE,
    NOT_MADE,
    NOT_TESTED,
    PASSED,
    WEAK,
    Receipt,
    TestJudgement,
)

_VERDICT = "verdict"
_ANSWERS = (FAILED, NOT_MADE, NOT_TESTED, WEAK, PASSED)  # ties are decided in this order


@dataclass(frozen=True, slots=True)
class _Test:
    """A test of one figure."""

    value: str  # a field of the receipt
    is_met: Callable[[float], bool]
    failed: str  # the message if it is not


_TESTS = {
    "repeat": _Test("repeatability", LEAST_REPEATED.__le__, "a second run gives a different map"),
    "image": _Test(
        "other_image", MOST_OTHER_IMAGE.__ge__, "the map does not change when half of the image is covered"
    ),
    "covering": _Test("covering", (0.0).__lt__, "the score does not fall when what the map marks is covered"),
    "head": _Test("head_randomisation", MOST_HEAD.__ge__, "the map does not change with a random head"),
    "completeness": _Test("", MOST_INCOMPLETE.__ge__, "the sum of the map is more than 10 % off"),
}
_NEEDED = {"repeat", "covering", "head"}  # to pass


def judged(
    receipt: Receipt, reasons: Mapping[str, str] | None = None, completeness: float | None = None
) -> Receipt:
    """Return the receipt of one map with the answer of every test and the verdict.

    Args:
        reasons: why a test could not be made, by test.
        completeness: the error of the map's sum; None to omit that test.
    """
    answers = []
    for name, test in _TESTS.items():
        value = getattr(receipt, test.value) if test.value else completeness
        if not test.value and value is None:
            continue
        if value is None or not math.isfinite(value):
            answers.append(_answered(name, NOT_MADE, (reasons or {}).get(name, "could not be measured")))
        elif name == "covering" and 0 < value <= (receipt.covering_chance or 0) + (
            receipt.covering_margin or 0
        ):
            answers.append(
                _answered(name, WEAK, "the score falls about as much for shifted copies of the map")
            )
        elif test.is_met(value):
            answers.append(_answered(name, PASSED))
        else:
            answers.append(_answered(name, FAILED, test.failed))
    return _with(receipt, tuple(answers), _verdict(answers))


def together(receipt: Receipt, each: Sequence[Receipt]) -> Receipt:
    """Return the receipt for several images, with the most frequent answer of each test."""
    names = dict.fromkeys(answer.test for one in each for answer in one.tests)
    tests = [[answer for one in each for answer in one.tests if answer.test == name] for name in names]
    verdict = _most([one.verdict for one in each if one.verdict is not None])
    return _with(receipt, tuple(filter(None, map(_most, tests))), verdict)


def _most(answers: Sequence[TestJudgement]) -> TestJudgement | None:
    if not answers:
        return None
    counts = {answer: sum(one.answer == answer for one in answers) for answer in _ANSWERS}
    commonest = max(counts, key=lambda answer: counts[answer])
    reasons = Counter(one.reason for one in answers if one.answer == commonest).most_common()
    several = len(reasons) > 1 and commonest in (NOT_MADE, NOT_TESTED)
    reason = "; ".join(f"{text} in {n}" for text, n in reasons) if several else reasons[0][0]
    not_made = counts[NOT_MADE] + counts[NOT_TESTED]
    return TestJudgement(
        answers[0].test, commonest, reason, counts[PASSED], counts[FAILED], not_made, counts[WEAK]
    )


def _answered(test: str, answer: str, reason: str = "") -> TestJudgement:
    kinds = ((PASSED,), (FAILED,), (NOT_MADE, NOT_TESTED), (WEAK,))
    passed, failed, not_made, weak = (int(answer in kind) for kind in kinds)
    return TestJudgement(test, answer, reason, passed, failed, not_made, weak)


def _verdict(answers: Sequence[TestJudgement]) -> TestJudgement:
    """Return `failed` if any test failed, `weak` if one was weak, `passed` if the needed ones passed, else
    `not tested`."""
    for answer in (FAILED, WEAK):
        if found := [one.reason for one in answers if one.answer == answer]:
            return _answered(_VERDICT, answer, "; ".join(found))
    if {one.test for one in answers if one.answer == PASSED} >= _NEEDED:
        return _answered(_VERDICT, PASSED)
    reasons = dict.fromkeys(one.reason for one in answers if one.answer == NOT_MADE)
    return _answered(_VERDICT, NOT_TESTED, "; ".join(reasons))


def _with(receipt: Receipt, tests: tuple[TestJudgement, ...], verdict: TestJudgement | None) -> Receipt:
    failed = tuple(test.reason for test in tests if test.answer == FAILED)
    return replace(receipt, tests=tests, failed=failed, verdict=verdict)


def winner_first(receipts: Mapping[str, Receipt], scattered: Collection[str] = ()) -> list[str]:
    """Rank methods by failed tests, tests not made and weak ones, those with a place first, then by covering."""

    def rank(name: str) -> tuple[int, int, int, bool, float]:
        answers = [test.answer for test in receipts[name].tests]
        covering = math.inf if receipts[name].covering is None else -(receipts[name].covering or 0.0)
        n_failed, n_missing, n_weak = len(receipts[name].failed), answers.count(NOT_MADE), answers.count(WEAK)
        return n_failed, n_missing, n_weak, name in scattered, covering

    return sorted(receipts, key=rank)
