"""The model of a command line: the first argument or `--model`."""

import difflib
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from modelscope_cli.errors import UsageError
from modelscope_cli.models.names import model_names
from modelscope_cli.shell import console

_IMPORT = re.compile(r".+\.py:.*|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _has_name_of_image(word: str) -> bool:
    from modelscope_cli.inputs.files import IMAGE_SUFFIXES

    return Path(word).suffix.lower() in IMAGE_SUFFIXES


def names_model(word: str) -> bool:
    """Tell whether this is a torchvision or hub name, `module:attr` or a code file, not another existing file."""
    if os.path.exists(word):
        return word.endswith(".py") and os.path.isfile(word)
    from modelscope_cli.models.hubs import split_hub

    if split_hub(word)[0]:
        return True
    is_import = _IMPORT.fullmatch(word) and not _has_name_of_image(word)
    return bool(is_import) or word.lower() in model_names()


def names_learner(word: str) -> bool:
    """Tell whether this is a model or a checkpoint, not a folder of images."""
    from modelscope_cli.models.request import is_checkpoint

    is_image = os.path.isdir(word) or _has_name_of_image(word)
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
            raise UsageError(f"'{model}' and '--model {named}' are two models", hint)
        second = next(filter(names_model, words), None)
        if second is not None:
            both = shlex.join([model, second])
            hint = f"leave out {shlex.quote(second)} or modelscope diff {both}"
            raise UsageError(f"'{model}' and '{second}' are two models", hint)
        _refuse_weights(words)
        return model, words
    if named is not None:  # without --model none of the words is a weights file
        _refuse_weights(words)
    if words:
        _refuse_mistyped(words[0])
    model_name = default if named is None else named
    if model_name is None:
        raise UsageError("missing argument 'MODEL'", f"modelscope {console.settings.argv[0]} --help")
    return model_name, words


def refuse_model(word: str, *options: str) -> None:
    """Refuse a model for a command that reads a file. `options`: for the command `summary` in the hint."""
    if names_model(word):
        hint = shlex.join(["modelscope", "summary", word, *options])
        raise UsageError(f"'{word}' is a model, but this command reads a file", hint)


def _refuse_mistyped(word: str) -> None:
    """Refuse a misspelled model name that is not a file."""
    from modelscope_cli.models.hubs import named_here

    is_file = os.path.exists(word) or _has_name_of_image(word)
    match = None if is_file else named_here(word)
    if match is not None:
        message = f"'{word}' is neither a file nor a model: did you mean {match}"
        raise UsageError(message, f"--model {shlex.quote(match)}")
    near = difflib.get_close_matches(word.lower(), model_names(), cutoff=0.8)
    if near and not Path(word).suffix and not os.path.exists(word):
        message = f"'{word}' is neither a file nor a model: did you mean {', '.join(near)}"
        raise UsageError(message, "modelscope models " + re.match("[a-z]+", near[0])[0])  # type: ignore[index]


def _refuse_weights(words: Sequence[str]) -> None:
    """Refuse a checkpoint, or a model of another format, where an image is expected."""
    from modelscope_cli.models.weights_file import is_model_file, is_weights_file
    from modelscope_cli.shell.parameters import options_of

    argv = console.settings.argv
    for word in words:
        if word not in argv[1:] or not os.path.exists(word) or not is_model_file(word):
            continue
        at = argv.index(word, 1)
        line = [*argv[:at], *argv[at + 1 :]]
        is_weights = is_weights_file(word)
        if is_weights and "--checkpoint" in options_of(argv[0]) and not {"--checkpoint", "-c"} & {*argv}:
            line += ["--checkpoint", word]
        kind = "weights" if is_weights else "a model"
        raise UsageError(f"'{word}' contains {kind}, not an image", shlex.join(["modelscope", *line]))
