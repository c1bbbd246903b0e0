"""The options of the sweep."""

from dataclasses import dataclass
from typing import Annotated

import typer

from modelscope_cli.shell.numbers import real, whole

_SWEEP = "Sweep"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How the learning rate rises, and when that ends."""

    low: Annotated[
        float, real("--from", metavar="R", help="The first learning rate.", rich_help_panel=_SWEEP)
    ] = 1e-5
    high: Annotated[
        float, real("--to", metavar="R", help="The last learning rate.", rich_help_panel=_SWEEP)
    ] = 10.0
    steps: Annotated[
        int, whole("--steps", metavar="N", min=3, help="How many steps are made.", rich_help_panel=_SWEEP)
    ] = 100
    linear: Annotated[
        bool,
        typer.Option(
            "--linear", help="Raise it by equal amounts, not by equal factors.", rich_help_panel=_SWEEP
        ),
    ] = False
    smoothing: Annotated[
        float,
        real("--smoothing", metavar="B", help="How much the past counts, 0 to 1.", rich_help_panel=_SWEEP),
    ] = 0.9
    diverged: Annotated[
        float,
        real(
            "--diverged",
            metavar="X",
            help="Stop once the smoothed loss is X times its lowest.",
            rich_help_panel=_SWEEP,
        ),
    ] = 4.0


SWEEP = SweepOptions()
