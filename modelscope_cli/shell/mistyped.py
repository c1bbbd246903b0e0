"""What was meant by a command line that Typer could not read: the hint is the line that does it."""

import difflib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from modelscope_cli.shell.overview import COMMANDS

# How other tools and libraries of the field call our options. What follows a space is the value; nothing at all
# means that the value is typed by position.
SYNONYMS: Mapping[str, Sequence[str]] = {
    "--arch": ("--model",),
    "--batch-size": ("--batch",),
    "--bs": ("--batch",),
    "--channel": ("--channels",),
    "--ckpt": ("--checkpoint",),
    "--checkpoint-path": ("--checkpoint",),
    "--class": ("--target",),
    "--col-names": ("--columns",),
    "--colormap": ("--cmap",),
    "--cpu": ("--device cpu",),
    "--cuda": ("--device cuda",),
    "--eps": ("--epsilon",),
    "--gpu": ("--device cuda",),
    "--images": ("",),
    "--image": ("",),
    "--img": ("",),
    "--image-size": ("--size",),
    "--img-size": ("--size",),
    "--imgsz": ("--size",),
    "--input-size": ("--input-shape", "--size"),
    "--iterations": ("--steps",),
    "--iters": ("--steps",),
    "--k": ("--top",),
    "--lambda": ("--weight-decay",),
    "--learning-rate": ("--lr",),
    "--max-depth": ("--depth",),
    "--max-norm": ("--clip-norm",),
    "--n-classes": ("--num-classes",),
    "--n-steps": ("--steps",),
    "--network": ("--model",),
    "--num-workers": ("--workers",),
    "--optim": ("--optimizer",),
    "--out-dir": ("--out",),
    "--output-dir": ("--out",),
    "--overwrite": ("--force",),
    "--rule": ("--select",),
    "--rules": ("--select",),
    "--save-dir": ("--out",),
    "--top-k": ("--top",),
    "--topk": ("--top",),
    "--wd": ("--weight-decay",),
    "--yes": ("--force",),
    "rules --select": ("",),
}
_COMMANDS = {
    "activations": "stats",
    "compare": "diff",
    "convert": "weights",
    "feature-maps": "featuremaps",
    "gradcam": "explain",
    "gradients": "grads",
    "info": "summary",
    "inspect": "summary",
    "lint": "check",
    "list": "models",
    "lr-find": "lrfind",
    "profile": "summary",
    "scan": "weights",
    "test": "check",
    "version": "--version",
    "visualize": "featuremaps",
}
_WANTED = (
    (r"Input should be a valid integer.*", "it has to be a whole number"),
    (r"Input should be a valid number.*", "it has to be a number"),
    (r"Input should be greater than or equal to (\S+)", r"the least is \1"),
    (r"Input should be less than or equal to (\S+)", r"the most is \1"),
    (r"Value error, ('.*' is not one of .*)", r"\1"),
    (r"requires an argument", "needs a value"),
)
_NEAR = 0.75  # closer than that, and it was a slip of the finger


def what_was_meant(error: Exception, argv: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong with a command line, and the hint.

    Args:
        error: what Typer raised. It has a copy of its own of Click's exceptions, and does not export them.
    """
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(message.split()).rstrip(".")
    command = argv[0] if argv and argv[0] in COMMANDS else None
    page = f"modelscope {command} --help" if command else "modelscope --help"
    if kind == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        again = _with_option(option, argv, _options(context))
        return f"no such option: {option}", again or page
    if found := re.fullmatch(r"No such command '(.*?)'.*", message):
        return f"no such command '{found[1]}'", _with_command(found[1], argv)
    if found := re.fullmatch(r"Got unexpected extra argument\(?s?\)? \((.*)\)", message):
        return f"more arguments than '{command}' takes: {found[1]}", f"leave out {found[1]}"
    for pattern, words in _WANTED:
        message = re.sub(f"{pattern}$", words, message)
    return message[:1].lower() + message[1:], page


def _options(context: Any) -> list[str]:
    """Return every spelling of every option of the command, and "" where it takes any number of arguments."""
    params = context.command.params if context is not None else ()
    spellings = [name for one in params for name in (*one.opts, *one.secondary_opts)]
    return [name for name in spellings if name.startswith("-")] + [""] * any(one.nargs < 0 for one in params)


def _with_option(typed: str, argv: Sequence[str], options: Sequence[str]) -> str | None:
    """Return the command line with the option that was meant; None where that is anybody's guess."""
    option = typed.replace("_", "-")
    known = SYNONYMS.get(f"{argv[0]} {option}") or SYNONYMS.get(option, ())
    meant = [one for one in (option, *known) if one.partition(" ")[0] in options]
    if not meant and not _is_of_another_command(option):
        meant = difflib.get_close_matches(option, options, n=1, cutoff=_NEAR)
    if not meant:
        return None
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if name != typed:
            words.append(word)
            continue
        words += meant[0].split()
        if equals:
            words[-1:] = [f"{words[-1]}={value}"] if meant[0] else [words[-1], value]
    return shlex.join(["modelscope", *words])


def _is_of_another_command(option: str) -> bool:
    from typer.main import get_command

    from modelscope_cli.shell.typer_app import make_app

    commands: Any = get_command(make_app())
    return any(
        option in (*one.opts, *one.secondary_opts) for c in commands.commands.values() for one in c.params
    )


def _with_command(typed: str, argv: Sequence[str]) -> str:
    """Return the command line with the command that was meant: for a model its summary, for an image its maps."""
    from modelscope_cli.shell.named_model import names_model

    near = difflib.get_close_matches(typed.lower(), COMMANDS, n=1, cutoff=0.6)
    meant = _COMMANDS.get(typed.lower()) or next(iter(near), None)
    if meant is not None:
        return shlex.join(["modelscope", meant, *argv[1:]])
    if names_model(typed):
        return shlex.join(["modelscope", "summary", *argv])
    if os.path.exists(typed):
        command = "watch" if typed.endswith(".py") else "featuremaps"
        return shlex.join(["modelscope", command, *argv])
    return "modelscope --help"
