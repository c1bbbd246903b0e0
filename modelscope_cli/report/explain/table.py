"""The columns of `explain`."""

from collections import Counter
from statistics import fmean, median
from typing import Any

from modelscope_cli.records.explain import (
    FAILED,
    LEAST_AGREEMENT,
    NONE,
    NOT_MADE,
    PASSED,
    RULE,
    SCATTERED,
    WEAK,
    ExplainedImage,
    ExplainRecord,
    Explanation,
    Receipt,
    TestJudgement,
)
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import headline, hook_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns, inner_columns

_NOT_ALL = "not fully tested"
_MEANT = {
    PASSED: " (covering what they mark lowers the score more than covering shifted copies)",
    WEAK: " (covering shifted copies lowers the score about as much)",
}
_GRADES = (FAILED, WEAK, _NOT_ALL, PASSED)  # a headline begins with the worst
MEANINGS = {
    "receipt": "the tests of a map: repeatability, dependence on the image and on the head, covering",
    "covering": "correlation of the evidence in random halves of the image with the model's score for them; it "
    "must exceed the number in brackets, the 95th percentile for shifted copies of the map, by a standard error",
    "where": "the smallest box with half of the positive evidence, its share of the image; scattered: over a third",
    "agreement": "mean rank correlation with the other maps",
    "repeatability": "similarity of the map to that of a second run",
    "other image": "similarity of the map to that of the image with its right half covered",
    "head randomisation": "similarity of the map to that of a model with a random head",
    "adds up to": "the sum of the map as a share of logit - logit(baseline)",
    "completeness": "by how much the sum of integrated gradients misses that difference, relative to it",
}


def explain_columns() -> tuple[Column, ...]:
    def of_receipt(keys: str, **traits: Any) -> tuple[Column, ...]:
        return inner_columns("receipt", field_columns(Receipt, keys, **traits))

    return (
        *field_columns(Explanation, "method"),
        Column(
            "verdict",
            "verdict",
            _answered,
            lambda r: graded(r.receipt.verdict),
            is_number=False,
            rank=0,
            is_bad=lambda r: _answered(r) not in (None, PASSED),
        ),
        Column("where", "where", lambda r: next(iter(r.places), None), _where, is_number=False),
        *field_columns(Explanation, "layer", text=lambda r: r.layer or "pixels"),
        *field_columns(Explanation, "adds_up_to"),
        *of_receipt("covering", text=_covering),
        *field_columns(Explanation, "agreement"),
        *of_receipt("repeatability other_image head_randomisation covering_chance covering_margin"),
        *field_columns(Explanation, "completeness"),
        Column(
            "failed", "failed", lambda r: "; ".join(r.receipt.failed), is_number=False, rank=9, is_shown=False
        ),
    )


def _where(row: Explanation) -> str:
    if row.where:
        return f"{row.where.place}, {numbers.percent(row.where.share)}"
    return ", ".join(f"{n} {place}" for place, n in row.places.items())


def graded(verdict: TestJudgement | None) -> str:
    """Return the grade of a map; of several images `weak on 1 image, passed on 1`."""
    if verdict is None:
        return ""
    numbers_of = (verdict.failed, verdict.weak, verdict.not_made, verdict.passed)
    grades = zip(_GRADES, numbers_of, strict=True)
    (first, n), *others = ((grade, n) for grade, n in grades if n)
    if n == 1 and not others:
        return first
    return ", ".join([f"{first} on {counted(n, 'image')}", *(f"{grade} on {n}" for grade, n in others)])


def _covering(receipt: Receipt) -> str:
    value, chance = receipt.covering, receipt.covering_chance
    return "" if value is None else f"{value:.2f}" + (f" ({chance:.2f})" if chance is not None else "")


def explain_sheet(record: ExplainRecord) -> Sheet:
    """Return the methods, the winner first."""
    return Sheet(
        title=headline(record.run, record.images),
        columns=explain_columns(),
        rows=record.rows,
        facts=tuple(_facts(record)),
        is_bad=lambda row: bool(row.receipt.failed),
        definitions=("columns", "order"),
    )


def _facts(record: ExplainRecord) -> list[tuple[str, str]]:
    share = f", probability {numbers.percent(record.probability)}" if record.probability is not None else ""
    share += f" (means of {record.images} images)" if record.images > 1 else ""
    facts = [("target", f"{record.target}, {record.score_name} {numbers.number(record.logit)}{share}")]
    # The reason for a layer is the same for all its methods.
    facts += {row.layer or row.method: row.why for row in record.rows}.items()
    answers: dict[str, list[str]] = {}
    for row in record.rows:
        answers.setdefault(_answers(row.receipt), []).append(row.method)
    if any(_answered(row) == PASSED for row in record.rows):
        facts += [("passed", "covering what a map marks lowers the score more than covering shifted copies")]
    for words, methods in answers.items():
        label, _, why = words.partition(": ")
        whose = "all maps" if len(answers) == 1 < len(record.rows) else ", ".join(methods)
        facts += [(label, f"{whose}: {why}")] * bool(words)
    facts += [("where", MEANINGS["where"])] * any(row.where for row in record.rows)
    compared = [(row.method, row.agreement) for row in record.rows if row.agreement is not None]
    apart = [f"{method} {value:+.2f}" for method, value in compared if value < LEAST_AGREEMENT]
    which = f"{len(apart)} of {len(compared)} maps agree{'s' * (len(apart) == 1)} little with the others"
    which += f" (mean rank correlation below {LEAST_AGREEMENT}): {', '.join(apart)}"
    if apart and len(apart) == len(compared):
        mean = fmean(value for _, value in compared)
        which = f"the maps agree little: mean rank correlation {mean:+.2f}, below {LEAST_AGREEMENT}"
    facts += [("agreement", which)] if apart else []
    facts += [("failed", "; ".join(record.failures))] if record.failures else []
    facts += [("left out", why) for why in record.unfit]
    if record.receipt_kind != NONE:
        tests = [one for row in record.rows for one in row.receipt.tests]
        n = sum(one.passed + one.weak + one.failed + one.not_made for one in tests)
        receipt = f"{sum(one.passed for one in tests)} of {n} tests passed; {record.passes:,} passes"
        meanings = "; ".join(": ".join(one) for one in MEANINGS.items() if one[0] != "where")
        facts += [("receipt", receipt), ("columns", meanings), ("order", RULE)]
    facts += hook_facts(record.hooks)
    facts += [("maps", record.tensors)] if record.tensors is not None else []
    return facts


def likelihood(one: ExplainRecord | ExplainedImage) -> str:
    """Return the probability of the target; without one the number that is explained."""
    return numbers.percent(one.probability) or f"{one.score_name} {numbers.number(one.logit)}"


def answer(record: ExplainRecord) -> str:
    """Return the class, where its evidence is, how many maps were tested, and which tests failed."""
    several = f"{record.images} images" + ("" if record.target_index is None else f", class {record.target}")
    head = f"{record.target}, {likelihood(record)}" if record.images == 1 else several
    rows, tested = record.rows, counted(len(record.rows), "map")
    given = {word: [row for row in rows if _answered(row) == word] for word in (FAILED, WEAK, PASSED)}
    n_tested = sum(map(len, given.values()))
    words: list[str] = []
    if record.receipt_kind == NONE:
        tested += ", not tested"
    elif record.images > 1:
        alike: dict[str, list[str]] = {}
        for row in rows:
            alike.setdefault(graded(row.receipt.verdict), []).append(row.method)
        (tested, *words) = (f"{', '.join(names)} {how}" for how, names in alike.items())
    elif not n_tested:
        reasons = dict.fromkeys(row.receipt.verdict.reason for row in rows if row.receipt.verdict)
        tested += f", {_NOT_ALL}: {'; '.join(reasons)}"
    else:
        grades = (f"{len(rows)} {grade}{_MEANT.get(grade, '')}" for grade, rows in given.items() if rows)
        tested = f"{n_tested} of {tested} tested: {', '.join(grades)}"
        for row in given[FAILED]:
            failed = [one.test for one in row.receipt.tests if one.answer == FAILED]
            words.append(f"{row.method} fails {', '.join(failed)}")
        rest = [row.method for row in rows if _answered(row) not in given]
        words += [f"{_NOT_ALL}: {', '.join(rest)}"] if rest else []
    boxes = [(row.where, row) for row in rows if row.where and not row.receipt.failed]
    if boxes:
        counts = Counter(box.place for box, _ in boxes)
        place = max(counts, key=lambda one: (counts[one], one != SCATTERED))
        maps = f"{counts[place]} of {counted(len(boxes), 'map')}"
        sure = sum(_answered(row) == PASSED for box, row in boxes if box.place == place)
        maps += f", {sure or 'none'} of which passed" * (sure < counts[place] and n_tested > 0)
        share = numbers.percent(median(box.share for box, _ in boxes if box.place == place))
        head += f": the evidence is {_AT.get(place, 'in the ')}{place} ({share} of the image; {maps})"
    words = [f"{head}{';' if boxes or record.images > 1 else ':'} {tested}", *words]
    words += ["the weights are random"] if record.run.model.weights.resolved == "random" else []
    words += [] if record.passed else ["the requirement is not met"]
    return "; ".join(words)


_AT = {SCATTERED: "", "top": "at the ", "bottom": "at the ", "left": "on the ", "right": "on the "}


def _answered(row: Explanation) -> str | None:
    return row.receipt.verdict.answer if row.receipt.verdict else None


def _answers(receipt: Receipt) -> str:
    """Return which tests failed, were weak or not run, and why; for several images, with counts."""
    results = []
    for answer, words in ((FAILED, "failed"), (WEAK, "weak"), (NOT_MADE, "not run")):
        reasons: dict[str, list[str]] = {}
        for one in receipt.tests:
            n_images = one.passed + one.weak + one.failed + one.not_made
            n = getattr(one, answer.replace(" ", "_"))
            if one.answer == answer:
                name = one.test if n_images == 1 else f"{one.test} ({n} of {n_images} images)"
                reasons.setdefault(one.reason, []).append(name)
        if reasons:
            tests = ", ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
            results.append(f"{words}: {tests}")
    return "; ".join(results)
