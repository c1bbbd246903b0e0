"""Errors shown to the user: what is wrong, what to run next, and the exit code."""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from modelscope_cli.plain_text import in_one_line, plain
from modelscope_cli.synonyms import meaning


class ModelscopeError(Exception):
    """An error the user can act on; printed as `error: message`, a blank line, `hint: hint`.

    A hint is a command (`modelscope stats ...` is the typed line for `stats`), or a change of the typed line, which
    the shell prints as a whole line: `--batch 1 --size 32`, `leave out --mean 0.5`, `did you mean a, b`, `try a`.
    CONTRIBUTING.md lists the forms; `tests/hints/` runs each. Several are joined by ` or `; three spaces introduce
    an explanation.

    Attributes:
        message: one line that quotes the user's input; no full stop.
        hint: what to run next, or None.
        exit_code: 2 usage, 4 cannot run (see the exit codes in the README).
        record: the partial result, or None.
    """

    exit_code = 4
    record: Any = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = plain(message)
        self.hint = hint and plain(hint)
        super().__init__(self.message)

    def speak_python(self) -> None:
        """Name options as keywords, in the message and in the hint, which is shown below a traceback."""
        self.message = in_python(self.message)
        self.args = (self.message,)
        if self.hint is None or getattr(self, "__notes__", None):
            return
        if self.hint.startswith("modelscope "):
            self.hint = f"on the command line: {self.hint}"
        elif not self.hint.startswith(("python ", "pip ")):
            pasted, gap, explained = self.hint.partition("   ")
            self.hint = _OPTIONS.sub(_as_keywords, pasted) + gap + in_python(explained)
        self.add_note(f"hint: {self.hint}")


# Several options with their values.
_OPTION = r"--[a-z][a-z-]*(?: (?!or |and |-)(?:'[^']*'|[^\s']*[^\s,']))?"
_OPTIONS = re.compile(rf"(?<!\S){_OPTION}(?: {_OPTION})*")


# Options in a sentence, where the word after one is its value only if it is a number, in capitals or the last one.
_IN_SENTENCE = re.compile(
    r"'(--[a-z][^']*)'|(?<![\w-])--[a-z][a-z-]*(?: (?:[A-Z\d][^\s,;)]*|[a-z][\w:.-]*(?=[,;)]|$| --)))?"
)
# Of keywords that are spelled otherwise on the command line.
FLAGS = {"low": "--from", "high": "--to", "inputs": "--input"}


def _keyword(flag: str) -> str:
    spelled = {flag: name for name, flag in FLAGS.items()}
    return spelled.get(flag, flag.removeprefix("--").removeprefix("no-").replace("-", "_"))


def in_python(text: str) -> str:
    """Return a sentence with its options as keywords: `'--size 32'` as `'size=32'`, `--batch 2` as `batch=2`."""
    return _IN_SENTENCE.sub(_in_python, text.replace("predict --doctor", "ms.doctor"))


def _in_python(match: re.Match[str]) -> str:
    if match[1] is None and " " in match[0]:
        return _as_keywords(match)
    parts = [part.partition(" ") for part in re.split(" (?=--)", match[1] or match[0])]
    keywords = ", ".join(_keyword(flag) + (value and f"={value}") for flag, _, value in parts)
    return f"'{keywords}'" if match[1] else keywords


def _as_keywords(match: re.Match[str]) -> str:
    """Return options as Python keywords: `--batch 1 --input x=1,4` as `batch=1, inputs={'x': '1,4'}`."""
    is_left_out = match.string[: match.start()].rpartition(" or ")[2].startswith("leave out ")
    keywords, dicts = [], dict[str, dict[str, str]]()
    for name, value in re.findall(r"(--\S+)(?: ('[^']*'|[^\s-]\S*))?", match[0]):
        keyword = _keyword(name)
        text = value.strip("'")
        if name in ("--input", "--model-arg") and "=" in text:
            dicts.setdefault(keyword, {}).update([text.split("=", 1)])
            continue
        if all(re.fullmatch(r"-?[\d.]+(e-?\d+)?", number) for number in text.split(",")):
            text = f"({text.replace(',', ', ')})" if "," in text else text
        else:
            text = repr(text) if value else str(not name.startswith("--no-"))
        keywords.append(keyword if is_left_out else f"{keyword}={text}")
    return ", ".join([*keywords, *(f"{keyword}={values}" for keyword, values in dicts.items())])


class UsageError(ModelscopeError):
    """Invalid input: an unknown name, a pattern that matches nothing. Exit code 2."""

    exit_code = 2


class CannotRunError(ModelscopeError):
    """Valid input that cannot be run here: device, file, weights, forward. Exit code 4."""


OUT_OF_MEMORY = "out of memory"
DEVICE_FAILED = "the device failed"
LESS_MEMORY = "--batch 1 or --device cpu   or a smaller --size"
# How torch words what a device cannot do: the backends each have their own sentence.
_LACKING = re.compile(
    r"operator '(aten::[\w.]+)' is not currently|"
    r"Could not run '(\w+::[\w.]+)' with arguments from the '(?!\w*CPU|Meta|Sparse|Quantized|Nested)"
)
_NO_FLOAT64 = re.compile(
    r"(?=.*float64|.*fp64)(?=.*(doesn't|does not|not) support)", re.IGNORECASE | re.DOTALL
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the host or the accelerator ran out of memory, without importing torch."""
    is_torch = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return isinstance(error, MemoryError) or is_torch or "can't allocate memory" in str(error)


def failed_device(error: BaseException) -> tuple[str, str] | None:
    """Return what is wrong with the device that an error is about, and a hint; None for other errors."""
    text = in_one_line(str(error).partition("\n")[0], 200)
    if is_out_of_memory(error):
        return OUT_OF_MEMORY, LESS_MEMORY
    if any(kind.__name__ == "AcceleratorError" for kind in type(error).__mro__) or text.startswith(
        "CUDA error"
    ):
        return f"{DEVICE_FAILED}: {text}", "--device cpu   a device that failed needs a new process"
    if not isinstance(error, RuntimeError | TypeError):
        return None
    if lacking := _LACKING.search(str(error)):
        return f"the device has no operator {lacking[1] or lacking[2]}", "--device cpu"
    return ("the device has no float64", "--device cpu") if _NO_FLOAT64.match(str(error)) else None


def refuse_failed_device(error: BaseException) -> None:
    """Raise a `CannotRunError` for an error that is about the device and not about the tensor at hand."""
    if (failed := failed_device(error)) is not None:
        raise CannotRunError(*failed) from error


def one_of(typed: str, choices: Iterable[str], option: str = "") -> str:
    """Return a hint for a word that is not a valid choice, of an option if it has one: the nearest, and all."""
    every = list(choices)
    near = nearest(typed, every, 1 if option else 3, option or "did you mean")
    return f"{near}   one of {', '.join(every)}" if near else f"try {', '.join(every)}"


def commented(hint: str) -> str:
    """Return a hint with a `#` before what it says about its command line, so that all of it can be pasted."""
    return re.sub(r"^((?:modelscope|ls|pip|python3?|[\w./]+/\w+) .*?)   (?=[^#\s])", r"\1   # ", hint)


def quoted(names: Iterable[str]) -> str:
    """Return names quoted for the shell, separated by commas."""
    return ", ".join(map(shlex.quote, names))


def nearest_names(word: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Return the names most like `word`, the nearest first; empty if none is near."""
    by_lower = {name.lower(): name for name in known}
    meant = meaning(word, by_lower)
    parts = [name for name in by_lower if word and word.lower() in re.split(r"[\W_]+", name)][:n]
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=n, cutoff=0.5)
    return [by_lower[match] for match in ([meant] if meant else parts or close)]


def nearest_by_number(word: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Return the names that differ from `word` in their numbers only, those with the nearest numbers first."""
    stem, *typed = re.sub(r"\d{1,9}", "0", word), *map(int, re.findall(r"\d{1,9}", word))
    siblings = {
        name: sum(abs(int(a) - b) for a, b in zip(re.findall(r"\d{1,9}", name), typed, strict=True))
        for name in known
        if typed and re.sub(r"\d{1,9}", "0", name) == stem
    }
    return sorted(siblings, key=siblings.__getitem__)[:n]


def each_layer(typed: str, is_known: Callable[[str], bool], names: Iterable[str]) -> str:
    """Return a hint for layers that were separated by commas, those that are not known as the nearest name."""
    every = list(names)
    parts = filter(None, (part.strip() for part in typed.split(",")))
    meant = (part if is_known(part) else (nearest_names(part, every, 1) or [part])[0] for part in parts)
    return " ".join(f"--layer {shlex.quote(part)}" for part in meant)


def nearest(word: str, known: Iterable[str], n: int = 3, phrase: str = "did you mean") -> str:
    """Return the names most like `word` after a phrase, `"did you mean a, b"`; empty if none is near."""
    near = nearest_names(word, known, n)
    return f"{phrase} {', '.join(near)}" if near else ""


def with_nearest(message: str, word: str, known: Iterable[str], n: int = 3) -> str:
    """Return the message followed by the names most like `word`, if any: `...: did you mean a, b`."""
    near = nearest(word, known, n)
    return f"{message}: {near}" if near else message


@contextmanager
def afterwards(tell: Callable[[str], object], what: str) -> Iterator[None]:
    """Report an error after a training in one sentence, without changing the training's exit code.

    Args:
        what: the beginning of the sentence, naming what is missing.
    """
    try:
        yield
    except BrokenPipeError:  # the reader is gone
        raise
    except (ModelscopeError, OSError) as error:
        tell(f"{what}: {error}")
    except Exception as error:
        tell(f"{what}; this is a bug in modelscope: {in_one_line(f'{type(error).__name__}: {error}', 300)}")
