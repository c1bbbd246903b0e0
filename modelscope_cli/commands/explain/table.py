"""The columns of `explain`."""

from collections.abc import Callable

from modelscope_cli.records.explain import ExplainRecord, Explanation
from modelscope_cli.records.receipt import RULE, Whereabouts
from modelscope_cli.report import numbers
from modelscope_cli.report.facts import certificate_facts, hook_facts, report_facts
from modelscope_cli.report.headline import headline
from modelscope_cli.report.sheet import Column, Sheet, percentage

_MEANINGS = (
    "insertion, higher is better, and deletion, lower is better: areas under the curve of the probability, 0 the "
    "blank image and 1 the whole, in brackets by chance; ROAD: above 0 is better than chance; shuffled weights, "
    "other class: how much the map is still the same; planted: how much of the planted evidence it finds. They "
    "show the model images unlike those it was trained on, and may disagree"
)
_MOST_CLASSES = 3  # in the facts; the others stand in the report


def explain_columns(record: ExplainRecord | None = None) -> tuple[Column, ...]:
    """All columns; of a record, those with nothing to tell are left out of a person's table."""

    def figure(key: str, title: str, text: Callable[[float | None], str], rank: int) -> Column:
        is_shown = record is None or any(getattr(row.receipt, key) is not None for row in record.rows)
        return Column(
            key,
            title,
            lambda row: getattr(row.receipt, key),
            lambda row: text(getattr(row.receipt, key)),
            rank=rank,
            is_shown=is_shown,
        )

    return (
        Column("method", "method", lambda r: r.method, is_number=False, rank=0),
        Column("layer", "layer", lambda r: r.layer, lambda r: r.layer or "pixels", is_number=False, rank=2),
        percentage("adds_up", "adds up to", lambda r: r.adds_up, rank=1),
        Column("insertion", "insertion", lambda r: r.receipt.insertion, _against("insertion"), rank=0),
        Column("deletion", "deletion", lambda r: r.receipt.deletion, _against("deletion"), rank=1),
        Column("insertion_chance", "by chance", lambda r: r.receipt.insertion_chance, is_shown=False),
        Column("deletion_chance", "by chance", lambda r: r.receipt.deletion_chance, is_shown=False),
        figure("road", "ROAD", _signed, 3),
        figure("agreement", "agreement", _signed, 5),
        figure("randomisation", "shuffled weights", _signed, 3),
        figure("other_class", "other class", _signed, 4),
        figure("planted", "planted", numbers.percent, 4),
        figure("inside", "inside", numbers.percent, 1),
        figure("border", "border", numbers.percent, 6),
        figure("ties", "ties", numbers.percent, 8),
        Column("completeness", "off by", lambda r: r.completeness, is_shown=False),
        Column("steps", "passes", lambda r: r.steps, is_shown=False),
        Column("seconds", "seconds", lambda r: r.seconds, lambda r: f"{r.seconds:.2f}", rank=7),
        Column(
            "failed", "failed", lambda r: "; ".join(r.receipt.failed), is_number=False, rank=9, is_shown=False
        ),
    )


def _against(key: str) -> Callable[[Explanation], str]:
    def text(row: Explanation) -> str:
        value, chance = getattr(row.receipt, key), getattr(row.receipt, f"{key}_chance")
        return "" if value is None else f"{value:.2f}" + (f" ({chance:.2f})" if chance is not None else "")

    return text


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def explain_sheet(record: ExplainRecord) -> Sheet:
    """List the methods, the winner first."""
    return Sheet(
        title=headline(record.run, record.images),
        columns=explain_columns(record),
        rows=record.rows,
        facts=tuple(_facts(record)),
        is_bad=lambda row: bool(row.receipt.failed),
    )


def _facts(record: ExplainRecord) -> list[tuple[str, str]]:
    share = numbers.percent(record.probability)
    facts = [("target", f"{record.target}, logit {numbers.number(record.logit)}, probability {share}")]
    facts += [(row.layer or row.method, row.why) for row in _one_a_layer(record.rows)]
    facts += [
        (row.method, f"failed: {'; '.join(row.receipt.failed)}") for row in record.rows if row.receipt.failed
    ]
    facts += [("left out", why) for why in record.unfit]
    if any(row.receipt.insertion_chance is not None for row in record.rows):
        facts += [
            ("columns", _MEANINGS),
            ("order", RULE),
        ]
    facts += [
        (f"require {one.required}", _met(one.passed, one.value, one.bound)) for one in record.requirements
    ]
    facts += _where(record.whereabouts, record.whereabouts_method) if record.whereabouts is not None else []
    facts += hook_facts(record.hooks)
    facts += [("maps", record.tensors)] if record.tensors is not None else []
    facts += certificate_facts(record.certificate)
    return facts + list(report_facts(record.out_dir, record.files))


def _one_a_layer(rows: tuple[Explanation, ...]) -> list[Explanation]:
    """Return of the methods that explain at one layer the first; the reason is the same for all."""
    return list({row.layer or row.method: row for row in reversed(rows)}.values())[::-1]


def _met(passed: bool, value: float | None, bound: float | None) -> str:
    if value is None or bound is None:
        return "not met: it could not be measured"
    return f"{'met' if passed else 'not met'}: {numbers.number(value)} against {numbers.number(bound)}"


def _where(where: Whereabouts, method: str | None) -> list[tuple[str, str]]:
    facts = []
    for one in where.classes[:_MOST_CLASSES]:
        outside = f", {numbers.percent(one.outside)} outside" if one.outside is not None else ""
        said = f"{one.images} images, {numbers.percent(one.border)} at the border{outside}, by {method}"
        facts.append((one.label, said))
    names = ", ".join(f"{one.image} {numbers.percent(one.share)}" for one in where.outliers)
    place = "outside" if where.measure == "outside" else "at the border"
    return [*facts, (f"most {place}", names)] if names else facts
