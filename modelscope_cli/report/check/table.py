"""The table of `check`, and its findings for CI hosts."""

import os
from collections.abc import Iterator
from dataclasses import replace

from modelscope_cli.errors import commented
from modelscope_cli.paths import in_repository
from modelscope_cli.records.check import CheckRecord, DatasetReport
from modelscope_cli.records.findings import NEVER, NOT_JUDGED, Finding
from modelscope_cli.records.naming import counted, some
from modelscope_cli.report import numbers
from modelscope_cli.report.ci import Problem, Review
from modelscope_cli.report.numbers import input_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns


def _text(value: float | str | None) -> str:
    return value if isinstance(value, str) else numbers.number(value)


COLUMNS = (
    *field_columns(Finding, "code"),
    *field_columns(
        Finding,
        "severity",
        text=lambda r: f"{r.severity}, known" if r.known else r.severity,
        is_bad=lambda r: r.severity == "error" and not r.known,
    ),
    *field_columns(Finding, "rule"),
    *field_columns(Finding, "layer", text=lambda r: r.layer or "the model", also=("image",)),
    *field_columns(Finding, "value", text=lambda r: _text(r.value)),
    *field_columns(Finding, "threshold", text=lambda r: _text(r.threshold)),
    *field_columns(Finding, "message hint known"),
    Column("file", "file", lambda r: r.made_at and r.made_at.file, is_number=False, is_shown=False),
    Column("line", "line", lambda r: r.made_at.line if r.made_at else None, is_shown=False),
)


# In a data set a finding is about an image.
_OF_IMAGES = tuple(
    replace(column, title="image", text=lambda r: r.layer or "the images")
    if column.key == "layer"
    else column
    for column in COLUMNS
)


def check_sheet(record: CheckRecord) -> Sheet:
    """Return the findings, errors first, with a hint for every rule that fired."""
    return Sheet(
        title=_subject(record),
        columns=COLUMNS if record.dataset is None else _OF_IMAGES,
        rows=record.findings,
        facts=(*_facts(record), ("verdict", _result(record))),
        is_dim=lambda row: row.known,
        is_bad=lambda row: not row.known,
    )


def verdict(record: CheckRecord) -> str:
    """Return the new findings as lines: where, what, and one hint per rule."""
    lines = [f"{_subject(record)}: {sentence(record)}"]
    for code, hint in _hints(record).items():
        findings = [one for one in record.findings if one.code == code and not one.known]
        lines += [f"{code} {one.severity}: {one.layer or _whole(record)}: {one.message}" for one in findings]
        lines.append(f"      hint: {hint}")
    return "\n".join(lines)


def answer(record: CheckRecord) -> str:
    """Return the outcome with the codes of the new findings, and how much was not judged."""
    codes = dict.fromkeys(one.code for one in record.findings if not one.known)
    words = _outcome(record) + (f": {some(codes)}" if codes else "")
    return "; ".join(filter(None, [words[:1].upper() + words[1:], _unjudged(record)]))


def _hints(record: CheckRecord) -> dict[str, str]:
    """Return a hint for each rule with a new finding, about the first of them."""
    found: dict[str, str] = {}
    for one in record.findings:
        if not one.known:
            found.setdefault(one.code, commented(one.hint))
    return found


def _whole(record: CheckRecord) -> str:
    return "the model" if record.dataset is None else "the images"


def sentence(record: CheckRecord) -> str:
    """Return the outcome with its codes: `passed: nothing found; 2 of 7 rules were not judged: MS301 MS302`."""
    return _result(record) + ": " * bool(record.unjudged) + " ".join(rule.code for rule in record.unjudged)


def _result(record: CheckRecord) -> str:
    return "; ".join(filter(None, [_outcome(record), _unjudged(record)]))


def _outcome(record: CheckRecord) -> str:
    new = _counted(record)
    n_known = sum(finding.known for finding in record.findings)
    known_count = f"{n_known} known" if n_known else ""
    if record.verdict == NOT_JUDGED:
        return "not judged: neither passed nor failed"
    if not record.passed:
        return f"failed with {new}" + (f" ({known_count})" if known_count else "")
    if not new:
        return f"passed: no new findings ({known_count})" if known_count else "passed: nothing found"
    why = "no finding fails the check" if record.fail_on == NEVER else "only errors fail the check"
    return f"passed with {new} ({'; '.join(filter(None, [known_count, why]))})"


def _unjudged(record: CheckRecord) -> str:
    """Count what was not judged, including unreadable images; empty if everything was."""
    info, n = record.run.input, len(record.unjudged)
    words = [one.message for one in record.run.warnings if one.code in ("interrupted", "other_kinds")]
    if info and info.n_broken:
        words.append(f"{info.n_broken:,} of {counted(info.n_files, 'image')} could not be read")
    if n:
        words.append(f"{n} of {counted(len(record.rules), 'rule')} {'was' if n == 1 else 'were'} not judged")
    return "; ".join(words)


def unjudged_reasons(record: CheckRecord) -> list[str]:
    """Return why rules were not judged, one line per reason: `MS502 MS503: no budget is set`."""
    codes: dict[str, list[str]] = {}
    for rule in record.unjudged:
        codes.setdefault(rule.reason or "", []).append(rule.code)
    return [f"{' '.join(rule_codes)}: {reason}" for reason, rule_codes in codes.items()]


def _subject(record: CheckRecord) -> str:
    model, info = record.run.model, record.run.input
    if record.dataset is not None:
        against = f", compared with {', '.join(record.dataset.against)}" if record.dataset.against else ""
        return f"{model.name}{against} ({counted(record.images, 'image')})"
    images = counted(record.images, "image")
    what = images if info and info.source == "image" else info.source if info else "nothing"
    return f"{model.described} on {what}, {record.mode} mode"


def _counted(record: CheckRecord) -> str:
    """Count the new findings: `1 error, 2 warnings`, empty if there are none."""
    n = {"error": 0, "warning": 0}
    for one in record.findings:  # that after the last one that is shown says how many more there are
        is_rest = one.layer is None and one.threshold is None and one.value is not None
        n[one.severity] += 0 if one.known else int(one.value or 1) if is_rest else 1
    return ", ".join(counted(n[one], one) for one in n if n[one])


def _dataset_facts(report: DatasetReport) -> Iterator[tuple[str, str]]:
    """Return how many images are broken or copies, their sizes and modes, and what is not tested."""
    broken = sum(kind.count for kind in report.broken)
    copies = sum(len(group.images) - 1 for group in report.identical)
    across = f" inside one set, images in several: {len(report.leaks):,}" * bool(report.against)
    yield "images", f"{broken:,} broken, identical copies: {copies:,}{across}"
    if report.sizes:
        ends = " to ".join(f"{width} x {height}" for width, height in report.sizes)
        other = f"; {report.other_aspect:,} with another aspect ratio" * bool(report.other_aspect)
        yield "sizes", f"{ends} pixels{other}"
    if {*report.modes} - {"RGB"}:
        named = {mode: f" ({some(x, 3, report.modes[mode])})" for mode, x in report.mode_names.items()}
        modes = ", ".join(f"{mode} {n:,}{named.get(mode, '')}" for mode, n in report.modes.items())
        yield "modes", f"{modes}; all are tested as RGB"
    untested = "resized or compressed copies (--against compares with another data set)"
    if report.against:
        untested = "mirrored, turned or cropped copies, smaller ones of text or stars, plain images"
    yield "not tested", f"{untested}; damage that can still be decoded"


def _facts(record: CheckRecord) -> tuple[tuple[str, str], ...]:
    facts = list(_hints(record).items())
    if (one := record.accuracy) is not None:
        words = f"{counted(one.images, 'image')} (chance {numbers.percent(one.chance)})"
        facts.append(("accuracy", f"{numbers.percent(one.right.value)} of {words}"))
    facts += [("within budget", rule.measured) for rule in record.rules if rule.measured]
    facts += input_facts(record.inputs)
    facts += _dataset_facts(record.dataset) if record.dataset is not None else ()
    facts += [("not judged", reason) for reason in unjudged_reasons(record)]
    if record.baseline:
        facts.append(("baseline", record.baseline))
    if record.gone:
        words = some((f"{one.code} {one.layer or _whole(record)}" for one in record.gone), 5)
        facts.append(("gone", f"{words}; --update-baseline removes them from the baseline"))
    return tuple(facts)


# The warnings of loading a file that rules repeat
_WARNED = {
    "MS001": ("dangerous_code", "foreign_call"),
    "MS002": ("foreign_code", "not_read"),
    "MS101": ("nonfinite_weights",),
}


def review(record: CheckRecord, failure: str = "") -> Review:
    """Return the findings for a CI host: each at the line that makes the layer, else the image or the
    checkpoint it is about; `failure`: as in `Review`."""
    model = record.run.model
    typed = next(filter(os.path.isfile, (model.weights.requested, model.name.rpartition(":")[0])), None)
    about = in_repository(typed) or typed
    facts = [f"{name}: {text}" for name, text in _facts(record) if name in ("accuracy", "within budget")]
    told = {notice for row in record.findings for notice in _WARNED.get(row.code, ())}

    def problem(row: Finding) -> Problem:
        image = in_repository(row.layer) if record.dataset is not None and row.layer else None
        file, line = (row.made_at.file, row.made_at.line) if row.made_at else (image or about, 1)
        if row.code in ("MS001", "MS002"):  # they are about the file of the weights
            file, line = about, 1
        return Problem(
            *(row.code, row.rule, row.severity, row.layer, row.message, row.hint, file, line, row.known)
        )

    return Review(
        command="check",
        subject=model.name,
        checkpoint=model.weights.resolved if model.weights.origin == "checkpoint" else "",
        rules=record.rules,
        problems=tuple(map(problem, record.findings)),
        outcome="; ".join([sentence(record), *facts]),
        not_judged=tuple(unjudged_reasons(record)),
        not_judged_title=f"not judged: {len(record.unjudged)} of {len(record.rules)} rules",
        warnings=tuple(one for one in record.run.warnings if one.code not in told),
        fail_on=record.fail_on,
        failure=failure,
    )
