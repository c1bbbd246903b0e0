"""The tables of `models`, `rules` and `report`, which run no model."""

from dataclasses import replace

from modelscope_cli.errors import commented
from modelscope_cli.records.findings import RuleInfo, RuleList
from modelscope_cli.records.listings import Catalogue, ModelEntry, Page, ReportRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, field_columns
from modelscope_cli.report.view import View

MODEL_COLUMNS = (
    *field_columns(ModelEntry, "name family"),
    *field_columns(
        ModelEntry, "params", text=lambda r: "-" if r.params is None else f"{r.params / 1e6:.2f} M"
    ),
    Column(
        "gmacs",
        "GMACs",
        lambda r: None if r.macs is None else r.macs / 1e9,
        lambda r: "-" if r.macs is None else f"{r.macs / 1e9:.2f}",
        rank=0,
    ),
    Column(
        "input",
        "input",
        lambda r: numbers.shapes(r.input_shapes),
        lambda r: numbers.shapes(r.input_shapes) or "any size",
        is_number=False,
        rank=1,
    ),
    Column("weights", "weights", lambda r: " ".join(r.weights), is_number=False, rank=2),
)


def models_sheet(record: Catalogue) -> Sheet:
    """Return the models with the figures that their library publishes for the default weights."""
    n = len(record.models)
    is_timm = n > 0 and record.models[0].name.startswith("timm:")
    library = "timm" if is_timm else f"torchvision {record.versions['torchvision']}"
    return Sheet(
        title=f"{counted(n, 'model')} of {library}", columns=MODEL_COLUMNS, rows=record.models, most_rows=n
    )


class CatalogueView(View[Catalogue]):
    """The table of `models`."""

    sheet = staticmethod(models_sheet)
    columns = MODEL_COLUMNS


# The columns for a single rule; the rest is below it in full.
_SHORT = ("code", "name", "severity", "threshold")


def threshold_of(row: RuleInfo) -> str:
    if row.threshold is None:
        return "yours"
    return row.threshold if isinstance(row.threshold, str) else f"{row.threshold:g}"


RULE_COLUMNS = (
    *field_columns(RuleInfo, "code name severity"),
    *field_columns(RuleInfo, "threshold", text=threshold_of),
    *field_columns(RuleInfo, "measure sentence source hint error_if why silence"),
)


def rules_sheet(record: RuleList) -> Sheet:
    """Return the rules; for a single one, with its full text below."""
    if len(record.rules) == 1:
        (rule,) = record.rules
        short = tuple(replace(column, is_shown=column.key in _SHORT) for column in RULE_COLUMNS)
        return Sheet(f"{rule.code} {rule.name}", short, record.rules, _explained(rule))
    return Sheet(
        title=f"{len(record.rules)} rules; watch and train judge MS7xx, check all others",
        columns=RULE_COLUMNS,
        rows=record.rules,
        most_rows=len(record.rules),
        facts=(
            ("threshold", "check --set CODE=threshold changes one; budgets have no default"),
            ("one rule", "modelscope help MS202 explains it"),
        ),
    )


def _explained(rule: RuleInfo) -> tuple[tuple[str, str], ...]:
    facts = (
        ("what", rule.sentence),
        ("an error if", rule.error_if),
        ("why", rule.why),
        ("threshold", f"{threshold_of(rule)}: {rule.measure}"),
        ("source of the threshold", rule.source),
        ("to fix it", commented(rule.hint)),
        ("to silence it", rule.silence),
    )
    return tuple((label, text) for label, text in facts if text)


class RulesView(View[RuleList]):
    """The table and page of `rules`."""

    sheet = staticmethod(rules_sheet)
    columns = RULE_COLUMNS


PAGE_COLUMNS = (
    *field_columns(Page, "file"),
    *field_columns(Page, "bytes", text=lambda r: numbers.memory(r.bytes)),
    *field_columns(Page, "command model verdict"),
)


def pages_sheet(record: ReportRecord) -> Sheet:
    """Return a row for the result on the page; of the page of a model, one for each of its parts."""
    page, *others = record.pages
    if not others:
        return Sheet(title="1 page", columns=PAGE_COLUMNS, rows=record.pages)
    own = ("command", "verdict")
    columns = tuple(replace(column, is_shown=column.key in own) for column in PAGE_COLUMNS)
    title = f"{page.model}: {page.file}, {numbers.memory(page.bytes)}"
    return Sheet(title=title, columns=columns, rows=record.pages)


class PagesView(View[ReportRecord]):
    """The table of `report`."""

    sheet = staticmethod(pages_sheet)
    columns = PAGE_COLUMNS
