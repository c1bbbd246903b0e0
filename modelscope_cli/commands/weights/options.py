"""The options that only `weights` has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.shell.numbers import whole


@dataclass(frozen=True, slots=True)
class WeightsOptions:
    """What is taken out of a checkpoint, and what of it is a failure."""

    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="PATTERN",
            help="Only these tensors (repeatable): a name, the beginning of one (layer1), a glob "
            "('*.weight') or 're:...'. There is no model, so no types and no calls.",
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="NAME",
            help="Read this entry of the file instead of its state dict: state_dict_ema, discriminator, "
            "model.optim.",
        ),
    ] = None
    depth: Annotated[
        int | None,
        whole(
            "--depth", min=1, metavar="N", help="Show a tree of N levels, with sums, instead of the tensors."
        ),
    ] = None
    stats: Annotated[
        bool, typer.Option("--stats", help="Read the values, tensor by tensor: mean, std, range, zeros, NaN.")
    ] = False
    convert: Annotated[
        Path | None,
        typer.Option("--convert", metavar="FILE", help="Write these tensors to a .safetensors file."),
    ] = None
    scan: Annotated[
        bool,
        typer.Option(
            "--scan",
            help="Only look for code, in every file of a folder, whatever it is called: one row for each.",
        ),
    ] = False
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="WHAT",
            help="When to exit with 1. call: at dangerous code and at calls of unknown functions and classes; "
            "dangerous: only at dangerous code; unknown: at objects of unknown classes too; never.",
        ),
    ] = "call"


WEIGHTS = WeightsOptions()
