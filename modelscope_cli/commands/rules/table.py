"""The columns of `rules`."""

from dataclasses import replace

from modelscope_cli.records.check import RuleInfo, RuleList
from modelscope_cli.report.sheet import Sheet, field_columns

# The columns for a single rule; the rest is below it in full.
_SHORT = ("code", "name", "severity", "threshold")


def _threshold(row: RuleInfo) -> str:
    if row.threshold is None:
        return "yours"
    return row.threshold if isinstance(row.threshold, str) else f"{row.threshold:g}"


COLUMNS = (
    *field_columns(RuleInfo, "code name severity"),
    *field_columns(RuleInfo, "threshold", text=_threshold),
    *field_columns(RuleInfo, "measure sentence source hint why silence"),
)


def rules_sheet(listed: RuleList) -> Sheet:
    """Return the rules; for a single one, with its full text below."""
    if len(listed.rules) == 1:
        (rule,) = listed.rules
        short = tuple(replace(column, is_shown=column.key in _SHORT) for column in COLUMNS)
        return Sheet(f"{rule.code} {rule.name}", short, listed.rules, _explained(rule))
    return Sheet(
        title=f"{len(listed.rules)} rules; MS7xx: watch and train, all others: check",
        columns=COLUMNS,
        rows=listed.rules,
        is_catalogue=True,
        facts=(
            ("threshold", "check --set CODE=threshold changes one; you set the budgets"),
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
