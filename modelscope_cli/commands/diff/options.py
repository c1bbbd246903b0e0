"""The options of `diff` that say how B differs from A. What is left out is as it is for A."""

from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.shell.options import Mode

_B = "B, where it is not as A"

BWeightsOpt = Annotated[
    str | None, typer.Option("--b-weights", metavar="WEIGHTS", help="Weights of B.", rich_help_panel=_B)
]
BCheckpointOpt = Annotated[
    Path | None, typer.Option("--b-checkpoint", metavar="FILE", help="State dict of B.", rich_help_panel=_B)
]
BDeviceOpt = Annotated[
    str | None, typer.Option("--b-device", metavar="DEVICE", help="Device of B.", rich_help_panel=_B)
]
BDtypeOpt = Annotated[
    str | None, typer.Option("--b-dtype", metavar="DTYPE", help="Dtype of B.", rich_help_panel=_B)
]
BModeOpt = Annotated[Mode | None, typer.Option("--b-mode", help="Mode of B.", rich_help_panel=_B)]
BHookOpt = Annotated[
    list[str] | None,
    typer.Option("--b-hook", metavar="HOOK", help="Change what flows in B (repeatable).", rich_help_panel=_B),
]
BSeedOpt = Annotated[
    int | None,
    typer.Option(
        "--b-seed", min=0, help="Seed of B's random weights and of its dropout.", rich_help_panel=_B
    ),
]
