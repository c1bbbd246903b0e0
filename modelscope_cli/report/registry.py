"""The view of each command's records: one literal table that a reader, a type checker and a test can follow."""

from dataclasses import replace
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


def view_for(command: str) -> View[Any]:  # noqa: PLR0912 - a table
    """Return the view of a command's records, imported when it is first asked for.

    Raises:
        KeyError: the command has no table: `schema`, `demo`, `help`.
    """
    match command:
        case "ablate":
            from modelscope_cli.report.ablate import AblateView

            return AblateView()
        case "attack":
            from modelscope_cli.report.attack import AttackView

            return AttackView()
        case "check":
            from modelscope_cli.report.check import CheckView

            return CheckView()
        case "diff":
            from modelscope_cli.report.diff import DiffView

            return DiffView()
        case "explain":
            from modelscope_cli.report.explain import ExplainView

            return ExplainView()
        case "featuremaps":
            from modelscope_cli.report.featuremaps import FeatureMapsView

            return FeatureMapsView()
        case "grads":
            from modelscope_cli.report.grads import GradsView

            return GradsView()
        case "lrfind":
            from modelscope_cli.report.lrfind import LrfindView

            return LrfindView()
        case "predict":
            from modelscope_cli.report.predict import PredictView

            return PredictView()
        case "prune":
            from modelscope_cli.report.prune import PruneView

            return PruneView()
        case "stats":
            from modelscope_cli.report.stats import StatsView

            return StatsView()
        case "summary":
            from modelscope_cli.report.summary import SummaryView

            return SummaryView()
        case "train":
            from modelscope_cli.report.train import TrainView

            return TrainView()
        case "watch":
            from modelscope_cli.report.watch import WatchView

            return WatchView()
        case "weights":
            from modelscope_cli.report.weights import WeightsView

            return WeightsView()
        case "models":
            from modelscope_cli.report.listings import CatalogueView

            return CatalogueView()
        case "rules":
            from modelscope_cli.report.listings import RulesView

            return RulesView()
        case "report":
            from modelscope_cli.report.listings import PagesView

            return PagesView()
        case _:
            raise KeyError(command)
