"""The options of `prune` that say what is cut."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.shell.numbers import real

_CUT = "What is cut"


class Method(StrEnum):
    """Which weights go first."""

    l1 = "l1"
    l2 = "l2"
    random = "random"
    activation = "activation"


@dataclass(frozen=True, slots=True)
class CutOptions:
    """What is cut, and how much of it."""

    amount: Annotated[
        float,
        real("--amount", metavar="SHARE", help="The share to cut, from 0 to below 1.", rich_help_panel=_CUT),
    ] = 0.3
    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="What to cut first: the smallest by L1 or L2 norm (the same for single weights), random ones, or "
            "with --by-channel those of the smallest mean |activation| over the images (Molchanov et al. 2017).",
            rich_help_panel=_CUT,
        ),
    ] = Method.l1
    by_channel: Annotated[
        bool,
        typer.Option(
            "--by-channel", help="Cut whole output channels, not single weights.", rich_help_panel=_CUT
        ),
    ] = False
    is_global: Annotated[
        bool,
        typer.Option(
            "--global",
            help="Take the share of the weights of all layers together, not of each layer.",
            rich_help_panel=_CUT,
        ),
    ] = False
    sweep: Annotated[
        str,
        typer.Option(
            "--sweep", metavar="A,B,...", help="Also measure the drift at these shares.", rich_help_panel=_CUT
        ),
    ] = "0.1,0.3,0.5,0.7,0.9"

    def check(self, seed: int, has_images: bool) -> None:
        """Refuse what means nothing before torch is imported."""
        from modelscope_cli.analysis.pruning.request import make_request

        make_request(**asdict(self), seed=seed, has_images=has_images)


CUT = CutOptions()
