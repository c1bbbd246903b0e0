"""The reference of the Python functions, made from their signatures and docstrings.

An argument that is an option too is described on the page of the command; here is only what Python adds to it.
"""

import ast
import inspect
import re
import textwrap
from typing import Any

import modelscope_cli as ms
from modelscope_cli.records import keywords
from modelscope_cli.shell.parameters import parameters_of
from tools.docs.commands import documented
from tools.docs.markdown import cell, table

_SECTION = re.compile(r"(?m)^(Args|Raises|Returns|Yields|Attributes):\n")
_ENTRY = re.compile(r"(?m)^    (?=\S)")
# What the page says of arguments before its list of functions.
_COMMON = (
    "a name or file as on the command line, an `nn.Module`, or the result of `load`.",
    "paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise of the model's "
    "input size.",
    "changes to values during the pass, in the syntax of `--hook`.",
)


def reference() -> str:
    """Return every public function: signature, what it does, arguments, errors."""
    names = [name for name in ms.__all__ if callable(getattr(ms, name))]
    parts = [_function("ms", name, getattr(ms, name)) for name in names]
    checks = [name for name in vars(ms.testing) if name.startswith("assert_")]
    parts += [
        "## Keywords of a model and its input",
        "Every function that runs a model takes the [model and input options](shared.md#model-options) as "
        "keywords, `checkpoint` for `--checkpoint`. In Python:",
        _shared(),
    ]
    parts += ["## modelscope_cli.testing", cell(ms.testing.__doc__ or "")]
    parts += [_function("ms.testing", name, getattr(ms.testing, name)) for name in checks]
    return "\n\n".join(parts)


def _function(home: str, name: str, function: Any) -> str:
    text = _described(
        inspect.getdoc(function) or "", set(parameters_of(name)) if name in documented() else set()
    )
    return f"## {home}.{name}\n\n```py\n{signature(function)}\n```\n\n{text}"


def signature(function: Any) -> str:
    """Return the signature without types, constants by their values; those are in the code and in editors."""
    plain = inspect.unwrap(function)
    node = ast.parse(textwrap.dedent(inspect.getsource(plain))).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise TypeError(f"{function} is not a function")
    arguments = [
        text for text in _arguments(_Values(plain.__globals__).visit(node.args)) if text != "progress=None"
    ]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return "\n".join(
        textwrap.wrap(f"{node.name}({', '.join(arguments)}){returns}", 100, subsequent_indent="    ")
    )


class _Values(ast.NodeTransformer):
    """Puts the value of a constant in the place of its name, which says nothing to a reader."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._known.get(node.id)
        return ast.Constant(value) if isinstance(value, str | int | float) else node


def _arguments(args: ast.arguments) -> list[str]:
    plain = [*args.posonlyargs, *args.args]
    padded: list[ast.expr | None] = [*[None] * (len(plain) - len(args.defaults)), *args.defaults]
    shown = [_argument(arg, default) for arg, default in zip(plain, padded, strict=True)]
    if args.vararg:
        shown.append(f"*{_argument(args.vararg, None)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [_argument(arg, value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return [*shown, *([f"**{_argument(args.kwarg, None)}"] if args.kwarg else [])]


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    return arg.arg + (f"={ast.unparse(default)}" if default is not None else "")


def _described(doc: str, options: set[str]) -> str:
    """Return a docstring as Markdown: text, examples, and a table of the arguments that no other page describes."""
    about, *sections = _SECTION.split(doc)
    parts = [_paragraph(text) for text in about.strip().split("\n\n")]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        entries = [" ".join(entry.split()).partition(": ") for entry in _ENTRY.split(body) if entry.strip()]
        rows = [
            (", ".join(f"`{name.strip()}`" for name in names.split(",")), cell(text))
            for names, _, meaning in entries
            if title != "Raises" and (text := _of_python(names.split(", "), meaning, options))
        ]
        parts += [table(("argument", "what it is"), rows)] if rows else []
    return "\n\n".join(parts)


def _of_python(names: list[str], meaning: str, options: set[str]) -> str:
    """Return what this page says of arguments: for options of the command, only what is different in Python."""
    if meaning in _COMMON or set(names) <= {"layer", "exclude"}:
        return ""
    return "".join(re.findall(r"(?s)In Python.*", meaning)) if options.issuperset(names) else meaning


def _paragraph(text: str) -> str:
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    return cell(text)


def _shared() -> str:
    options = {*keywords.ModelKeywords.__annotations__, *keywords.InputKeywords.__annotations__}
    kinds = (keywords.ModelKeywords, keywords.InputKeywords)
    rows = [_described(inspect.getdoc(kind) or "", options).partition("\n\n")[2] for kind in kinds]
    return "\n".join([rows[0], *rows[1].splitlines()[2:]])
