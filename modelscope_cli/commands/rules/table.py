"""The columns of `rules`."""

from modelscope_cli.records.check import RuleInfo, RuleList
from modelscope_cli.report.sheet import Column, Sheet, choose_columns


def _threshold(row: RuleInfo) -> str:
    if row.threshold is None:
        return "yours"
    return row.threshold if isinstance(row.threshold, str) else f"{row.threshold:g}"


COLUMNS = (
    Column("code", "code", lambda r: r.code, is_number=False, rank=0),
    Column("name", "name", lambda r: r.name, is_number=False, rank=0),
    Column("severity", "severity", lambda r: r.severity, is_number=False, rank=1),
    Column("threshold", "threshold", lambda r: r.threshold, _threshold, rank=0),
    Column("measure", "of what", lambda r: r.measure, is_number=False, rank=3, wraps=True),
    Column("sentence", "fires when", lambda r: r.sentence, is_number=False, rank=2, wraps=True),
    Column(
        "source", "where the threshold comes from", lambda r: r.source, is_number=False, rank=4, wraps=True
    ),
    Column("hint", "hint", lambda r: r.hint, is_number=False, is_shown=False, wraps=True),
)


def rules_sheet(listed: RuleList, columns: str | None = None) -> Sheet:
    """List the rules."""
    return Sheet(
        title=f"{len(listed.rules)} rules: MS1 to MS6 of check, MS7 of watch and train",
        columns=choose_columns(COLUMNS, columns),
        rows=listed.rules,
        facts=(("threshold", "check --set CODE=threshold changes one; a budget is yours to set"),),
    )
