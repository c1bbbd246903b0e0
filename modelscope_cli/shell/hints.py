"""Corrected command lines: for words that Typer does not know, and for hints that repeat the command line."""

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise, product, takewhile
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError, quoted, with_nearest
from modelscope_cli.inputs.files import is_picture
from modelscope_cli.models.weights_file import is_model_file, is_script, is_weights_file
from modelscope_cli.records.naming import with_article
from modelscope_cli.shell.named_model import names_model
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import LISTS, Parameter, options_of, parameters_of
from modelscope_cli.synonyms import OPTIONS, meaning

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
        counted = "   one batch each, not epochs" if again and option.endswith("epochs") else ""
        is_needed = option == "--input-shape" or not command  # without it there is no input
        hint = _line(again) + counted if again else page if is_needed else _without(option, argv)
        return f"no such option: {option}", hint
    if type(error).__name__ == "BadOptionUsage" and command and (one := options_of(command).get(option)):
        is_flag = not one.takes_value
        flag_alone = [option if word.startswith(f"{option}=") else word for word in argv]
        hint = _line(flag_alone if is_flag else [*argv, one.example])
        return f"option '{option}' {'takes no value' if is_flag else 'needs a value'}", hint
    message = getattr(error, "message", None) or str(error)
    return " ".join(message[:1].lower().split() + message[1:].split()).rstrip("."), page


def refuse_swallowed(argv: Sequence[str]) -> None:
    """Refuse what Typer would take for something else: an option as the value of another, as in `--plot --out DIR`,
    a value after a flag, a list in several words, another command, and a file whose name looks like an option."""
    options = options_of(argv[0])
    is_value = False
    for at, (word, value) in enumerate(pairwise([*argv[1:], ""]), 2):
        if not is_value and word.startswith("-") and word not in ("-", *options) and os.path.isfile(word):
            hint = _line([*argv[: at - 1], f"./{word}", *argv[at:]])
            raise UsageError(f"'{word}' is a file, but a word that begins with - is read as an option", hint)
        one = None if is_value else options.get(word)
        if word == "--" or (argv[0] == "watch" and not is_value and not word.startswith("-")):
            return  # the rest belongs to the script
        is_second = word in COMMANDS and argv[0] not in ("help", "demo") and not os.path.exists(word)
        is_unknown = (
            argv[at - 2].startswith("-") and argv[at - 2] not in options
        )  # it takes the word as its value
        if not is_value and is_second and not is_unknown:
            message = f"'{word}' is a second command; the line already has '{argv[0]}'"
            raise UsageError(message, _line([*argv[: at - 1], *argv[at:]]))
        is_value = one is not None and one.takes_value
        if one is not None:
            _refuse_loose(argv, at, one)
        if one is not None and is_value and value in options:
            example = one.example.partition("|")[0]
            what = with_article(example) if example.isalpha() and len(example) > 1 else example
            raise UsageError(
                f"'{word}' needs {what}, and got '{value}'", _line([*argv[:at], example, *argv[at:]])
            )


def _refuse_loose(argv: Sequence[str], at: int, one: Parameter) -> None:
    """Refuse a value after a flag, and a list in several words; `at` is where the value of the option `one` is."""
    word, value, *rest = *argv[at - 1 :], ""
    before, after = argv[: at - 1], argv[at + 1 :]
    if not one.takes_value:
        message = f"'{word}' takes no value, but got '{value}'"
        if _is_loose(value, _SWITCH):
            is_off = value in ("0", "false", "no", "off")
            kept = [name for name in one.names if name.startswith("--no-")] if is_off else [word]
            raise UsageError(message, _line([*before, *kept, *after]))
        return
    mark = "," if "=" in value else one.mark
    kind = _ANY if mark == "=" else _NAME if value.isidentifier() or not value[-1:].isdigit() else _NUMBER
    more = [*takewhile(lambda part: _is_loose(part, kind), rest)] if mark else []
    if more and "--list" not in argv:  # which takes words to look for
        joined = mark.join((value.rstrip(","), *(part.strip(",") for part in more)))
        message = f"'{word}' takes one word, but got '{shlex.join([value, *more])}'"
        raise UsageError(message, _line([*argv[:at], joined, *after[len(more) :]]))


def only_value(command: str, name: str, values: Sequence[Any], argv: Sequence[str]) -> Any:
    """Return the value of an option that takes one; several values of a comma-separated list are joined.

    Raises:
        UsageError: several values. The hint is the line with the last one only, or for `diff` with that of B.
    """
    one = parameters_of(command).get(name)
    if one is None or len(values) == 1 or (not one.takes_value and len(set(values)) == 1):
        return values[-1]
    if one.info.metavar in LISTS:
        return ",".join(values)
    flag = one.names[0]
    if not one.takes_value:
        flags = " and ".join(f"'{name}'" for name in one.spellings[0].split("/"))
        raise UsageError(f"{flags} cannot be combined", flag if values[-1] else one.names[-1])
    words = [shlex.quote(value) for value in values]
    hint = f"{flag} {words[-1]}"
    if len(values) == 2 and f"b_{name}" in parameters_of(command):
        hint = f"{flag} {words[0]} --b-{name.replace('_', '-')} {words[1]}"
    raise UsageError(f"'{flag}' takes one value, but got {', '.join(words[:-1])} and {words[-1]}", hint)


_Part = tuple[Parameter | None, list[str]]
"""An option with its value; or one argument, of which the option is None."""


def _parts(line: Sequence[str]) -> list[_Part]:
    """Take a line apart after its command; what follows the script of `watch` are arguments. `-qb 8` is missed."""
    known, words, parts = options_of(line[0]), iter(line[1:]), list[_Part]()
    for word in words:
        one = known.get(word.partition("=")[0] if word.startswith("--") else word[:2])
        has_value = one is not None and one.takes_value and word in one.names
        parts.append((one, [word, *islice(words, has_value)]))
        if one is None and line[0] == "watch":
            parts += [(None, [word]) for word in words]
    return parts


def _joined(command: str, parts: Iterable[_Part]) -> list[str]:
    return [command, *(word for _, words in parts for word in words)]


def unknown_command(argv: Sequence[str]) -> UsageError:
    """Return the error for a first word that is not a command; for a model the hint is its summary."""
    word = argv[0]
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1, cutoff=0.6)
    other = {"list": "summary --list", "version": "--version"}.get(word.lower())
    nearest = other or meaning(word, COMMANDS) or next(iter(near), None)
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


# What may follow a flag; and the first part of a list: a number, a name, or the value of a KEY.
_SWITCH, _WORD = re.compile(r"\d|true|false|yes|no|on|off"), re.compile("[^-].*")
_NUMBER, _NAME, _ANY = (re.compile(f",?{part},?") for part in (r"-?[\d.]+", r"[A-Za-z]\w*", r"[\w.]+"))


def _is_loose(word: str, kind: re.Pattern[str]) -> bool:
    return kind.fullmatch(word) is not None and not os.path.exists(word) and not names_model(word)


def _without(option: str, argv: Sequence[str]) -> str:
    """Return the line without an option that is like none of the command, and who has it."""
    at = next((n for n, word in enumerate(argv) if word.partition("=")[0] == option), len(argv))
    owners = [name for name in COMMANDS if option in options_of(name)]
    after = argv[at + 1 :] if "=" not in argv[at] else ()
    values = [*takewhile(lambda word: _is_loose(word, _NUMBER), after)]
    is_value = owners and options_of(owners[0])[option].takes_value
    if after and not values and (is_value or _is_loose(after[0], _WORD)):
        values = [after[0]]
    if option == "--list":
        return "modelscope summary --list   lists the models"
    about = f"it is an option of {', '.join(owners)}" if owners else f"see modelscope {argv[0]} --help"
    about = f"{argv[0]} saves nothing without --out" if option == "--no-save" else about
    return f"{_line([*argv[:at], *argv[at + 1 + len(values) :]])}   {about}"


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
    forms = tuple("" if form == "-" else form for form in OPTIONS.get(option, ()))
    if "--size" in forms:  # of a shape, `1,3,48,48` or timm's `3 48 48`, an image takes height and width
        follows = follows and max(1, len([*takewhile(str.isdigit, after)]))
        sizes = re.findall(r"\d+", " ".join(after[:follows]) if follows else value)
        has_image = any(is_picture(word) or os.path.isdir(word) for word in argv[1:])
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
        is_single = takes and not options[name].is_repeatable  # then it is given once
        kept = (one for one in _parts(argv[:at]) if not (is_single and one[0] is options[name]))
        before = _joined(argv[0], kept)
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
        message: the error; an option value that it quotes is wrong for another command, too. Without one, what
            comes next: options of the output, and others that mean another thing there, are left out.
    """
    if line := _with_spaces(argv):
        return line
    if hint.startswith("did you mean ") and (near := shlex.split(hint)[3]) in argv and os.path.isfile(near):
        return f"ls {shlex.quote(os.path.dirname(near) or '.')}"  # it would be compared with itself
    if argv and argv[0] in COMMANDS and message and (whole := _whole(hint, argv, message)):
        return whole
    pasted, gap, about = hint.partition("   ")
    before, dots, after = pasted.partition(" ...")
    words = shlex.split(before) if before.startswith("modelscope") else []
    command, *named = words[1:] or argv[:1] or [""]
    is_filled = bool(dots) or (argv[:1] and argv[0] in COMMANDS and {*named} & {*argv})
    if not words or command not in COMMANDS or not is_filled:
        return hint
    known = _parts(argv) if dots and command == argv[0] else _lacking([command, *named], argv, message)
    kept = (
        known if dots else (part for part in known if part[0] and part[0].name in _settings_of(named, argv))
    )
    return _line([command, *named, *_joined(command, kept)[1:]]) + after + gap + about


def _settings_of(named: Sequence[str], argv: Sequence[str]) -> set[str]:
    """Return the options that say what is meant by files and models: entries, and how a model is built."""
    names = {"model_arg", "num_classes", "weights"} if any(map(names_model, named)) else set()
    files = [word for word in named if is_weights_file(word) and not is_script(word)]
    is_of_one = "--b-key" in argv and len(files) < 2  # of A, or of B
    return names | {"key", "b_key"} if files and not is_of_one else names


def _with_spaces(argv: Sequence[str]) -> str | None:
    """Return the line with the words that are one file's name together in quotes; None if there are none."""
    for start, n in product(range(1, len(argv)), (2, 3, 4)):
        name = " ".join(argv[start : start + n])
        if not os.path.exists(argv[start]) and os.path.exists(name):
            return _line([*argv[:start], name, *argv[start + n :]])
    return None


_LONGEST = 400  # characters of a line in a hint: a shell may have put in thousands of files


def _whole(hint: str, argv: Sequence[str], message: str) -> str | None:
    """Return the corrected line for a hint about a part of it, and its other proposals as the explanation."""
    pasted, _, about = hint.partition("   ")
    first, *others = re.split(r",? or (?=--|leave out|modelscope |')", pasted)
    words = re.fullmatch(r"(?:did you mean|try) (\S.*)|('[^']+')", first)
    try:
        said = shlex.split(words[1] or words[2] if words else first)
    except ValueError:
        return None
    if words:
        new, *rest = (word.rstrip(",") for word in said)
        others = [*filter(None, [quoted(rest)]), *others]
        line = _replaced(new, argv, message) if all(word.endswith(",") for word in said[:-1]) else None
    elif said[:2] == ["leave", "out"]:
        line = _left_out(said[2:], argv)
    else:
        line = _with_options(said, argv, message) if said and said[0].startswith("--") else None
    if line is None or len(whole := _line(line)) > _LONGEST:
        return None
    others = [filled_in(other, argv, message) if " ..." in other else other for other in others]
    about = "; ".join(filter(None, [*(f"or {other}" for other in others), about]))
    return f"{whole}   {about}".rstrip()


def _replaced(new: str, argv: Sequence[str], message: str) -> list[str] | None:
    """Return the line with `new` for the first word, or part of a word, that the message quotes."""
    quoted_words = re.findall(r"'([^']+)'", message)
    for old in quoted_words[message.startswith("--hook '") :]:  # of a hook a part is wrong
        for pattern in (rf"^{re.escape(old)}$", rf"(?<![\w.-]){re.escape(old)}(?![\w.-])"):
            for at in range(len(argv) - 1, 0, -1):
                if re.search(pattern, argv[at]):
                    return [*argv[:at], re.sub(pattern, lambda _: new, argv[at], count=1), *argv[at + 1 :]]
    return None


def _left_out(said: Sequence[str], argv: Sequence[str]) -> list[str] | None:
    """Return the line without arguments or options, such as `--mean 0.5 and --std 0.5`; None if it has none."""
    wanted = {*(shlex.join(said).split(" and ") if said[0].startswith("-") else said)}
    parts = _parts(argv)
    kept = [
        (one, words)
        for one, words in parts
        if not wanted & ({*one.names, shlex.join([one.names[0], _value(words)])} if one else {*words})
    ]
    return _joined(argv[0], kept) if len(kept) < len(parts) else None


def _value(words: Sequence[str]) -> str:
    """Return the value of an option: `--size 32`, `--size=32`, `-b8`."""
    _, equals, value = words[0].partition("=")
    return words[1] if len(words) > 1 else value if equals else words[0][2:]


def _with_options(said: Sequence[str], argv: Sequence[str], message: str) -> list[str] | None:
    """Return the line with options, each in the place of the same option or of the arguments that it stands for;
    None if the command lacks one."""
    of_b = {word[4:] for word in argv if word.startswith("--b-")} - {word[2:] for word in argv}
    said = [f"--b-{word[2:]}" if word[2:] in of_b else word for word in said]  # an error of side B of `diff`
    parts = _parts(argv)
    new = [_with_other_items(part, parts, message) for part in _parts([argv[0], *said])]
    values = {one.name: _value(words) for one, words in new if one is not None}
    keys = {(one.name, _value(words).partition("=")[0]) for one, words in new if one is not None}
    if any(one is None for one, _ in new):
        return None
    names = [one.name for one, _ in parts if one is not None]
    arguments = [words[0] for one, words in parts if one is None]
    about = [word for form in ("'{}'", "{}") for word in arguments if form.format(word) in message]
    at, kept = None, list[_Part]()
    for one, words in parts:
        word, value = words[0], _value(words)
        key = value.partition("=")[0]
        is_old = bool({"input", "input_shape"} & {*values}) and _is_input(one, word, word in arguments[:1])
        is_old |= one.name == "size" and "input_shape" in values if one else word in values.values()
        if one is None and [word] == about[:1] and "model" in values and "model" not in names:
            kept.append((None, [values["model"]]))
            new = [part for part in new if part[0] is None or part[0].name != "model"]
            continue
        # Of several with a KEY those of the same one, or of the message.
        if one is not None and one.name in values:
            n_new = sum(other is one for other, _ in new)
            is_single = not one.is_repeatable or (names.count(one.name) == n_new and "=" not in value)
            is_old = is_single or (one.name, key) in keys or value in message or f"'{key}'" in message
        at = len(kept) if is_old and at is None else at
        kept += [(one, words)] * (not is_old)
    script = next((n for n, (one, _) in enumerate(kept) if one is None), 0)
    at = at if at is not None else script if argv[0] == "watch" else len(kept)
    return _joined(argv[0], [*kept[:at], *new, *kept[at:]])


def _with_other_items(new: _Part, parts: Sequence[_Part], message: str) -> _Part:
    """Return an option of a hint with the other items that were typed, where the message quotes one of a list."""
    one, words = new
    if one is None or one.info.metavar not in LISTS:
        return new
    wrong, value = re.findall(r"'([^']+)'", message), _value(words)
    typed = ",".join(_value(others) for other, others in parts if other is one)
    items = [item.strip() for item in typed.split(",")]
    if not {*wrong} & {*items}:
        return new
    right = next((item for item in value.split(",") if item not in items), "")  # the others are enough
    kept = dict.fromkeys(right if item in wrong else item for item in items)
    return one, [words[0], ",".join(filter(None, kept))]


def _is_input(one: Parameter | None, word: str, is_first: bool) -> bool:
    """Tell whether a part of a line is an image, a tensor or a shape, which another input replaces."""
    if one is not None:
        return one.name in ("input_shape", "input")
    is_image = not is_first or is_picture(word) or os.path.isdir(word)
    return is_image and os.path.exists(word) and not (names_model(word) or is_model_file(word))


_ADVICE = re.compile(
    r"modelscope (?P<command>[a-z]+) MODEL(?P<images> IMAGE\.\.\.| FOLDER)?"
    r"(?P<options>(?: --[\w-]+(?: [^\s-]\S*)?)*)"
)


def with_typed(hint: str, argv: Sequence[str], has_images: bool) -> str:
    """Return the hint of a rule with what was typed in the place of MODEL and IMAGE.

    Args:
        has_images: whether `argv` names images; else those of the hint stay, as only the person knows them.
    """

    def line(match: re.Match[str]) -> str:
        command, options = match["command"], shlex.split(match["options"])
        images = "" if has_images else match["images"] or ""
        after = f" {shlex.join(options)}" if options else ""
        return _line(_joined(command, _lacking([command, *options], argv, ""))) + images + after

    return _ADVICE.sub(line, hint)


def _lacking(line: Sequence[str], argv: Sequence[str], message: str) -> Iterator[_Part]:
    """Yield what another command accepts and `line` lacks: arguments, and options that both have."""
    command, names = line[0], {one.name for one, _ in _parts(line) if one is not None}
    target_options = options_of(command)
    arguments = [one for one in parameters_of(command).values() if one.is_argument]
    n_arguments = len(arguments) - bool({"--model", "-m"} & {*argv})
    if any(one.is_repeatable for one in arguments):
        n_arguments = len(argv)
    for option, words in _parts(argv):
        if option is None:
            n_arguments -= 1
            if n_arguments >= 0:
                yield None, words[:1]
            continue
        value = _value(words) if option.takes_value else ""
        is_wrong = f"'{value}'" in message or (value and f" {value}'" in message)
        there = target_options.get(option.spellings[0])
        is_wanted = message or (there and there.panel == option.panel != "Output")
        is_right = option.name == "model" or not is_wrong
        if there and there.name not in names and is_wanted and is_right:
            yield there, words


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
