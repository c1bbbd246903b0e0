"""Hints that repeat what was typed: `modelscope stats ...` is the line that failed, for another command."""

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

_DOTS = " ..."


def filled_in(hint: str, argv: Sequence[str], message: str) -> str:
    """Put what was typed in the place of the dots of a hint, without the options that its command lacks.

    Args:
        hint: such as `modelscope stats ...   shows where`, or `modelscope ... < IMAGE`, the same command again.
        argv: what was typed, without `modelscope`.
        message: the error; what it quotes of an option is wrong for another command, too.
    """
    before, dots, after = hint.partition(_DOTS)
    words = before.split()
    if not dots or words[:1] != ["modelscope"] or not argv:
        return hint
    command = words[1] if len(words) > 1 else argv[0]
    rest = list(argv[1:]) if command == argv[0] else list(_known_to(command, argv, message))
    return shlex.join(["modelscope", command, *words[2:], *rest]) + after


def _known_to(command: str, argv: Sequence[str], message: str) -> Iterator[str]:
    """Give what was typed to one command and can be typed to another: its arguments, and the options of both."""
    theirs, ours = options_of(argv[0]), options_of(command)
    # A command that looks at a model alone has one argument, and it is the model.
    n_arguments = 0 if {"--model", "-m"} & {*argv} else 1
    if any(one.nargs == -1 for one in parameters(command)):
        n_arguments = len(argv)
    words = iter(argv[1:])
    for word in words:
        option = theirs.get(word.partition("=")[0])
        if option is None:
            n_arguments -= 1
            if n_arguments >= 0:
                yield word
            continue
        has_value = takes_value(option) and "=" not in word
        value = next(words) if has_value else word.partition("=")[2]
        is_wrong = f"'{value}'" in message or (value and f" {value}'" in message)
        if any(spelling in ours for spelling in option.opts) and ("--model" in option.opts or not is_wrong):
            yield from (word, value) if has_value else (word,)


def takes_value(option: Any) -> bool:
    return not (option.is_flag or option.count)


def parameters(command: str) -> list[Any]:
    """Return the arguments and options of a command, as Typer has them."""
    from modelscope_cli.shell.typer_app import command_line

    return list(command_line((command,)).commands[command].params)


@cache
def options_of(command: str) -> dict[str, Any]:
    """Return the options of a command by all their spellings, such as `--out` and `-o`."""
    return {
        spelling: one
        for one in parameters(command)
        if one.param_type_name == "option"
        for spelling in (*one.opts, *one.secondary_opts)
    }
