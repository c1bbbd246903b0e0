"""Refuse words that look like a model or its weights where they cannot be meant."""

import difflib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import is_picture
from modelscope_cli.models.names import model_names
from modelscope_cli.shell import console


def refuse_mistyped(word: str) -> None:
    """Refuse a misspelled model name that is not a file."""
    from modelscope_cli.models.hubs import named_here

    is_file = os.path.exists(word) or is_picture(word)
    match = None if is_file else named_here(word)
    if match is not None:
        message = f"'{word}' is neither a file nor a model: did you mean {match}"
        raise UsageError(message, f"--model {shlex.quote(match)}")
    near = difflib.get_close_matches(word.lower(), model_names(), cutoff=0.8)
    if near and not Path(word).suffix and not os.path.exists(word):
        message = f"'{word}' is neither a file nor a model: did you mean {', '.join(near)}"
        raise UsageError(message, "modelscope summary --list " + re.match("[a-z]+", near[0])[0])  # type: ignore[index]


_LAYER = re.compile(
    r"(conv|layer|block|stage|feature|fc|head|relu|bn|norm|avgpool|classifier|encoder)s?\d*(\.\w+)*"
)


def refuse_misplaced(words: Sequence[str]) -> None:
    """Refuse a checkpoint, a model of another format or the name of a layer where an image is expected."""
    from modelscope_cli.models.weights_file import is_model_file, is_weights_file
    from modelscope_cli.shell.parameters import options_of

    argv = console.settings.argv
    for word in words:
        if word not in argv[1:]:
            continue
        at, options = argv.index(word, 1), options_of(argv[0])
        line = ["modelscope", *argv[:at], *argv[at + 1 :]]
        if not os.path.exists(word):
            if _LAYER.fullmatch(word) and "--layer" in options:
                hint = shlex.join([*line, "--layer", word])
                raise UsageError(f"'{word}' is not a file: layers are named by --layer", hint)
        elif is_model_file(word):
            is_weights = is_weights_file(word)
            if is_weights and "--checkpoint" in options and not {"--checkpoint", "-c"} & {*argv}:
                line += ["--checkpoint", word]
            kind = "weights" if is_weights else "a model"
            raise UsageError(f"'{word}' contains {kind}, not an image", shlex.join(line))
