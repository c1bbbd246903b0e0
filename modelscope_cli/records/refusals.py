"""Refuse invalid values and combinations of options, in Python and on the command line. Standard library only."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from modelscope_cli.errors import UsageError, one_of, with_nearest
from modelscope_cli.records.naming import MOST, absurdity, with_article
from modelscope_cli.records.options import SHARED, Option, own
from modelscope_cli.records.run import invocation

# Functions that belong to a command of another name.
_COMMANDS = {"check_images": "check", "doctor": "predict", "scan": "weights", "list_rules": "rules"}


@dataclass(frozen=True, slots=True)
class Needs:
    """An option that requires another one, for which `example` is a value."""

    option: str
    other: str
    example: str | bool


@dataclass(frozen=True, slots=True)
class Excludes:
    """An option that cannot be combined with others, and why."""

    option: str
    others: tuple[str, ...]
    why: str = ""


REFUSALS: Mapping[str, Sequence[Needs | Excludes]] = {
    "summary": [Needs(option, "train", True) for option in ("optimizer", "amp", "fit")],
    "featuremaps": [
        Excludes(
            "top_images",
            ("overlay", "attention", "save_tensors", "cell", "scale", "cmap"),
            "these options need a single image",
        )
    ],
    "predict": [
        Excludes(
            "doctor", ("top", "scores", "threshold", "temperature", "hook", "out", "resume", "truth", "table")
        ),
        Needs("table", "truth", "folders"),
        Excludes("truth", ("top",), "--truth prints measures, not images"),
    ],
    "grads": [
        Excludes("clip", ("clip_norm",)),
    ],
    "ablate": [Needs("by_channel", "layer", "conv@-1")],
    "prune": [Excludes("by_channel", ("global_",), "channel norms of different layers are not comparable")],
    "watch": [Needs("strict", "fail_on", "error")],
}


@cache
def find(command: str, name: str) -> Option | None:
    """Return an option of a command or function; None if unknown."""
    command = _COMMANDS.get(command, command)
    for panels in (own(command), SHARED):
        for inside in panels.values():
            if name in inside:
                return inside[name]
    return None


def refuse(command: str, options: Mapping[str, Any]) -> None:
    """Refuse values out of bounds, unknown words, and options that do not go together.

    Args:
        command: a command, or the name of a public function.
        options: the options that differ from their default, by parameter name.
    """
    command = _COMMANDS.get(command, command)
    for name, value in options.items():
        option = find(command, name)
        if option is not None and value is not None:
            _refuse_value(command, name, option, value)
    for refusal in REFUSALS.get(command, ()):
        if refusal.option not in options:
            continue
        option_text = spelled(command, refusal.option, options[refusal.option])
        if isinstance(refusal, Needs):
            if refusal.other not in options:
                other = spelled(command, refusal.other, None)
                example = flags(command, refusal.other, refusal.example)
                hint = f"{flags(command, refusal.option, options[refusal.option])} {example}"
                raise UsageError(f"'{option_text}' needs {other}", hint)
            continue
        for other in refusal.others:
            if other in options:
                second = spelled(command, other, options[other])
                why = f": {refusal.why}" if refusal.why else ""
                message = f"'{option_text}' and '{second}' exclude each other{why}"
                raise UsageError(message, f"leave out {flags(command, other, options[other])}")


def _refuse_value(command: str, name: str, option: Option, value: Any) -> None:
    if option.choices and isinstance(value, str) and value not in option.choices:
        raise unknown(f"a value of {spelled(command, name, None)}", value, option.choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    wrong = absurdity(value) if isinstance(value, float) else None
    is_count = option.most is None and option.least is not None and isinstance(value, int)
    most = MOST if is_count else option.most
    if wrong:
        allowed = wrong
    elif option.above is not None and not value > option.above:
        allowed = f"not more than {option.above:g}"
    elif option.below is not None and not value < option.below:
        allowed = f"not less than {option.below:g}"
    elif option.least is not None and value < option.least:
        allowed = f"too small: the least is {option.least:g}"
    elif most is not None and value > most:
        allowed = f"too large: the most is {most:.15g}"
    else:
        return
    example = option.least if option.above is None else option.above + 1
    value_text = _short(value)
    message = f"'{spelled(command, name, value_text)}' is {allowed}"
    raise UsageError(message, flags(command, name, f"{0.1 if example is None else example:g}"))


def _short(value: float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    n_digits = value.bit_length() * 30103 // 100000 + 1
    return str(value) if n_digits <= 30 else f"a number of {n_digits} digits"


def spelled(command: str, name: str, value: Any) -> str:
    """Return an option as written: `--near-zero 1`, or in Python `near_zero=1`; without a value its name."""
    if invocation().argv:
        return flags(command, name, value)
    return name if value is None else f"{name}={value}"


def flags(command: str, name: str, value: Any) -> str:
    """Return an option quoted for a shell: `--near-zero 1`, `--no-save`."""
    option = find(command, name)
    flag = (option.flag if option else "") or "--" + name.replace("_", "-")
    if value is False:
        return flag.replace("--", "--no-", 1)
    if value is None or value is True:
        return flag
    first = value[0] if isinstance(value, list | tuple) and value else value
    return f"{flag} {shlex.quote(f'{first:g}' if isinstance(first, float) else str(first))}"


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not in `choices`, with the nearest as hint (exit 2)."""
    if value not in choices:
        raise unknown(with_article(name.replace("_", " ")), value, choices)


def unknown(what: str, value: str, choices: Sequence[str]) -> UsageError:
    """Return the error for an unknown word; `what`: noun, such as `a method`; the hint has the nearest, or all."""
    return UsageError(with_nearest(f"'{value}' is not {what}", value, choices), one_of(value, choices))
