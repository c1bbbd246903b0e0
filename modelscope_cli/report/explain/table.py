"""The columns of `explain`."""

from typing import Any

from modelscope_cli.records.explain import (
    FAILED,
    NONE,
    NOT_MADE,
    PASSED,
    RULE,
    WEAK,
    ExplainedImage,
    ExplainRecord,
    Explanation,
    Receipt,
)
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import headline, hook_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns, inner_columns

_MEANINGS = (
    "covering: correlation between the evidence in random halves of the image and the model's score for them (in "
    "brackets: the 95th percentile for shifted copies of the map, which it has to exceed); "
    "repeatability, other image, head randomisation: similarity of the map to a second run, to that of the image "
    "with its right half covered, and to that of a model with a random head; completeness: the sum of the map "
    "as a share of logit - logit(baseline)"
)


def explain_columns(record: ExplainRecord | None = None) -> tuple[Column, ...]:
    """Return all columns; `record`: to hide those of a receipt where none was asked for."""

    def of_receipt(keys: str, **traits: Any) -> tuple[Column, ...]:
        return inner_columns("receipt", field_columns(Receipt, keys, **traits))

    return (
        *field_columns(Explanation, "method"),
        Column(
            "verdict",
            "verdict",
            lambda r: r.receipt.verdict.answer if r.receipt.verdict else None,
            _verdict,
            is_number=False,
            rank=0,
            is_shown=record is None or record.receipt_kind != NONE,
            is_bad=lambda r: r.receipt.verdict is not None and r.receipt.verdict.answer != PASSED,
        ),
        *field_columns(Explanation, "layer", text=lambda r: r.layer or "pixels"),
        *field_columns(Explanation, "adds_up_to adds_up"),
        *of_receipt("covering", text=_covering),
        *of_receipt("repeatability other_image head_randomisation covering_chance"),
        *field_columns(Explanation, "completeness steps"),
        *field_columns(Explanation, "seconds", text=lambda r: f"{r.seconds:.2f}"),
        Column(
            "failed", "failed", lambda r: "; ".join(r.receipt.failed), is_number=False, rank=9, is_shown=False
        ),
    )


def _verdict(row: Explanation) -> str:
    verdict = row.receipt.verdict
    if verdict is None:
        return ""
    n = verdict.passed + verdict.weak + verdict.failed
    is_one = n + verdict.not_made == 1 or not n
    return verdict.answer if is_one else f"{verdict.answer} ({verdict.passed} of {n} tested)"


def _covering(receipt: Receipt) -> str:
    value, chance = receipt.covering, receipt.covering_chance
    return "" if value is None else f"{value:.2f}" + (f" ({chance:.2f})" if chance is not None else "")


def explain_sheet(record: ExplainRecord) -> Sheet:
    """Return the methods, the winner first."""
    return Sheet(
        title=headline(record.run, record.images),
        columns=explain_columns(record),
        rows=record.rows,
        facts=tuple(_facts(record)),
        is_bad=lambda row: bool(row.receipt.failed),
        definitions=("columns", "order"),
    )


def _facts(record: ExplainRecord) -> list[tuple[str, str]]:
    share = f", probability {numbers.percent(record.probability)}" if record.probability is not None else ""
    facts = [("target", f"{record.target}, {record.score_name} {numbers.number(record.logit)}{share}")]
    # The reason for a layer is the same for all its methods.
    facts += {row.layer or row.method: row.why for row in record.rows}.items()
    answers: dict[str, list[str]] = {}
    for row in record.rows:
        answers.setdefault(_answers(row.receipt), []).append(row.method)
    is_shared = len(answers) == 1 < len(record.rows)
    facts += [
        ("all maps" if is_shared else ", ".join(methods), words)
        for words, methods in answers.items()
        if words
    ]
    facts += [("left out", why) for why in record.unfit]
    if record.receipt_kind != NONE:
        facts += [("receipt", _counted(record)), ("columns", _MEANINGS), ("order", RULE)]
    facts += hook_facts(record.hooks)
    facts += [("maps", record.tensors)] if record.tensors is not None else []
    return facts


def likelihood(one: ExplainRecord | ExplainedImage) -> str:
    """Return the probability of the target; without one the number that is explained."""
    return numbers.percent(one.probability) or f"{one.score_name} {numbers.number(one.logit)}"


def answer(record: ExplainRecord) -> str:
    """Return the class, how many maps were tested and how they did, and what those that failed did not pass."""
    share = likelihood(record)
    several = f"{record.images} images" + ("" if record.target_index is None else f", class {record.target}")
    words = [f"{record.target}, {share}" if record.images == 1 else several]
    rows, n = record.rows, len(record.rows)
    given = {word: [row for row in rows if _answered(row) == word] for word in (PASSED, WEAK, FAILED)}
    n_tested = sum(map(len, given.values()))
    if not n_tested:
        words[0] += f": {counted(n, 'map')}, not tested"
    elif record.images > 1:
        verdicts = [(row.method, row.receipt.verdict) for row in rows if row.receipt.verdict]
        counts = [f"{method} {one.passed} of {record.images}" for method, one in verdicts]
        words[0] += f"; tests passed: {', '.join(counts)}"
    else:
        how = {"passes" if len(given[PASSED]) == 1 else "pass": PASSED, "weak": WEAK}
        how |= {"fails" if len(given[FAILED]) == 1 else "fail": FAILED}
        grades = ", ".join(f"{len(given[one])} {word}" for word, one in how.items() if given[one])
        words[0] += f": {n_tested} of {counted(n, 'map')} tested, {grades}"
        for row in given[FAILED]:
            failed = [one.test for one in row.receipt.tests if one.answer == FAILED]
            words.append(f"{row.method} fails {', '.join(failed)}")
        rest = [row.method for row in rows if _answered(row) not in given]
        words += [f"not tested: {', '.join(rest)}"] if rest else []
    words += [] if record.passed else ["the requirement is not met"]
    return "; ".join(words)


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


def _counted(record: ExplainRecord) -> str:
    """Count the test results of all methods and images."""
    tests = [one for row in record.rows for one in row.receipt.tests]
    names = ("passed", "weak", "failed", "not_made")
    passed, weak, failed, not_made = (sum(getattr(one, answer) for one in tests) for answer in names)
    tested = f"{passed} tests passed, {weak} weak, {failed} failed, {not_made} not run"
    return f"{tested}; {record.passes:,} passes through the model"
