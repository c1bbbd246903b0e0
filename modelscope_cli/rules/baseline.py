"""Record known findings, so that only new or worse ones count."""

import json
import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.paths import refuse_endless
from modelscope_cli.plain_text import plain_json
from modelscope_cli.records.findings import Finding, KnownFinding, RuleInfo
from modelscope_cli.records.naming import percent
from modelscope_cli.records.run import invocation
from modelscope_cli.rules.registry import EVERY_RULE

_FAMILY, _VERSION = "modelscope/baseline/", "2"
# Relative change within which a finding counts as unchanged. Other kernels or thread counts change the values of
# broken networks by 4e-7, another torch or JPEG decoder possibly more. A 33rd dead channel of 64 is 3 %.
_NOISE = 0.01
# Their value is the number of images, not a severity.
_UNGRADED = ("MS601",)


def known_of(findings: Iterable[Finding]) -> tuple[KnownFinding, ...]:
    return tuple(
        KnownFinding(
            one.code,
            one.layer,
            None if one.code in _UNGRADED or one.value is None else float(f"{one.value:.4g}"),
        )
        for one in findings
    )


class CheckBaseline(NamedTuple):
    """Content of a baseline; `model` is the model's class, None if not recorded."""

    findings: tuple[KnownFinding, ...] = ()
    model: str | None = None


def render_baseline(known: Iterable[KnownFinding], model: str | None = None) -> str:
    """Return the file: sorted lines, one finding per line, for short diffs."""
    rows = sorted(
        json.dumps({"code": entry.code, "layer": entry.layer, "value": entry.value}, ensure_ascii=False)
        for entry in known
    )
    findings = "".join(f"\n    {row}," for row in rows).rstrip(",") + ("\n  " if rows else "")
    of = f'\n  "model": {json.dumps(model)},' if model else ""
    return plain_json(f'{{\n  "schema": "{_FAMILY}{_VERSION}",{of}\n  "findings": [{findings}]\n}}') + "\n"


def read_baseline(path: Path) -> CheckBaseline:
    """Return the known findings."""
    refuse_endless(path, "baseline ")
    try:
        document = json.loads(path.read_bytes().decode("utf-8"))
        schema = str(document["schema"])
        if schema != f"{_FAMILY}{_VERSION}":
            message = f"'{path}' has the schema '{schema}', but a baseline has '{_FAMILY}{_VERSION}'"
            raise CannotRunError(message, _another(path))
        rows = (KnownFinding(row["code"], row["layer"], row["value"]) for row in document["findings"])
        return CheckBaseline(tuple(map(_checked, rows)), document.get("model"))
    except FileNotFoundError as error:
        argv = invocation().argv
        hint = shlex.join(["modelscope", *argv, "--update-baseline"]) if argv else "update_baseline=True"
        raise CannotRunError(f"there is no baseline '{path}'", hint) from error
    except OSError as error:
        hint = f"ls -l {shlex.quote(str(path))}"
        raise CannotRunError(f"cannot read baseline '{path}': {error.strerror}", hint) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = f": {error}" if isinstance(error, _StrangeEntryError) else ""
        message = f"'{path}' is not a baseline that modelscope check wrote{why}"
        raise CannotRunError(message, _another(path)) from error


class _StrangeEntryError(ValueError):
    """An entry that `check` does not write."""


def _checked(one: KnownFinding) -> KnownFinding:
    """Return a valid entry: NaN or a value beyond the maximum would excuse any later value."""
    if not isinstance(one.code, str) or not isinstance(one.layer, str | None):
        raise _StrangeEntryError(f"an entry has {one.code!r} and {one.layer!r} as rule and layer")
    # The finding that counts the unlisted ones has no layer and is not in the unit of the rule.
    most = next((rule.most for rule in EVERY_RULE if rule.code == one.code and one.layer), math.inf)
    is_number = type(one.value) in (int, float) and 0 <= one.value <= min(most, sys.float_info.max)  # type: ignore[operator]
    if one.value is not None and not is_number:
        where = f"{one.code} {one.layer or ''}".strip()
        raise _StrangeEntryError(
            f"the value of {where} is {str(one.value)[:40]!r}, not a number from 0 to {most:g}"
        )
    return one


def check_model(baseline: CheckBaseline, path: Path | None, model: str) -> None:
    """Refuse a baseline of another model: layers of the same name would excuse each other."""
    if path is not None and baseline.model not in (None, model):
        message = f"baseline '{path}' belongs to {baseline.model}, but {model} is checked"
        raise CannotRunError(message, _another(path))


def _another(path: Path) -> str:
    """Return how to write a baseline next to a file that is not one, without overwriting it."""
    other = path.with_name(f"{path.stem}-known.json")
    return f"--baseline {shlex.quote(str(other))} --update-baseline   writes a new one"


def check_update(baseline: Path | None) -> None:
    """Refuse to update a baseline without a file."""
    if baseline is not None and baseline.suffix.lower() in (".html", ".htm"):
        message = f"'{baseline}' is a page, which cannot be updated"
        raise UsageError(message, "--baseline known.json --update-baseline")
    if baseline is None:
        raise UsageError("'--update-baseline' needs a file", "--baseline known.json --update-baseline")


def compare(
    findings: Sequence[Finding], known: Iterable[KnownFinding], rules: Iterable[RuleInfo]
) -> tuple[tuple[Finding, ...], tuple[KnownFinding, ...]]:
    """Return the findings, with known and not worse ones marked, and the entries that no longer occur.

    They match by code and layer; several of a kind are matched from the worst down. Entries of rules that were not
    judged are not reported as gone.
    """
    unmatched = _by_place(known)
    marked = list(findings)
    worst = [math.inf if one.value is None else _side(one) * one.value for one in findings]
    for i in sorted(range(len(findings)), key=lambda i: -worst[i]):
        finding = findings[i]
        same = unmatched[finding.code, finding.layer]
        if same:
            before = max(same, key=lambda one: _side(finding) * (one.value or 0.0))
            same.remove(before)
            marked[i] = replace(finding, known=True)
            if _is_worse(finding, before):
                was = "; the baseline has no value to compare it with"
                if before.value is not None:
                    was = f"; worse than in the baseline, which has {_in_unit_of(finding, before.value)}"
                marked[i] = replace(finding, message=finding.message + was)
    judged = _judged(rules)
    return tuple(marked), tuple(one for rest in unmatched.values() for one in rest if one.code in judged)


def _by_place(known: Iterable[KnownFinding]) -> dict[tuple[str, str | None], list[KnownFinding]]:
    places: dict[tuple[str, str | None], list[KnownFinding]] = defaultdict(list)
    for entry in known:
        places[entry.code, entry.layer].append(entry)
    return places


def _judged(rules: Iterable[RuleInfo]) -> set[str]:
    return {rule.code for rule in rules if rule.judged}


def _in_unit_of(finding: Finding, value: float) -> str:
    """Write a value as the message writes that of the finding: `20 of 32`, `62.5 %`, else a number."""
    n, of, most = (finding.message.split() + 3 * [""])[:3]
    if of == "of" and most.isdecimal() and n == str(round((finding.value or 0) * int(most))):
        return f"{round(value * int(most))} of {most}"
    is_share = finding.value is not None and percent(finding.value, 1) in finding.message
    return percent(value, 1) if is_share else f"{value:.4g}"


def _side(finding: Finding) -> int:
    """Return 1 if a larger value is worse, -1 if a smaller one is: it is below its threshold."""
    is_number = isinstance(finding.threshold, int | float) and finding.value is not None
    return -1 if is_number and finding.value < finding.threshold else 1  # type: ignore[operator]


def _is_worse(finding: Finding, before: KnownFinding) -> bool:
    if before.value is None:  # not finite then, without a value, or invalid
        return finding.value is not None and finding.code not in _UNGRADED
    if finding.value is None:  # not finite now
        return True
    return _side(finding) * (finding.value - before.value) > _NOISE * abs(before.value)


def updated(
    known: Iterable[KnownFinding], findings: Sequence[Finding], rules: Iterable[RuleInfo]
) -> tuple[KnownFinding, ...]:
    """Return the updated baseline.

    Entries of rules not judged this time and values that changed only by noise are kept, for short diffs.
    """
    judged, before = _judged(rules), _by_place(known)
    entries_kept = [one for rest in before.values() for one in rest if one.code not in judged]
    for one in known_of(findings):
        same = next((old for old in before[one.code, one.layer] if _is_noise(old.value, one.value)), None)
        if same is not None:
            before[one.code, one.layer].remove(same)
        entries_kept.append(same or one)
    return tuple(entries_kept)


def _is_noise(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(now - before) <= _NOISE * abs(before)
