"""One row of a table of hints: what fails, and what a person does with the hint.

A row is a line of text:

    stats dot.png --size 0                   the hint is pasted, and what comes of it has to run
    attack two => attack two/a.png           the hint is in words: this is what follows it
    summary --no-such ~> text                pasted, it leads on to an error with this text (a comment says why)
    stats dot.png -d cuda !> why             pasted, it is only parsed: it needs a download, a GPU, minutes
    >>> ms.stats(net, 3) => ms.stats(net, x) the same in Python

`#` begins a comment. `{T}` is a tiny model.
"""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pasting

from modelscope_cli.errors import ModelscopeError
from modelscope_cli.shell import console
from modelscope_cli.shell.app import run

SHORT = {
    "T": "-m models.py:Tiny",
    "L": "-m models.py:Tiny --pictures 20 --size 8 --steps 3 --batch 4",
    "F": "few -m models.py:Tiny --size 8 --steps 3 --batch 4",
    "TINY": "models.py:Tiny",
}
_PARTS = re.compile(r"(?P<fails>.*?)(?: (?P<how>=>|~>|!>) (?P<then>.*))?")
# What stands for a word in capitals that only the person knows.
WORDS = {
    "FILE": "tiny.safetensors",
    "--labels FILE": "--labels ten.txt",
    "--truth FILE": "--truth masks.csv",
    "IMAGES": "two",
    "--output FILE": "--output new.csv",
    "--model NAME": "--model models.py:Tiny",
    "IMAGE": "dot.png",
    "DIR": "new",
    "FOLDER": "new",
    "NAME": "x",
    "VALUE": "4",
    "WIDTH": "4",
    "LAYER": "conv",
    "CLASS": "1",
    "FILE.py:NAME": "models.py:Tiny",
    "path/to/file.py:fn": "mine.py:mean",
    "SCRIPT": "watched.py",
    "path/to/file.py:Class": "mine.py:Quiet",
    "path/to/hooks.py:fn": "mine.py:three",
}


@dataclass(frozen=True)
class Row:
    fails: str
    how: str = ""
    then: str = ""

    def __str__(self) -> str:
        return f"{self.fails} {self.how} {self.then}".strip()


def rows(text: str) -> Iterator[Row]:
    """Return the rows of a text."""
    for line in text.strip().splitlines():
        if line.strip() and not line.startswith("#"):
            found = _PARTS.fullmatch(line.strip())
            assert found
            yield Row(_filled(found["fails"]), found["how"] or "", _filled(found["then"] or ""))


def _filled(text: str) -> str:
    for word, stands_for in SHORT.items():
        text = text.replace(f"{{{word}}}", stands_for)
    return text


LAST: list[str] = []
OUT = io.StringIO  # what stands for stdout


@dataclass(frozen=True)
class Failure:
    """What a line left that failed; `hint` and `message` are empty where it did not."""

    code: int
    message: str
    hint: str
    err: str


# Options that change how long it takes, and nothing of what is tried here.
QUICKER = {
    "grads": ["--no-save"],
    "ablate": ["--no-save"],
    "explain": ["--no-save", "--no-receipt"],
}
_ABOUT_FOLDERS = {"--out", "--save", "--no-save", "--force", "--resume", "--help", "--require"}


def _quicker(line: list[str]) -> list[str]:
    return line if _ABOUT_FOLDERS & {*line} else [*line, *QUICKER.get(line[0] if line else "", ())]


def try_line(line: list[str], stdin: str = "/dev/null") -> Failure:
    """Run a command line in this process."""
    out, err = OUT(), io.StringIO()
    made: list[ModelscopeError] = []
    fail, kept = console.fail, sys.stdin

    def see(error: ModelscopeError) -> None:
        made.append(error)
        fail(error)

    console.fail = see
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            open(stdin or "/dev/null") as given,
        ):
            sys.stdin = given
            try:
                code = run(_quicker(line))
            except SystemExit as left:
                code = int(left.code or 0)
    finally:
        console.fail, sys.stdin = fail, kept
    message, hint = (made[-1].message, made[-1].hint or "") if made else ("", "")
    LAST[:] = [*LAST[-3:], f"{shlex.join(line)} -> {code} {message} | {hint}"]
    return Failure(code, message, hint, err.getvalue())


def try_python(source: str, names: dict[str, Any]) -> Failure:
    """Evaluate an expression."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            eval(source, names)
    except ModelscopeError as error:
        return Failure(error.exit_code, error.message, error.hint or "", "")
    except Exception:
        return Failure(3, "", "", traceback.format_exc())
    return Failure(0, "", "", "")


def check(row: Row, names: dict[str, Any]) -> Iterator[str]:
    """Do what a row says; yield what is wrong with its hint."""
    if row.fails.startswith(">>> "):
        yield from _check_python(row, names)
        return
    typed = shlex.split(row.fails)
    failed = try_line(typed)
    if failed.code not in (2, 4):
        yield f"does not fail, but ends with {failed.code}: {failed.err[-300:]}"
        return
    if not failed.hint:
        yield f"has no hint: {failed.message}"
        return
    try:
        todo = pasting.pasted(failed.hint, typed, failed.message, WORDS)
    except pasting.NotAHintError as error:
        if row.how != "=>":
            yield f"{failed.message}\n    hint: {failed.hint}\n    {error}"
            return
        todo = [pasting.Pasted(tuple(shlex.split(row.then)))]
    else:
        if row.how == "=>":
            yield f"can be pasted, so that => is not needed: {failed.hint}"
    for one in todo:
        wrong = _wrong_with(one, row, typed, failed)
        if wrong:
            yield f"{failed.message}\n    hint: {failed.hint}\n    {shlex.join(one.line)}: {wrong}"


def _wrong_with(one: pasting.Pasted, row: Row, typed: list[str], failed: Failure) -> str:
    if row.how == "!>":
        if not one.tool:
            pasting.parameters(one.line[0])
        return ""
    if one.tool:
        wrong = _wrong_with_tool(one)
        if wrong or one.tool not in pasting.MENDING:
            return wrong
        again = try_line(typed)
    else:
        again = try_line(list(one.line), one.stdin)
    if row.how == "~>":
        return "" if row.then in again.message else f"leads to: {again.message or again.err}"
    return (
        "" if again.code in (0, 1) else f"{again.code} {again.message}\n    {again.hint or again.err[-300:]}"
    )


def _wrong_with_tool(one: pasting.Pasted) -> str:
    if one.tool not in ("ls", "mkdir", "rm", "head", "grep", "find", "tar", "df", "mv"):
        return ""  # of others: not on every machine, or it changes the machine
    done = subprocess.run(one.line, check=False, capture_output=True, text=True)
    return "" if done.returncode in (0, 1) else done.stderr


def _check_python(row: Row, names: dict[str, Any]) -> Iterator[str]:
    failed = try_python(row.fails.removeprefix(">>> "), names)
    if failed.code not in (2, 4):
        yield f"does not fail, but ends with {failed.code}: {failed.err[-600:]}"
    elif not failed.hint:
        yield f"has no hint: {failed.message}"
    elif row.how != "=>":
        yield f"what follows the hint of a call is to be told: {failed.message}\n    hint: {failed.hint}"
    else:
        again = try_python(row.then, names)
        if again.code:
            yield f"{failed.message}\n    hint: {failed.hint}\n    {row.then}: {again.message or again.err[-600:]}"


def tidied(folder: Path) -> Callable[[], None]:
    """Return a function that removes what has come into a folder since."""
    before = {path.name for path in folder.iterdir()}

    def tidy() -> None:
        for path in folder.iterdir():
            if path.name not in before:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return tidy
