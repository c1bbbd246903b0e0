"""Where errors with hints are made: all such places by the source, and those that a table of lines reaches."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import modelscope_cli
from modelscope_cli import errors

ROOT = Path(modelscope_cli.__file__).parent
_FIRST = ("ModelscopeError", "UsageError", "CannotRunError")


@dataclass(frozen=True)
class Site:
    """A call that makes an error.

    Attributes:
        file: below `modelscope_cli/`.
        where: the function it stands in, and what it gives as the hint: lines move, these stay.
        at: line and column where the call begins and ends.
    """

    file: str
    where: str
    at: tuple[int, int, int, int]

    def __str__(self) -> str:
        return f"{self.file}:{self.at[0]} {self.where}"


@cache
def _kinds() -> frozenset[str]:
    """Return the names of the errors with hints: the three, and what derives from them."""
    derived = re.compile(rf"^class (\w+)\((?:{'|'.join(_FIRST)})\):", re.MULTILINE)
    return frozenset(_FIRST).union(*(derived.findall(path.read_text("utf-8")) for path in ROOT.rglob("*.py")))


def sites(starts: Sequence[str] = ("",)) -> Iterator[Site]:
    """Give all calls that make an error with a hint, in the files whose paths below `modelscope_cli/` begin so."""
    for path in sorted(ROOT.rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if file.startswith(tuple(starts)):
            yield from _in_file(file)


@cache
def _in_file(file: str) -> tuple[Site, ...]:
    text = (ROOT / file).read_text("utf-8")
    return tuple(_below(file, ast.parse(text), "")) if "Error(" in text else ()


def _below(file: str, node: ast.AST, function: str) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else function
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in _kinds():
            hints = [*child.args[1:], *(keyword.value for keyword in child.keywords if keyword.arg == "hint")]
            if hints and not (
                isinstance(hints[0], ast.Constant) and hints[0].value is None and len(hints) == 1
            ):
                where = f"{function}: {ast.unparse(hints[-1])}"
                yield Site(
                    file,
                    where,
                    (child.lineno, child.end_lineno or 0, child.col_offset, child.end_col_offset or 0),
                )
        yield from _below(file, child, inner)


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, tuple[int, int, int, int]]]]:
    """Note in which file and where errors are made."""
    reached: set[tuple[str, tuple[int, int, int, int]]] = set()
    make = errors.ModelscopeError.__init__

    def make_and_note(self: errors.ModelscopeError, message: str, hint: str | None = None) -> None:
        make(self, message, hint)
        frame = _maker(self)
        if frame is not None and frame.f_code.co_filename.startswith(str(ROOT)):
            positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
            line, end_line, column, end_column = (number or 0 for number in positions)
            file = str(Path(frame.f_code.co_filename).relative_to(ROOT))
            reached.add((file, (line, end_line, column, end_column)))

    with monkeypatch.context() as patch:
        patch.setattr(errors.ModelscopeError, "__init__", make_and_note)
        yield reached


def _maker(error: errors.ModelscopeError) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_locals.get("self") is error:
        frame = frame.f_back  # the constructor of a kind of error
    return frame
