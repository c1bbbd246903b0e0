"""The options of the sweep."""

from dataclasses import dataclass
from typing import Annotated

import typer

_SWEEP = "Sweep"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How the learning rate rises, and when that ends."""

    low: Annotated[
        float, typer.Option("--from", metavar="R", help="First learning rate.", rich_help_panel=_SWEEP)
    ] = 1e-5
    high: Annotated[
        float, typer.Option("--to", metavar="R", help="Last learning rate.", rich_help_panel=_SWEEP)
    ] = 10.0
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=3, help="Steps on the way.", rich_help_panel=_SWEEP)
    ] = 100
    linear: Annotated[
        bool, typer.Option("--linear", help="Raise it evenly, not by a factor.", rich_help_panel=_SWEEP)
    ] = False
    smoothing: Annotated[
        float,
        typer.Option("--smoothing", metavar="B", help="Weight of the past, 0 to 1.", rich_help_panel=_SWEEP),
    ] = 0.9
    diverged: Annotated[
        float,
        typer.Option(
            "--diverged",
            metavar="X",
            help="Stop once the smoothed loss is X times its least value.",
            rich_help_panel=_SWEEP,
        ),
    ] = 4.0


SWEEP = SweepOptions()
