"""The options of `explain` that say what is explained, and how."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from modelscope_cli.analysis.explaining.request import METHODS, choose_methods, receipt_kind
from modelscope_cli.errors import UsageError
from modelscope_cli.records.explain import NONE, QUICK
from modelscope_cli.shell.groups import said
from modelscope_cli.shell.options import TARGET_HELP

_EXPLAIN, _RECEIPT = "Explanation", "Receipt"


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What is explained, and how."""

    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAMES",
            help="Which methods: auto (a few that complement each other), all (all that fit), or "
            f"{', '.join(METHODS)}.",
            rich_help_panel=_EXPLAIN,
        ),
    ] = "auto"
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help=TARGET_HELP,
            rich_help_panel=_EXPLAIN,
        ),
    ] = "predicted"
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="CLASS",
            help="The class that finercam compares the target with.",
            show_default="the three nearest classes",
            rich_help_panel=_EXPLAIN,
        ),
    ] = None
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="LAYER",
            help="The layer to explain.",
            show_default="found by following a run back from the score",
            rich_help_panel=_EXPLAIN,
        ),
    ] = None
    receipt: Annotated[
        str,
        typer.Option(
            "--receipt",
            metavar="KIND",
            help="How far to test the maps: quick (do they repeat, depend on the image and the head, and show what "
            "the model needs), full (also insertion, deletion, ROAD, and more) or none.",
            rich_help_panel=_RECEIPT,
        ),
    ] = QUICK
    no_receipt: Annotated[
        bool,
        typer.Option("--no-receipt", help="Short for --receipt none.", rich_help_panel=_RECEIPT),
    ] = False
    box: Annotated[
        str | None,
        typer.Option(
            "--box",
            metavar="X0,Y0,X1,Y1",
            help="Where the object is, in pixels of the image file.",
            rich_help_panel=_RECEIPT,
        ),
    ] = None
    mask: Annotated[
        Path | None,
        typer.Option(
            "--mask",
            metavar="FILE",
            help="The same as a mask image: light pixels are inside.",
            rich_help_panel=_RECEIPT,
        ),
    ] = None
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="TEST",
            help="Exit with 1 unless the winner's receipt shows this: passed, 'covering>chance', 'road>0.1'.",
            rich_help_panel=_RECEIPT,
        ),
    ] = None
    save_tensors: Annotated[
        Path | None,
        typer.Option(
            "--save-tensors",
            metavar="FILE",
            help="Save the cells of the maps as .safetensors.",
            rich_help_panel="Output",
        ),
    ] = None

    def check(self) -> None:
        """Refuse what means nothing before torch is imported."""
        choose_methods(self.method, self.against)
        kind = receipt_kind(self.receipt)
        if self.require and (self.no_receipt or kind == NONE):
            raise UsageError("--require is about the receipt", "leave out --no-receipt")

    def keywords(self) -> dict[str, Any]:
        """Return these as the keywords of `explain`."""
        keywords = said(self)
        return {**keywords, "receipt": NONE} if keywords.pop("no_receipt") else keywords


EXPLAIN = ExplainOptions()
