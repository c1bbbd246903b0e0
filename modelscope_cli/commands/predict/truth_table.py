"""The tables of `predict --truth`."""

from collections.abc import Callable
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import Run
from modelscope_cli.records.truth import BINS, ClassQuality, Mistake, TruthReport
from modelscope_cli.report import numbers
from modelscope_cli.report.headline import headline
from modelscope_cli.report.sheet import Column, Sheet, percentage

MEASURES = "measures"
Facts = tuple[tuple[str, str], ...]


def _share(key: str, title: str, *, is_shown: bool = True) -> Column:
    return percentage(key, title, lambda r: getattr(r, key), rank=0, is_shown=is_shown)


def _count(key: str, title: str, rank: int = 0) -> Column:
    return Column(key, title, lambda r: getattr(r, key), lambda r: numbers.count(getattr(r, key)), rank=rank)


def _words(key: str, title: str, value: Callable[[Any], str]) -> Column:
    return Column(key, title, value, is_number=False, rank=0)


def _index(key: str, title: str) -> Column:
    return Column(key, title, lambda r: getattr(r, key), rank=3)


def _columns(kind: str) -> dict[str, tuple[Column, ...]]:
    """All tables; of an output that has no such number, its column is left out of a person's table."""
    return {
        MEASURES: (
            Column("measure", "measure", lambda r: r.key, lambda r: r.name, is_number=False, rank=0),
            _share("value", "value"),
            _share("low", "95 % from"),
            _share("high", "to"),
        ),
        "classes": (
            _index("index", "class"),
            _words("label", "label", lambda r: r.label or str(r.index)),
            _count("n", "pixels" if kind == "pixels" else "images"),
            _count("predicted", "predicted", 2),
            _count("correct", "correct"),
            _share("precision", "precision"),
            _share("recall", "recall"),
            _share("iou", "IoU", is_shown=kind == "pixels"),
        ),
        "confusions": (
            _index("truth", "class"),
            _words("truth_label", "truth", lambda r: r.truth_label or str(r.truth)),
            _index("predicted", "predicted class"),
            _words("predicted_label", "mistaken for", lambda r: r.predicted_label or str(r.predicted)),
            _count("count", "pixels" if kind == "pixels" else "images"),
            _share("share", "of the truth"),
        ),
        "calibration": (
            Column("low", "confidence above", lambda r: r.low, lambda r: f"{r.low:.3f}", rank=0),
            Column("high", "to", lambda r: r.high, lambda r: f"{r.high:.3f}", rank=0),
            _count("n", "images"),
            _share("confidence", "mean confidence"),
            _share("accuracy", "accuracy"),
        ),
        "worst": (
            _words("image", "image", lambda r: r.image),
            _words("truth_label", "truth", truth_words),
            _index("predicted", "predicted class"),
            _words("predicted_label", "predicted", lambda r: r.predicted_label or str(r.predicted)),
            _share("confidence", "score"),
        ),
    }


def truth_words(mistake: Mistake) -> str:
    """Name what is true of an image: its classes, or that there is none."""
    pairs = zip(mistake.truth, mistake.truth_labels, strict=True)
    return ", ".join(label or str(index) for index, label in pairs) or "none"


def truth_columns(table: str | None, kind: str = "classes") -> tuple[Column, ...]:
    """All columns of a table; None is that of the measures."""
    return _columns(kind)[table or MEASURES]


def truth_sheet(run: Run, report: TruthReport, facts: Facts, table: str | None = None) -> Sheet:
    """Lay out one of the tables. `facts`: what else is told.

    Raises:
        UsageError: the truth is of another kind, which has no such table (exit 2).
    """
    table = table or MEASURES
    tables = tables_of(report)
    if table not in tables:
        message = f"'--table {table}' is not a table of a truth of {report.kind}"
        raise UsageError(message, f"--table {next(iter(tables))}   one of {', '.join(tables)}")
    rows = tables[table]
    return Sheet(
        title=headline(run, report.images),
        columns=truth_columns(table, report.kind),
        rows=rows,
        facts=(*_facts(report, table, len(rows)), *facts),
        is_dim=lambda row: isinstance(row, ClassQuality) and not row.n + row.predicted,
    )


def tables_of(report: TruthReport) -> dict[str, tuple[Any, ...]]:
    """Return the rows of every table that this kind of truth has."""
    tables: dict[str, tuple[Any, ...]] = {MEASURES: tuple(report.measures()), "classes": report.classes}
    if report.kind != "labels":
        tables["confusions"] = report.confusions
    if report.kind == "classes":
        tables["calibration"] = report.bins
    if report.kind != "pixels":
        tables["worst"] = report.worst
    return tables


def _facts(report: TruthReport, table: str, n_rows: int) -> Facts:
    facts = []
    if report.accuracy is not None and table != MEASURES:  # where they are rows
        share = report.accuracy
        interval = f"{numbers.percent(share.low)} .. {numbers.percent(share.high)} in 95 of 100 such samples"
        facts.append(
            ("accuracy", f"{numbers.percent(share.value)} of {counted(report.images, 'image')}; {interval}")
        )
    if report.ece is not None and table == "calibration":
        said = f"mean |accuracy - confidence| {numbers.percent(report.ece)}, in {BINS} bins of equal width"
        facts.append(("calibration", said))
    missing = sum(row.n == 0 for row in report.classes)
    if missing:
        text = f"{missing} of {len(report.classes)} classes are in no image"
        facts.append(("not seen", text))
    if not n_rows:
        nothing = {"worst": "no image has a wrong class", "confusions": "no class is mistaken for another"}
        facts.append((table, nothing[table]))
    return tuple(facts)
