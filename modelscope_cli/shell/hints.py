"""Corrected command lines: for words that Typer does not know, and for hints that repeat the command line."""

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError, with_nearest
from modelscope_cli.records.naming import with_article
from modelscope_cli.shell.misnamed import has_name_of_image
from modelscope_cli.shell.named_model import names_model
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import Parameter, options_of, parameters_of

# Spellings of other tools: the first form that the command has is suggested. A word after a space is the value; an
# empty form means that the value is positional.
SYNONYMS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--arch", "--model-name", "--network", "--backbone"), ("--model",)),
    **dict.fromkeys(("--ckpt", "--ckpt-path", "--model-path", "--resume-from"), ("--checkpoint",)),
    **dict.fromkeys(("--batch-size", "--bs"), ("--batch",)),
    **dict.fromkeys(
        ("--image", "--images", "--img", "--input-image", "--source", "--data", "--dataset"), ("",)
    ),
    **dict.fromkeys(("--image-size", "--img-size", "--imgsz", "--input-size", "--resize"), ("--size",)),
    **dict.fromkeys(("--class", "--target-class", "--class-idx"), ("--target",)),
    **dict.fromkeys(("--target-layer", "--layer-name"), ("--layer",)),
    **dict.fromkeys(("--cuda", "--gpu"), ("--device cuda",)),
    **dict.fromkeys(("--fp16", "--half"), ("--dtype float16",)),
    **dict.fromkeys(("--learning-rate", "--lr0"), ("--lr",)),
    **dict.fromkeys(("--iterations", "--iters", "--max-steps"), ("--steps",)),
    **dict.fromkeys(("--output-dir", "--out-dir", "--save-dir"), ("--out",)),
    **dict.fromkeys(("--overwrite", "--yes"), ("--force",)),
    **{
        "--cpu": ("--device cpu",),
        "--pretrained": ("--weights DEFAULT",),
        "--no-pretrained": ("--weights none",),
        "--num-workers": ("--workers",),
    },
    **{
        **dict.fromkeys(("--topk", "--top-k"), ("--top",)),
        **dict.fromkeys(("--tol", "--atol", "--rtol"), ("--tolerance",)),
        **dict.fromkeys(("--sparsity", "--ratio"), ("--amount",)),
        **dict.fromkeys(("--col-names", "--cols"), ("--columns",)),
        "--b": ("",),
        "--csv": ("--format csv",),
        **dict.fromkeys(("--classes", "--class-names", "--names"), ("--labels",)),
        **dict.fromkeys(("--channels", "--structured"), ("--by-channel",)),
        "--wd": ("--weight-decay",),
        **dict.fromkeys(("--junit", "--junit-xml", "--junitxml", "--xml"), ("--output",)),
    },
}
THEIR_COMMANDS = {
    **dict.fromkeys(("info", "inspect", "show", "print", "torchinfo", "graph"), "summary"),
    **dict.fromkeys(("gradcam", "grad-cam", "cam", "saliency", "attribute"), "explain"),
    **{
        "compare": "diff",
        "infer": "predict",
        "fit": "train",
        "list": "summary --list",
        "lint": "check",
        "version": "--version",
    },
}
_LAUNCHER = re.compile(r"python[\d.]*|torchrun")


def what_was_meant(error: Exception, argv: Sequence[str]) -> tuple[str, str]:
    """Return the message and the hint for a command line that Typer could not parse.

    Args:
        error: an exception of Click, which Typer vendors and does not export.
    """
    command = argv[0] if argv and argv[0] in COMMANDS else None
    page = f"modelscope {command} --help" if command else "modelscope --help"
    option = str(getattr(error, "option_name", None) or "")
    if type(error).__name__ == "NoSuchOption":
        again = _with_option(option, argv) if command else _command_first(argv)
        return f"no such option: {option}", _line(again) if again else page
    if type(error).__name__ == "BadOptionUsage" and command and (one := options_of(command).get(option)):
        is_flag = not one.takes_value
        flag_alone = [option if word.startswith(f"{option}=") else word for word in argv]
        hint = _line(flag_alone if is_flag else [*argv, one.example])
        return f"option '{option}' {'takes no value' if is_flag else 'needs a value'}", hint
    message = getattr(error, "message", None) or str(error)
    return " ".join(message[:1].lower().split() + message[1:].split()).rstrip("."), page


def refuse_swallowed(argv: Sequence[str]) -> None:
    """Refuse an option as the value of another, as in `--plot --out DIR`, and a file whose name looks like one."""
    options = options_of(argv[0])
    is_value = False
    for at, (word, value) in enumerate(pairwise([*argv[1:], ""]), 2):
        if not is_value and word.startswith("-") and word not in ("-", *options) and os.path.isfile(word):
            hint = _line([*argv[: at - 1], f"./{word}", *argv[at:]])
            raise UsageError(f"'{word}' is a file, but what begins with - is read as an option", hint)
        one = None if is_value else options.get(word)
        if word == "--" or (argv[0] == "watch" and not is_value and not word.startswith("-")):
            return  # the rest belongs to the script
        is_value = one is not None and one.takes_value
        if one is not None and is_value and value in options:
            example = one.example.partition("|")[0]
            what = with_article(example) if example.isalpha() and len(example) > 1 else example
            raise UsageError(
                f"'{word}' needs {what}, and got '{value}'", _line([*argv[:at], example, *argv[at:]])
            )


def only_value(command: str, name: str, values: Sequence[Any], argv: Sequence[str]) -> Any:
    """Return the value of an option that takes one; several values of a comma-separated list are joined.

    Raises:
        UsageError: several values. The hint is the line with the last one only, or for `diff` with that of B.
    """
    one = parameters_of(command).get(name)
    if one is None or len(values) == 1 or (not one.takes_value and len(set(values)) == 1):
        return values[-1]
    if one.info.metavar in ("A,B,...", "LIST", "NAMES"):  # a list of any length
        return ",".join(values)
    uses, line = _uses(one, argv)[: len(values)], list(argv)
    if len(uses) < len(values):
        line = [command, "--help"]
    elif len(values) == 2 and f"b_{name}" in parameters_of(command):
        line[uses[1]] = ["--b-" + name.replace("_", "-"), values[1]]
    else:
        for use in reversed(uses[:-1]):
            del line[use]
    if not one.takes_value:
        message = " and ".join(f"'{flag}'" for flag in one.spellings[0].split("/")) + " cannot be combined"
    else:
        words = [shlex.quote(value) for value in values]
        message = f"'{one.spellings[0]}' takes one value, and got {', '.join(words[:-1])} and {words[-1]}"
    raise UsageError(message, _line(line))


def _uses(one: Parameter, words: Sequence[str]) -> list[slice]:
    """Return where an option and its value are in a command line: `-b 8`, `--batch=8`, `-b8`; `-qb 8` is missed."""
    names = one.names
    short = next((name for name in names if name[1] != "-"), "") if one.takes_value else ""
    uses: list[slice] = []
    at = 0
    while at < len(words):
        is_whole = words[at] in names
        width = 1 + (is_whole and one.takes_value)
        is_joined = words[at].startswith(f"{names[0]}=") or (short and words[at].startswith(short))
        uses += [slice(at, at + width)] if is_whole or is_joined else []
        at += width
    return uses


def unknown_command(argv: Sequence[str]) -> UsageError:
    """Return the error for a first word that is not a command; for a model the hint is its summary."""
    word = argv[0]
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1, cutoff=0.6)
    nearest = THEIR_COMMANDS.get(word.lower()) or next(iter(near), None)
    if nearest is not None:
        hint = _line([*nearest.split(), *argv[1:]])
    elif os.path.exists(word):
        hint = _line(["watch" if word.endswith(".py") else "featuremaps", *argv])
    else:
        hint = _line(["summary", *argv]) if names_model(word) else "modelscope --help"
    return UsageError(with_nearest(f"no such command '{word}'", word, COMMANDS, 1), hint)


def too_many(command: str, words: Sequence[str], argv: Sequence[str]) -> UsageError:
    """Return the error for arguments that a command does not take."""
    rest = shlex.join(words)
    return UsageError(f"more arguments than '{command}' takes: {rest}", f"leave out {rest}")


def _line(words: Sequence[str]) -> str:
    return shlex.join(["modelscope", *words])


def _command_first(argv: Sequence[str]) -> list[str] | None:
    """Return a line that begins with an option with the command first; None if it names no command."""
    at = next((n for n, word in enumerate(argv) if word in COMMANDS), None)
    if at is None or any(
        word.startswith("-") and word.partition("=")[0] not in options_of(argv[at]) for word in argv[:at]
    ):
        return None
    return [*argv[at:], *argv[:at]]


def _with_option(option: str, argv: Sequence[str]) -> list[str] | None:
    """Return the line with the nearest option; None if none is similar."""
    at = next((n for n, word in enumerate(argv) if word.partition("=")[0] == option), None)
    if at is None:
        return None
    equals, value = argv[at].partition("=")[1:]
    after = list(argv[at + 1 :])
    follows = int(not equals and bool(after) and not after[0].startswith("-"))
    value = after[0] if follows else value
    options = options_of(argv[0])
    option = option.replace("_", "-")
    forms = SYNONYMS.get(option, ())
    if "--size" in forms:  # of a shape, `1,3,48,48` or timm's `3 48 48`, an image takes height and width
        follows = follows and max(1, len([*takewhile(str.isdigit, after)]))
        sizes = re.findall(r"\d+", " ".join(after[:follows]) if follows else value)
        has_image = any(has_name_of_image(word) or os.path.isdir(word) for word in argv[1:])
        is_shape = len(sizes) > 2 and not has_image and "--input-shape" in options
        forms, value = ("--input-shape",) if is_shape else forms, ",".join(sizes if is_shape else sizes[-2:])
        if not sizes:
            return None
    # An option of another command is not a typo.
    is_of_another = any(option in options_of(name) for name in COMMANDS)
    alike = [name for name in options if name[:3] == option[:3]]  # few err in the first letter
    near = [] if is_of_another else difflib.get_close_matches(option, alike, n=1, cutoff=0.75)
    parts = sorted("b" if part == "2" else part for part in re.findall(r"[a-z]+|\d", option))
    turned = [name for name in options if sorted(name.strip("-").split("-")) == parts]
    # `--checkpoint-b` is about B: --checkpoint would answer another question.
    is_of_side = any(len(part) == 1 for part in parts) and len(option) > 3
    for form in [*forms, *turned, *([] if is_of_side else near)]:
        name, _, fixed = form.partition(" ")
        if name and name not in options:
            continue
        takes = bool(name) and options[name].takes_value and not fixed
        candidate = [name, fixed, value if takes or not name else ""]
        before = list(argv[:at])
        for use in reversed(
            _uses(options[name], before) if takes and not options[name].is_repeatable else []
        ):
            del before[use]  # an option that takes one value is given once
        line = [*before, *filter(None, candidate), *after[follows * (takes or not name) :]]
        long = (word.partition("=")[0] for word in line[1:] if word.startswith("--") and len(word) > 2)
        another = next((word for word in long if word not in options), None)
        return (_with_option(another, line) if another else None) or line
    return None


def filled_in(hint: str, argv: Sequence[str], message: str) -> str:
    """Replace the dots of a hint with the command line, without the options that its command lacks.

    Args:
        hint: such as `modelscope stats ...   shows where`, or `modelscope ... < IMAGE` for the same command.
        argv: the command line without `modelscope`.
        message: the error; an option value that it quotes is wrong for another command, too.
    """
    if hint.startswith("--model ") and (line := _with_model(hint.removeprefix("--model "), argv, message)):
        return line
    before, dots, after = hint.partition(" ...")
    words = before.split()
    if not dots or words[:1] != ["modelscope"] or not argv:
        return hint
    command = words[1] if len(words) > 1 else argv[0]
    rest = list(argv[1:]) if command == argv[0] else list(_known_to(command, argv, message))
    return shlex.join(["modelscope", command, *words[2:], *rest]) + after


def _with_model(rest: str, argv: Sequence[str], message: str) -> str | None:
    """Return the line with another model, and what follows it, in the place of the word that a message quotes."""
    at = next((n for n, word in enumerate(argv[1:], 1) if f"'{word}'" in message), 0)
    model, _, options = rest.partition(" ")
    if not at or (argv[at - 1].startswith("-") and argv[at - 1] != "--model"):
        return None  # it is the value of another option
    line = shlex.join(["modelscope", *argv[:at], *shlex.split(model), *argv[at + 1 :]])
    return f"{line} {options}".rstrip()


def _known_to(command: str, argv: Sequence[str], message: str) -> Iterator[str]:
    """Yield the words that another command accepts: arguments, and options that both have."""
    source_options, target_options = options_of(argv[0]), options_of(command)
    # A command without an input has one argument, the model.
    n_arguments = 0 if {"--model", "-m"} & {*argv} else 1
    if any(one.is_argument and one.is_repeatable for one in parameters_of(command).values()):
        n_arguments = len(argv)
    words = iter(argv[1:])
    for word in words:
        option = source_options.get(word.partition("=")[0])
        if option is None:
            n_arguments -= 1
            if n_arguments >= 0:
                yield word
            continue
        has_value = option.takes_value and "=" not in word
        value = next(words, "") if has_value else word.partition("=")[2]
        is_wrong = f"'{value}'" in message or (value and f" {value}'" in message)
        if option.spellings[0] in target_options and (option.name == "model" or not is_wrong):
            yield from (word, value) if has_value else (word,)


def refuse_launcher(argv: Sequence[str], script: str, arguments: Sequence[str]) -> None:
    """Refuse a launcher, such as `python` or `torchrun`, where the script of `watch` is expected."""
    at = next((n for n, word in enumerate(arguments) if word.endswith(".py")), None)
    if at is None or not _LAUNCHER.fullmatch(script) or Path(script).is_file():
        return
    line = ["modelscope", *argv[: len(argv) - len(arguments) - 1], *arguments[at:]]
    if script == "torchrun":
        line = [script, *arguments[:at], "-m", "modelscope_cli", *line[1:]]
    raise UsageError(f"'{script}' is not a training script; it launches one", shlex.join(line))


def misplaced(argv: Sequence[str], arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return the options of `watch` after the script, with their values, and the line with all of them before it.

    None without any, or with a `--`, which says that the rest is the script's.

    Args:
        argv: the command line; it ends with `arguments`, those of the script.
    """
    if "--" in argv or not arguments:
        return None
    script, options = argv[len(argv) - len(arguments) - 1], options_of("watch")
    text = Path(script).read_text(encoding="utf-8", errors="replace") if Path(script).is_file() else ""
    moved: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        is_ours = name in options and f"'{name}'" not in text and f'"{name}"' not in text
        (moved if is_ours else rest).append(word)
        if is_ours and options[name].takes_value and not equals:
            moved += filter(None, [next(words, "")])
    before = argv[: len(argv) - len(arguments) - 1]
    return (shlex.join(moved), _line([*before, *moved, script, *rest])) if moved else None
