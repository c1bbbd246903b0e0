"""The options of `modelscope watch`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.records.bounds import LONGEST_RUN
from modelscope_cli.shell.numbers import whole


class AbortOn(StrEnum):
    """What stops the script."""

    nan = "nan"
    findings = "findings"


EveryOpt = Annotated[
    int | None,
    whole(
        "--every",
        most=LONGEST_RUN,
        min=1,
        metavar="K",
        help="Record every K-th step.",
        show_default="every step at first, then progressively fewer",
    ),
]
StepsOpt = Annotated[
    int | None,
    whole("--steps", most=LONGEST_RUN, min=1, metavar="N", help="Stop the script after N steps."),
]
LikeOpt = Annotated[
    Path | None,
    typer.Option(
        "--like", metavar="RUN", help="Say what differs from a run that was fine: its folder or page."
    ),
]
AbortOnOpt = Annotated[
    AbortOn | None,
    typer.Option("--abort-on", help="Stop the script, with exit code 1, once this is seen."),
]
StrictOpt = Annotated[
    bool,
    typer.Option("--strict", help="With --fail-on: exit with 1 also if the verdict is that it cannot tell."),
]
