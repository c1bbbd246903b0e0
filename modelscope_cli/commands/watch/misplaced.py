"""Options of `watch` that stand in the wrong place."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.models import OptionInfo

from modelscope_cli.errors import UsageError

_LAUNCHER = re.compile(r"python[\d.]*|torchrun")


def refuse_launcher(argv: Sequence[str], script: str, arguments: Sequence[str]) -> None:
    """Refuse the program that runs the script, where the script is expected."""
    at = next((n for n, word in enumerate(arguments) if word.endswith(".py")), None)
    if at is None or not _LAUNCHER.fullmatch(script) or Path(script).is_file():
        return
    before = argv[: len(argv) - len(arguments) - 1]
    line = ["modelscope", *before, *arguments[at:]]
    if script == "torchrun":
        line = [script, *arguments[:at], "-m", "modelscope_cli", *line[1:]]
    raise UsageError(f"'{script}' runs a script, and is not one", shlex.join(line))


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
