"""The view of each command's records: one literal table that a reader, a type checker and a test can follow."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from modelscope_cli.records.display import Shown
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.view import View


def sheet_of(record: Shown) -> Sheet:
    """Return the table of a record as its command prints it, with the warnings of its run."""
    sheet = view_of(record).sheet(record)
    warnings = getattr(getattr(record, "run", record), "warnings", ())
    facts = tuple(("warning", warning.message) for warning in warnings)
    return replace(sheet, facts=(*sheet.facts, *facts))


def view_of(record: Shown) -> View[Any]:
    return view_for(record.command)


VIEWS = {
    "ablate": ("modelscope_cli.report.ablate", "AblateView"),
    "check": ("modelscope_cli.report.check", "CheckView"),
    "diff": ("modelscope_cli.report.diff", "DiffView"),
    "explain": ("modelscope_cli.report.explain", "ExplainView"),
    "featuremaps": ("modelscope_cli.report.featuremaps", "FeatureMapsView"),
    "grads": ("modelscope_cli.report.grads", "GradsView"),
    "lrfind": ("modelscope_cli.report.lrfind", "LrfindView"),
    "predict": ("modelscope_cli.report.predict", "PredictView"),
    "stats": ("modelscope_cli.report.stats", "StatsView"),
    "summary": ("modelscope_cli.report.summary", "SummaryView"),
    "train": ("modelscope_cli.report.train", "TrainView"),
    "watch": ("modelscope_cli.report.watch", "WatchView"),
    "weights": ("modelscope_cli.report.weights", "WeightsView"),
    "models": ("modelscope_cli.report.listings", "CatalogueView"),
    "rules": ("modelscope_cli.report.listings", "RulesView"),
    "report": ("modelscope_cli.report.listings", "PagesView"),
}


def view_for(command: str) -> View[Any]:
    """Return the view of a command's records, imported when it is first asked for.

    Raises:
        KeyError: the command has no table: `schema`, `demo`, `help`.
    """
    module, name = VIEWS[command]
    view: View[Any] = getattr(import_module(module), name)()
    return view
