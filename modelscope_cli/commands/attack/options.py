"""The options of `attack` that say how the model is attacked."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.shell.numbers import whole

_ATTACK = "Attack"


class Method(StrEnum):
    """How to look for an image that fools the model."""

    fgsm = "fgsm"
    ifgsm = "ifgsm"
    pgd = "pgd"


class Norm(StrEnum):
    """In which distance the image stays near."""

    linf = "linf"
    l2 = "l2"


@dataclass(frozen=True, slots=True)
class AttackOptions:
    """How to look for an image that fools the model."""

    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="fgsm: one step along the sign of the gradient; ifgsm: several smaller ones; pgd: the same from "
            "a random start.",
            rich_help_panel=_ATTACK,
        ),
    ] = Method.pgd
    norm: Annotated[
        Norm,
        typer.Option(
            "--norm",
            help="What epsilon bounds: linf, the change of every value; l2, the length of the whole change.",
            rich_help_panel=_ATTACK,
        ),
    ] = Norm.linf
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            "-e",
            metavar="E",
            help="How far the image may change, with pixels in 0..1: stop at the first image that fools the model. "
            "Without it, look for the smallest change.",
            rich_help_panel=_ATTACK,
        ),
    ] = None
    steps: Annotated[
        int | None,
        whole(
            "--steps",
            min=1,
            metavar="N",
            help="How many gradient steps to make.",
            show_default="ifgsm 10, pgd 20",
            rich_help_panel=_ATTACK,
        ),
    ] = None
    step_size: Annotated[
        str | None,
        typer.Option(
            "--step-size",
            metavar="A",
            help="The size of one step; without --epsilon, of the first search.",
            show_default="ifgsm E/N, pgd 2.5 E/N",
            rich_help_panel=_ATTACK,
        ),
    ] = None
    restarts: Annotated[
        int,
        whole(
            "--restarts",
            min=1,
            metavar="N",
            help="How many random starts pgd tries.",
            rich_help_panel=_ATTACK,
        ),
    ] = 1
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="The class to be mistaken for, an index or a label; without it, any but the predicted one. "
            "mask:CLASS, "
            "box:N: pixels or a box to get rid of. similar:FILE: an image to resemble.",
            rich_help_panel=_ATTACK,
        ),
    ] = None

    def check(self, seed: int) -> None:
        """Refuse what means nothing before torch is imported."""
        from modelscope_cli.analysis.attack.request import make_request

        make_request(**asdict(self), seed=seed)


ATTACK = AttackOptions()
