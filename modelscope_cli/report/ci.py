"""Findings as CI hosts read them: GitHub annotations, SARIF and GitLab Code Quality."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modelscope_cli import __version__
from modelscope_cli.plain_text import plain
from modelscope_cli.records.check import ERROR, RuleText
from modelscope_cli.records.run import Notice
from modelscope_cli.report.formats import Format, render_json


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding."""

    code: str
    rule: str
    severity: str
    where: str | None  # the layer, tensor, image or call it is about; None for the whole
    message: str
    hint: str
    # Relative to the root of the repository where it is in one, else as typed; None where no file is known
    file: str | None = None
    line: int = 1
    is_known: bool = False  # the baseline has it, so that it does not count


@dataclass(frozen=True, slots=True)
class Review:
    """A result as it is reported to a CI host."""

    command: str
    subject: str  # what was judged, the same in every run; part of the fingerprint of a problem
    rules: tuple[RuleText, ...]  # those that were applied, and at least those of the problems
    problems: tuple[Problem, ...]
    outcome: str  # the verdict in one sentence
    not_judged: tuple[str, ...] = ()  # one line a reason; `not_judged_title` counts them
    not_judged_title: str = "not judged"
    warnings: tuple[Notice, ...] = ()


def last_line(review: Review) -> str:
    """Return the verdict as a line of its own."""
    return f"modelscope {review.command}: {plain(review.outcome)}"


def _github(review: Review) -> str:
    """Return `::error file=...,line=...,title=...::message` for every new problem, a `::notice` of what was not
    judged, and the verdict.

    A problem without a file in the repository has only a title and is on the page of the run. Escapes as in
    actions/toolkit, packages/core/src/command.ts.
    """
    lines = [_annotation(problem) for problem in review.problems if not problem.is_known]
    if review.not_judged:
        text = _data(plain("; ".join(review.not_judged)))
        lines.append(f"::notice title={_property(review.not_judged_title)}::{text}")
    return "".join(f"{line}\n" for line in [*lines, last_line(review)])


def _annotation(problem: Problem) -> str:
    place = f"file={_property(plain(problem.file))},line={problem.line}," if problem.file else ""
    title = _property(plain(f"{problem.code} {problem.rule}"))
    return f"::{problem.severity} {place}title={title}::{_data(_sentence(problem))}"


def _sentence(problem: Problem) -> str:
    return plain(f"{problem.where}: " * bool(problem.where) + f"{problem.message} ({problem.hint})")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif(review: Review) -> str:
    """Return SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html).

    Known problems are results with a suppression; what was not judged is a notification, not a result. A problem
    without a file has a logical location only, which GitHub does not show.
    """
    places = {rule.code: index for index, rule in enumerate(review.rules)}
    notes = [("note", f"not judged: {text}") for text in review.not_judged]
    notes += [("warning", notice.message) for notice in review.warnings]
    run = {
        "tool": {
            "driver": {
                "name": "modelscope",
                "version": __version__,
                "rules": [_sarif_rule(rule) for rule in review.rules],
            }
        },
        "automationDetails": {"id": f"modelscope {review.command}/"},
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": plain(text)}} for level, text in notes
                ],
            }
        ],
        "results": [
            _sarif_result(problem, places[problem.code], identity)
            for problem, identity in _identified(review)
        ],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": plain(review.outcome)},
    }
    schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    return render_json({"$schema": schema, "version": "2.1.0", "runs": [run]})


def _sarif_rule(rule: RuleText) -> dict[str, Any]:
    why = getattr(rule, "why", "")
    texts = [rule.sentence, why and f"Why it matters: {why}", f"To fix it: {rule.hint}"]
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.sentence},
        "fullDescription": {"text": why or rule.sentence},
        "help": {"text": ". ".join(filter(None, texts))},
        "defaultConfiguration": {"level": rule.severity},
    }


def _sarif_result(problem: Problem, rule_index: int, identity: str) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if problem.file:
        at = {"uri": quote(Path(problem.file).as_posix())}
        location["physicalLocation"] = {"artifactLocation": at, "region": {"startLine": problem.line}}
    if problem.where:
        location["logicalLocations"] = [{"fullyQualifiedName": plain(problem.where)}]
    return {
        "ruleId": problem.code,
        "ruleIndex": rule_index,
        "level": problem.severity,
        "message": {"text": _sentence(problem)},
        "locations": [location] if location else [],
        "partialFingerprints": {"modelscope/v1": identity},
        **(
            {"suppressions": [{"kind": "external", "justification": "in the baseline"}]}
            if problem.is_known
            else {}
        ),
    }


def _gitlab(review: Review) -> str:
    """Return a Code Quality report (https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format).

    GitLab wants a path for every entry: without a file it is the name of what was judged. Known problems are left
    out, since the format has no place for them.
    """
    entries = [
        {
            "description": _sentence(problem),
            "check_name": problem.code,
            "fingerprint": identity,
            "severity": "major" if problem.severity == ERROR else "minor",
            "location": {"path": problem.file or review.subject, "lines": {"begin": problem.line}},
        }
        for problem, identity in _identified(review)
        if not problem.is_known
    ]
    return render_json(entries)


def _identified(review: Review) -> Iterator[tuple[Problem, str]]:
    """Yield each problem with what tells it from others in every run: code, subject and place, never a number or
    a line, which move; repeats of the same are counted."""
    counts = Counter[tuple[str, ...]]()
    for problem in review.problems:
        key = (review.command, review.subject, problem.code, problem.where or "", problem.file or "")
        counts[key] += 1
        yield problem, hashlib.sha256("\0".join([*key, str(counts[key])]).encode()).hexdigest()


CI_FORMATS = {  # of the commands that return findings
    "github": Format(_github, of="review"),
    "sarif": Format(_sarif, ".sarif", "review"),
    "gitlab": Format(_gitlab, of="review"),
}
