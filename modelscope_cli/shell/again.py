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
    theirs, ours = parameters(argv[0]), parameters(command)
    known = {spelling for one in ours for spelling in one.opts}
    options = {spelling: one for one in theirs for spelling in (*one.opts, *one.secondary_opts)}
    # A command that looks at a model alone has one argument, and it is the model.
    n_arguments = 0 if {"--model", "-m"} & {*argv} else 1
    if any(one.nargs == -1 for one in ours):
        n_arguments = len(argv)
    words = iter(argv[1:])
    for word in words:
        option = options.get(word.partition("=")[0]) if word.startswith("-") else None
        if option is None:
            n_arguments -= 1
            if n_arguments >= 0:
                yield word
            continue
        has_value = takes_value(option) and "=" not in word
        value = next(words) if has_value else word.partition("=")[2]
        is_wrong = f"'{value}'" in message or (value and f" {value}'" in message)
        if known & {*option.opts} and ("--model" in option.opts or not is_wrong):
            yield from (word, value) if has_value else (word,)


def takes_value(option: Any) -> bool:
    return not (option.is_flag or option.count)


@cache
def parameters(command: str) -> list[Any]:
    """Return the arguments and options of a command, as Typer has them."""
    import typer.main

    from modelscope_cli.shell.typer_app import make_app

    group: Any = typer.main.get_command(make_app([command]))
    return list(group.commands[command].params)
