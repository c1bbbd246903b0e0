"""The model of a command line: the first argument or `--model`."""

import os
import re
import shlex
from collections.abc import Callable, Sequence

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import is_picture
from modelscope_cli.models.names import model_names
from modelscope_cli.shell import console
from modelscope_cli.shell.misnamed import refuse_misplaced, refuse_mistyped

_IMPORT = re.compile(r".+\.py:.*|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def names_model(word: str) -> bool:
    """Tell whether this is a torchvision or hub name, `module:attr` or a code file, not another existing file."""
    if os.path.exists(word):
        return word.endswith(".py") and os.path.isfile(word)
    from modelscope_cli.models.hubs import split_hub

    is_import = _IMPORT.fullmatch(word) and not is_picture(word)
    return bool(split_hub(word)[0] or is_import) or word.lower() in model_names()


def names_learner(word: str) -> bool:
    """Tell whether this is a model or a checkpoint, not a folder of images."""
    from modelscope_cli.models.request import is_checkpoint

    is_image = os.path.isdir(word) or is_picture(word)
    return names_model(word) or (is_checkpoint(word) and not is_image)


def take_model(
    first: str | None,
    others: Sequence[str] | None,
    named: str | None,
    *,
    default: str | None = None,
    is_model: Callable[[str], bool] = names_model,
) -> tuple[str, list[str]]:
    """Return the model, and the other positional arguments: images, before or after the model.

    Args:
        first: the first positional argument, `others` the rest; None if there is none.
        named: the value of `--model`.
        default: the model if none is given.
    """
    from modelscope_cli.models.weights_file import is_model_file, is_no_image

    words = [word for word in (first, *(others or ())) if word is not None]
    at = next((i for i, word in enumerate(words) if is_model(word) and (not i or names_model(word))), None)
    if at is None and named is None:
        at = next((i for i, word in enumerate(words) if is_model_file(word)), None)
        at = 0 if at is None and words and is_no_image(words[0]) else at
    if at is not None:
        model = words.pop(at)
        if named is not None and named.startswith(f"{model}:"):  # the file, then `file:attr`
            return named, words
        if named not in (None, model):
            hint = f"leave out --model {shlex.quote(str(named))}"
            raise UsageError(f"'{model}' and '--model {named}' both name a model", hint)
        second = next(filter(names_model, words), None)
        if second is not None:
            hint = f"leave out {shlex.quote(second)} or modelscope diff ..."
            raise UsageError(f"'{model}' and '{second}' both name a model", hint)
        refuse_misplaced(words)
        return model, words
    refuse_misplaced(words)
    if words:
        refuse_mistyped(words[0])
    model_name = default if named is None else named
    if model_name is None:
        raise UsageError("missing argument 'MODEL'", f"modelscope {console.settings.argv[0]} --help")
    return model_name, words


def refuse_model(word: str, *options: str) -> None:
    """Refuse a model for a command that reads a file. `options`: for the command `summary` in the hint."""
    if names_model(word):
        hint = shlex.join(["modelscope", "summary", word, *options])
        raise UsageError(f"'{word}' is a model, but this command reads a file", hint)
