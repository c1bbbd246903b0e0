"""Two results that were kept, figure by figure: what another version, another machine or another day changed."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.diff import DiffRecord, DiffSide, FigureDifference, count_up, first_divergence
from modelscope_cli.records.run import Invocation
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report import views
from modelscope_cli.report.page.comparison import RowPair, pair_rows
from modelscope_cli.report.reading import is_result, read
from modelscope_cli.report.sheet import Column
from modelscope_cli.rules.training.reference import compare_with


def are_results(*sides: Any) -> bool:
    """Tell whether both sides are results that were kept: pages, documents, or the folders of commands."""
    return all(isinstance(side, str) and is_result(side) for side in sides)


def refuse_all_but_tolerance(**given: Any) -> None:
    """Refuse what means nothing between results that were kept, instead of passing over it.

    Raises:
        UsageError: something of it was given (exit 2).
    """
    for name, value in given.items():
        if value:
            option = "--b-..." if name == "b" else f"--{name}"
            message = f"'{option}' needs models to run, and these are saved results"
            raise UsageError(message, f"leave out {'all options of B' if name == 'b' else option}")


def compare_results(a: Any, b: Any, tolerance: float | None, invoked: Invocation) -> DiffRecord:
    """Compare every number in the tables of two results of one command.

    Args:
        tolerance: largest |a - b| / |a| that is not a difference; None for 0.

    Raises:
        UsageError: they are of different commands, or of one that runs no model (exit 2).
        CannotRunError: one cannot be read (exit 4).
    """
    ours, theirs = _result(a), _result(b)
    if ours.command != theirs.command:
        message = f"'{a}' is a result of {ours.command} and '{b}' of {theirs.command}"
        raise UsageError(message, "give two results of one command")
    largest = tolerance or 0.0
    rows = tuple(_differences(ours, theirs, largest))
    run = replace(ours.run, command="diff", argv=invoked.argv, input=None, elapsed_ms=invoked.elapsed_ms)
    other = theirs.run
    return DiffRecord(
        run=run,
        b=DiffSide(other.model, other.device, other.dtype, other.seed, None),
        mode=None,
        tolerance=largest,
        tolerance_reason="given" if tolerance is not None else "figures that were kept",
        first_divergence=first_divergence(rows),
        totals=count_up(rows),
        figures=rows,
        compared=compare_with(theirs, ours, str(a)) if isinstance(ours, WatchRecord) else None,
    )


def _result(path: str) -> Any:
    record = read(path)
    if not hasattr(record, "run"):
        hint = "give the weights themselves, A.safetensors and B.safetensors"
        raise UsageError(f"'{path}' is a result of {record.command}, whose figures cannot be compared", hint)
    return record


def _differences(a: Any, b: Any, tolerance: float) -> Iterator[FigureDifference]:
    sheets = views.whole_sheet_of(a), views.whole_sheet_of(b)
    others = {column.key: column for column in sheets[1].columns}
    columns = [(one, others[one.key]) for one in sheets[0].columns[1:] if one.is_number and one.key in others]
    for pair in pair_rows(*sheets):
        if pair.a is None or pair.b is None:
            yield FigureDifference(
                name=pair.label, figure="", status="added" if pair.a is None else "removed"
            )
        else:
            yield from _of_row(pair, columns, tolerance)


def _of_row(
    pair: RowPair, columns: list[tuple[Column, Column]], tolerance: float
) -> Iterator[FigureDifference]:
    for ours, theirs in columns:
        a, b = _number(ours.value(pair.a)), _number(theirs.value(pair.b))
        if a is not None or b is not None:
            yield _difference(pair.label, ours.key, a, b, tolerance)


def _number(value: Any) -> float | None:
    """Return a figure; None for words, and for what was not finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _difference(
    label: str, figure: str, a: float | None, b: float | None, tolerance: float
) -> FigureDifference:
    if a is None or b is None:
        side = "B" if a is None else "A"
        problem = f"only {side} has a number"
        return FigureDifference(name=label, figure=figure, a=a, b=b, status="changed", problem=problem)
    gap = abs(a - b)
    relative = gap / abs(a) if a else math.inf if gap else 0.0
    return FigureDifference(
        name=label,
        figure=figure,
        a=a,
        b=b,
        status="same" if relative <= tolerance else "changed",
        max_abs=gap,
        rel_l2=relative,
        differing=int(gap > 0),
    )
