"""Findings as CI hosts read them: GitHub annotations, SARIF, GitLab Code Quality and JUnit."""

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modelscope_cli import __version__
from modelscope_cli.errors import ModelscopeError, commented
from modelscope_cli.paths import in_repository
from modelscope_cli.plain_text import plain, plain_lines
from modelscope_cli.records.findings import ERROR, SEVERITIES, RuleText, is_failed
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
    checkpoint: str = ""  # file of the weights, for titles
    not_judged: tuple[str, ...] = ()  # one line a reason; `not_judged_title` counts them
    not_judged_title: str = "not judged"
    not_read: Mapping[str, str] = field(default_factory=dict)  # why files were not judged, by path
    warnings: tuple[Notice, ...] = ()
    fail_on: str | None = ERROR  # the lowest severity that fails
    failure: str = ""  # the error that ended the command before it could judge, with its hint


def failed(command_line: tuple[str, ...], error: ModelscopeError) -> Review:
    """Return the review of a command that ended before it could judge."""
    subject, failure = shlex.join(("modelscope", *command_line)), failure_of(error)
    files = {x: failure for x in command_line if f"'{x}'" in error.message and in_repository(x)}
    return Review(command_line[0], subject, (), (), "not judged", not_read=files, failure=failure)


def failure_of(error: ModelscopeError) -> str:
    """Return an error and its hint in one line."""
    return error.message + f" (hint: {commented(error.hint or '')})" * bool(error.hint)


def last_line(review: Review) -> str:
    """Return the verdict as a line of its own."""
    why = "; --format table says why" if review.not_judged else ""
    return f"modelscope {review.command}: {plain(review.outcome)}{why}"


def _github(review: Review) -> str:
    """Return `::error file=...,line=...,title=...::message` for every new problem, the warnings and the error of
    the command, a `::notice` of what was not judged, of each file where it is one, and the verdict.

    A problem without a file has only a title and is on the page of the run. Escapes as in actions/toolkit,
    packages/core/src/command.ts.
    """
    lines = [_annotation(problem, review.checkpoint) for problem in review.problems if not problem.is_known]
    more = [("warning", notice.message) for notice in review.warnings]
    more += [("error", review.failure)] * (bool(review.failure) and not review.not_read)
    lines += [f"::{level} title=modelscope {review.command}::{_data(plain(text))}" for level, text in more]
    level = "error" if review.failure else "notice"
    for path, text in review.not_read.items():
        place = _property(plain(in_repository(path) or path))
        lines.append(f"::{level} file={place},line=1,title=not judged::{_data(plain(text))}")
    if review.not_judged and not review.not_read:
        text = _data(plain("; ".join(review.not_judged)))
        lines.append(f"::notice title={_property(review.not_judged_title)}::{text}")
    return "".join(f"{line}\n" for line in [*lines, last_line(replace(review, not_judged=()))])


def _annotation(problem: Problem, checkpoint: str) -> str:
    place = f"file={_property(plain(problem.file))},line={problem.line}," if problem.file else ""
    title = _property(plain(f"{problem.code} {problem.rule}" + f" ({checkpoint})" * bool(checkpoint)))
    return f"::{problem.severity} {place}title={title}::{_data(_sentence(problem))}"


def _sentence(problem: Problem) -> str:
    return plain(
        f"{problem.where}: " * bool(problem.where) + f"{problem.message} ({commented(problem.hint)})"
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif(review: Review) -> str:
    """Return SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html).

    Known problems are results with a suppression; what was not judged is a notification, not a result. GitHub
    refuses a result without a file, so that is the name of what was judged where no file is known.
    """
    places = {rule.code: index for index, rule in enumerate(review.rules)}
    notes = [("note", f"not judged: {text}") for text in review.not_judged]
    notes += [("warning", notice.message) for notice in review.warnings]
    notes += [("error", review.failure)] * bool(review.failure)
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
                "executionSuccessful": not review.failure,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": plain(text)}} for level, text in notes
                ],
            }
        ],
        "results": [
            _sarif_result(problem, places[problem.code], identity, problem.file or review.subject)
            for problem, identity in _identified(review)
        ],
        "properties": {"verdict": plain(review.outcome)},
    }
    schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    return render_json({"$schema": schema, "version": "2.1.0", "runs": [run]})


def _sarif_rule(rule: RuleText) -> dict[str, Any]:
    why = getattr(rule, "why", "")
    severe = rule.error_if and f"An error if {rule.error_if}"
    texts = [rule.sentence, severe, why and f"Why it matters: {why}", f"To fix it: {commented(rule.hint)}"]
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.sentence},
        "fullDescription": {"text": why or rule.sentence},
        "help": {"text": ". ".join(filter(None, texts))},
        "defaultConfiguration": {"level": rule.level},
    }


def _sarif_result(problem: Problem, rule_index: int, identity: str, file: str) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(Path(file).as_posix())}, "region": {"startLine": problem.line}}
    location: dict[str, Any] = {"physicalLocation": place}
    if problem.where:
        location["logicalLocations"] = [{"fullyQualifiedName": plain(problem.where)}]
    return {
        "ruleId": problem.code,
        "ruleIndex": rule_index,
        "level": problem.severity,
        "message": {"text": _sentence(problem)},
        "locations": [location],
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
    if review.failure:
        path = next(filter(None, map(in_repository, review.not_read)), review.subject)
        identity = hashlib.sha256(f"{review.command}\0{review.subject}".encode()).hexdigest()
        entries.append(
            {
                "description": plain(review.failure),
                "check_name": f"modelscope {review.command}",
                "fingerprint": identity,
                "severity": "blocker",
                "location": {"path": path, "lines": {"begin": 1}},
            }
        )
    return render_json(entries)


# Characters that XML 1.0 (section 2.2) forbids and `plain` leaves.
_FORBIDDEN = re.compile("[\ufffe\uffff]")


def render_junit(review: Review) -> str:
    """Return JUnit XML: a rule fails on a new problem at or above `--fail-on`, passes with other problems in its
    output, and is skipped if it was not judged; an error of the command is an error."""
    from xml.etree import ElementTree as ET

    suite = ET.Element("testsuite", name=f"modelscope {review.command}")
    n_failures, n_skipped, subject = 0, 0, _clean(review.subject)
    for rule in review.rules:
        case = ET.SubElement(suite, "testcase", classname=subject, name=f"{rule.code} {rule.name}")
        problems = [problem for problem in review.problems if problem.code == rule.code]
        failing = [one for one in problems if not one.is_known and is_failed([one], review.fail_on)]
        if not getattr(rule, "judged", True):
            ET.SubElement(case, "skipped", message=_clean(getattr(rule, "reason", "")))
            n_skipped += 1
        elif failing:
            n = len(failing)
            message = _line(failing[0]) if n == 1 else f"{n} findings: {rule.sentence}"
            worst = max((one.severity for one in failing), key=SEVERITIES.index)
            failure = ET.SubElement(case, "failure", type=worst, message=_clean(message))
            failure.text = _lines(failing)
            n_failures += 1
        elif problems:
            ET.SubElement(case, "system-out").text = _lines(problems)
    if review.failure:
        case = ET.SubElement(suite, "testcase", classname=subject, name="verdict")
        ET.SubElement(case, "error", message=_clean(review.failure))
    suite.attrib |= {"tests": str(len(suite)), "failures": str(n_failures)}
    suite.attrib |= {"errors": str(int(bool(review.failure))), "skipped": str(n_skipped)}
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _line(problem: Problem) -> str:
    return plain(f"{problem.where}: " * bool(problem.where) + problem.message) + " (known)" * problem.is_known


def _lines(problems: list[Problem]) -> str:
    return _clean("\n".join([*map(_line, problems), f"hint: {commented(problems[0].hint)}"]))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", plain_lines(text))


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
