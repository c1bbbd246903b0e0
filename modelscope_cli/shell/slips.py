"""Words typed by position that are neither an image nor a model: the line that was meant."""

import os
import shlex
from collections.abc import Sequence

from modelscope_cli.errors import UsageError
from modelscope_cli.models.weights_file import is_model_file, is_weights_file
from modelscope_cli.shell import console
from modelscope_cli.shell.again import options_of


def refuse_slips(words: Sequence[str]) -> None:
    """Refuse a word that exists nowhere and makes sense in another form.

    Raises:
        UsageError: exit code 2.
    """
    from modelscope_cli.shell.mistyped import with_options
    from modelscope_cli.shell.values import values_together

    argv = console.settings.argv
    for word in words:
        if os.path.exists(word) or word not in argv[1:]:
            continue
        for meant, why in (
            (_with_spaces(argv, word), "a name with spaces stands in quotes"),
            (_in_file(argv, word), "a class in a file is written FILE.py:NAME"),
            (with_options(argv) if "=" in word else None, "an option is written with -- before it"),
            (values_together(argv), "an option takes one word as its value"),
        ):
            if meant is not None:
                raise UsageError(f"'{word}' does not exist: {why}", shlex.join(["modelscope", *meant]))


def _with_spaces(argv: Sequence[str], word: str) -> list[str] | None:
    """Return a line with a name of several words put together, where there is such a file."""
    at = argv.index(word)
    for stop in range(len(argv), at + 1, -1):
        name = " ".join(argv[at:stop])
        if os.path.exists(name):
            return [*argv[:at], name, *argv[stop:]]
    return None


def _in_file(argv: Sequence[str], word: str) -> list[str] | None:
    at = argv.index(word)
    if not (argv[at - 1].endswith(".py") and word.isidentifier()):
        return None
    return [*argv[: at - 1], f"{argv[at - 1]}:{word}", *argv[at + 1 :]]


def refuse_weights(words: Sequence[str]) -> None:
    """Refuse a checkpoint, or a model of another format, where an image is expected.

    Raises:
        UsageError: exit code 2.
    """
    argv = console.settings.argv
    for word in words:
        if word not in argv[1:] or not os.path.exists(word) or not is_model_file(word):
            continue
        at = argv.index(word, 1)
        line = [*argv[:at], *argv[at + 1 :]]
        if not is_weights_file(word):
            raise UsageError(f"'{word}' holds a model, not an image", shlex.join(["modelscope", *line]))
        if "--checkpoint" in options_of(argv[0]) and not {"--checkpoint", "-c"} & {*argv}:
            line += ["--checkpoint", word]
        raise UsageError(f"'{word}' holds weights, not an image", shlex.join(["modelscope", *line]))
