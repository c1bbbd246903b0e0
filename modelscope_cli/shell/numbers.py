"""Options that are numbers. Each has bounds, so that no value of it can overflow anything later on."""

from collections.abc import Callable
from typing import Any

import typer

from modelscope_cli.records.bounds import MOST, absurdity


def whole(*names: str, most: int = MOST, **settings: Any) -> Any:
    """Return an option that is a whole number, `most` at most; `settings` are those of `typer.Option`."""
    return typer.Option(*names, callback=_at_most(most), **settings)


def real(*names: str, **settings: Any) -> Any:
    """Return an option that is a number with a meaning: finite, and within the reach of float32."""
    return typer.Option(*names, callback=_meaningful, **settings)


def _at_most(most: int) -> Callable[[int | None], int | None]:
    def check(value: int | None) -> int | None:
        if value is not None and abs(value) > most:
            raise typer.BadParameter(
                f"{_short(value)} is more than {most}, the largest value that makes sense here"
            )
        return value

    return check


def _meaningful(value: float | None) -> float | None:
    wrong = None if value is None else absurdity(value)
    if wrong:
        raise typer.BadParameter(f"{value:g} is {wrong}")
    return value


def _short(value: int) -> str:
    return (
        str(value)
        if abs(value) < 10**30
        else f"a number of {value.bit_length() * 30103 // 100000 + 1} digits"
    )
