"""Options of `watch` that were typed after the script, and so went to the script."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.models import OptionInfo


def what_was_meant(
    command: Callable[..., Any], argv: Sequence[str], arguments: Sequence[str]
) -> tuple[str, str] | None:
    """Return the first option of `command` among `arguments`, and the command line that was probably meant.

    Args:
        argv: all that was typed, of which `arguments` are the last: the script's own.
    """
    before = [word for word in argv[: len(argv) - len(arguments) - 1] if word != "--"]
    script = argv[len(argv) - len(arguments) - 1]
    ours, rest = _split(arguments, _options(command), _text(script))
    if not ours:
        return None
    return ours[0], shlex.join(["modelscope", *before, *ours, script, *rest])


def _text(script: str) -> str:
    try:
        return Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:  # the name of a module
        return ""


def _split(words: Sequence[str], options: Mapping[str, bool], text: str) -> tuple[list[str], list[str]]:
    """Part what looks like our options, with their values, from all else and from what the script writes out."""
    ours: list[str] = []
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, _ = word.partition("=")
        if name not in options or any(f"{quote}{name}{quote}" in text for quote in "'\""):
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
