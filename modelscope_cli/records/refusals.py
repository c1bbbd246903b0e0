"""Refuse invalid values and combinations of options, in Python and on the command line. Standard library only."""

import shlex
from collections.abc import Sequence
from typing import Any

from modelscope_cli.errors import FLAGS, UsageError, one_of, with_nearest
from modelscope_cli.records.naming import MOST, absurdity


def flags(name: str, value: Any = None) -> str:
    """Return an option quoted for a shell: `--clip 1`, `--no-save`."""
    flag = FLAGS.get(name, "--" + name.strip("_").replace("_", "-"))
    if value is False:
        return flag.replace("--", "--no-", 1)
    if value is None or value is True:
        return flag
    first = value[0] if isinstance(value, list | tuple) and value else value
    return f"{flag} {shlex.quote(f'{first:g}' if isinstance(first, float) else str(first))}"


def check_range(
    name: str,
    value: float | None,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
) -> None:
    """Refuse a number out of bounds, NaN and infinity (exit 2); None passes.

    Args:
        name: the option, as a keyword.
        least, most: the lowest and the highest value; a count without `most` must still be one that a loop can end.
        above: the value must be greater.
    """
    if isinstance(value, str):
        raise UsageError(f"'{flags(name, value)}' is not a number", f"give a number as {name}")
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return
    is_count = most is None and least is not None and isinstance(value, int)
    most = MOST if is_count else most
    example = least if above is None else above + 0.1
    if allowed := absurdity(value) if isinstance(value, float) else None:
        pass
    elif above is not None and not value > above:
        allowed = f"not more than {above:g}"
    elif least is not None and value < least:
        allowed = f"too small: at least {least:g}"
    elif most is not None and value > most:
        allowed = f"too large: at most {most:.15g}"
    else:
        return
    message = f"'{flags(name, _short(value))}' is {allowed}"
    raise UsageError(message, flags(name, f"{0.1 if example is None else example:g}"))


def _short(value: float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    n_digits = value.bit_length() * 30103 // 100000 + 1
    return str(value) if n_digits <= 30 else f"a number of {n_digits} digits"


def check_word(name: str, value: str | None, choices: Sequence[str]) -> None:
    """Refuse a value of an option that is not one of its words (exit 2); None passes.

    Args:
        name: the option, as a keyword.
    """
    if value is not None and value not in choices:
        raise unknown(f"a value of {flags(name)}", value, choices, flags(name))


def refuse_without(option: str, value: Any, other: str, example: Any) -> None:
    """Refuse an option without another one that it is about (exit 2).

    Args:
        option, other: both options, as keywords; the first was given with `value`, the other was not.
        example: a value of the other for the hint.
    """
    hint = f"{flags(option, value)} {flags(other, example)}"
    raise UsageError(f"'{flags(option, value)}' needs {flags(other)}", hint)


def refuse_both(option: str, value: Any, other: str, other_value: Any, why: str = "") -> None:
    """Refuse two options that contradict each other (exit 2), both as keywords with their values."""
    message = f"'{flags(option, value)}' and '{flags(other, other_value)}' cannot be combined"
    raise UsageError(f"{message}: {why}" if why else message, f"leave out {flags(other, other_value)}")


def unknown(what: str, value: str, choices: Sequence[str], option: str = "") -> UsageError:
    """Return the error for an unknown word; `what`: noun, such as `a method`; the hint has the nearest, or all."""
    message = with_nearest(f"'{value}' is not {what}", value, choices)
    return UsageError(message, one_of(value, choices, option))
