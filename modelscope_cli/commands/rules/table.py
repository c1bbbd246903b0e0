"""The columns of `rules`."""

from dataclasses import replace

from modelscope_cli.records.check import RuleInfo, RuleList
from modelscope_cli.report.sheet import Column, Sheet

# What the table of a single rule holds; the rest stands below it in full.
_SHORT = ("code", "name", "severity", "threshold")


def _threshold(row: RuleInfo) -> str:
    if row.threshold is None:
        return "yours"
    return row.threshold if isinstance(row.threshold, str) else f"{row.threshold:g}"


COLUMNS = (
    Column("code", "code", lambda r: r.code, is_number=False, rank=0),
    Column("name", "name", lambda r: r.name, is_number=False, rank=0),
    Column("severity", "severity", lambda r: r.severity, is_number=False, rank=2),
    Column("threshold", "threshold", lambda r: r.threshold, _threshold, rank=3),
    Column("measure", "of what", lambda r: r.measure, is_number=False, rank=4, wraps=True),
    Column("sentence", "fires when", lambda r: r.sentence, is_number=False, rank=1, wraps=True),
    Column(
        "source", "where the threshold comes from", lambda r: r.source, is_number=False, rank=5, wraps=True
    ),
    Column("hint", "hint", lambda r: r.hint, is_number=False, is_shown=False, wraps=True),
    Column("why", "why", lambda r: r.why, is_number=False, is_shown=False, wraps=True),
    Column("silence", "to silence it", lambda r: r.silence, is_number=False, is_shown=False, wraps=True),
)


def rules_sheet(listed: RuleList) -> Sheet:
    """List the rules; below a single one stands all that is known of it."""
    if len(listed.rules) == 1:
        (rule,) = listed.rules
        short = tuple(replace(column, is_shown=column.key in _SHORT) for column in COLUMNS)
        return Sheet(f"{rule.code} {rule.name}", short, listed.rules, _explained(rule))
    return Sheet(
        title=f"{len(listed.rules)} rules: MS7 of watch and train, all others of check",
        columns=COLUMNS,
        rows=listed.rules,
        is_catalogue=True,
        facts=(
            ("threshold", "check --set CODE=threshold changes one; budgets are set by you"),
            ("one rule", "modelscope rules MS202 explains it"),
        ),
    )


def _explained(rule: RuleInfo) -> tuple[tuple[str, str], ...]:
    facts = (
        ("what", rule.sentence),
        ("why", rule.why),
        ("threshold", f"{_threshold(rule)}: {rule.measure}"),
        ("source of the threshold", rule.source),
        ("to fix it", rule.hint),
        ("to silence it", rule.silence),
    )
    return tuple((label, text) for label, text in facts if text)
