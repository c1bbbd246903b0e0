"""Hints that repeat what was typed: `modelscope stats ...` is the line that failed, for another command."""

import shlex
from collections.abc import Iterator, Sequence
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
    """Give what was typed to one command and can be typed to another: all arguments, and the options of both."""
    theirs, ours = _options(argv[0]), _options(command)
    words = iter(argv[1:])
    for word in words:
        option = theirs.get(word.partition("=")[0]) if word.startswith("-") else None
        has_value = option is not None and not (option.is_flag or option.count) and "=" not in word
        value = [next(words)] if has_value else []
        is_wrong = option is not None and f"'{(value or [word.partition('=')[2]])[0]}'" in message
        if option is None or (not is_wrong and any(spelling in ours for spelling in option.opts)):
            yield from (word, *value)


def _options(command: str) -> dict[str, Any]:
    """Return the options of a command by their spellings."""
    import typer.main

    from modelscope_cli.shell.typer_app import make_app

    group: Any = typer.main.get_command(make_app([command]))
    return {
        spelling: one
        for one in group.commands[command].params
        for spelling in (*one.opts, *one.secondary_opts)
    }
