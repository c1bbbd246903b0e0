"""Options of `watch` that were typed after the script, and so went to the script."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typer.models import OptionInfo


def what_was_meant(
    command: Callable[..., Any], argv: Sequence[str], arguments: Sequence[str]
) -> tuple[str, str] | None:
    """Return the first option of `command` among `arguments`, and the command line that was probably meant.

    Args:
        argv: all that was typed, of which `arguments` are the last: the script's own.
    """
    ours, rest = _split(arguments, _options(command))
    if not ours:
        return None
    before = [word for word in argv[: len(argv) - len(arguments) - 1] if word != "--"]
    script = argv[len(argv) - len(arguments) - 1]
    return ours[0], shlex.join(["modelscope", *before, *ours, script, *rest])


def _split(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Part what looks like our options, with their values, from all else."""
    ours: list[str] = []
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, _ = word.partition("=")
        if name not in options:
            rest.append(word)
            continue
        ours.append(word)
        if options[name] and not equals and queue:
            ours.append(queue.pop(0))
    return ours, rest


def _options(command: Callable[..., Any]) -> dict[str, bool]:
    """Return every option of a command by its spellings, and whether a value follows it."""
    found: dict[str, bool] = {}
    for annotation in command.__annotations__.values():
        for info in getattr(annotation, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                # In an annotation Typer takes the first spelling for the default, and puts that right later.
                spellings = "/".join(map(str, (info.default, *(info.param_decls or ())))).split("/")
                found |= dict.fromkeys(spellings, annotation.__origin__ is not bool)
    return found
