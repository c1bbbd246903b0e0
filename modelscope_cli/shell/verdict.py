"""`--fail-on` of the commands that judge a training."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from modelscope_cli.records.watch import TrainingFinding


class FailOn(StrEnum):
    """Which findings make the exit code 1."""

    warning = "warning"
    error = "error"


FailOnOpt = Annotated[
    FailOn | None,
    typer.Option("--fail-on", help="Exit with 1 at such a finding, or a worse one."),
]


def is_failed(findings: Iterable["TrainingFinding"], fail_on: FailOn | None) -> bool:
    """Tell whether a finding is as severe as that; None lets everything pass."""
    from modelscope_cli.records.check import is_as_severe

    return fail_on is not None and any(is_as_severe(finding.severity, fail_on) for finding in findings)
