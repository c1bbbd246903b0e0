"""The arguments and options of a command, read from its signature: for parsing, help, hints and completion."""

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typer.models import ArgumentInfo, OptionInfo

from modelscope_cli.errors import UsageError
from modelscope_cli.records.refusals import check_range, check_word
from modelscope_cli.shell.overview import MODULES

ARGUMENTS, OPTIONS = "Arguments", "Options"
LISTS = ("A,B,...", "LIST", "NAMES")  # metavars of lists of any length
_METAVARS = {str: "TEXT", int: "N", float: "X", Path: "FILE"}
SHARED = ("Layers", "Model", "Input", "Output")  # panels of many commands, last in the help


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or option of a command: what `typer.Argument` or `typer.Option` says of it.

    Attributes:
        kind: the type of its value or, if it is repeatable, of each: bool, int, float, str or Path.
        choices: the words it takes; empty for any value.
        default: its default; `inspect.Parameter.empty` if it is required.
        is_shared: whether a panel of options declares it, not the command.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    is_repeatable: bool
    default: Any
    info: ArgumentInfo | OptionInfo
    is_shared: bool

    @property
    def is_argument(self) -> bool:
        return isinstance(self.info, ArgumentInfo)

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def panel(self) -> str:
        return ARGUMENTS if self.is_argument else self.info.rich_help_panel or OPTIONS

    @property
    def help(self) -> str:
        return self.info.help or ""

    @property
    def spellings(self) -> list[str]:
        """The long and short spelling; a flag that can be negated as `--save/--no-save`."""
        first = () if self.info.default is ... else (self.info.default,)  # of `typer.Option("--out", "-o")`
        given: list[str] = [*first, *(self.info.param_decls or ())]
        return given or ["--" + self.name.replace("_", "-")]

    @property
    def names(self) -> list[str]:
        """Each of its spellings on a command line: `--save`, `--no-save`."""
        return [name for spelling in self.spellings for name in spelling.split("/")]

    @property
    def takes_value(self) -> bool:
        return self.kind is not bool

    @property
    def value(self) -> str:
        """The word for its value in the help; empty for a flag."""
        return (
            ""
            if not self.takes_value
            else self.info.metavar or "|".join(self.choices) or _METAVARS[self.kind]
        )

    @property
    def mark(self) -> str:
        """What joins the parts of its value: `=` of `KEY=VALUE`, the comma of a list; empty for a single word."""
        form = self.info.metavar or ""
        return "=" if "=" in form else "," if "," in form or form in (*LISTS, "SHAPE", "CODES") else ""

    @property
    def example(self) -> str:
        """A stand-in for its value: its metavar, or the first word that it takes."""
        return self.info.metavar or (self.choices or ("VALUE",))[0]

    @property
    def shown_default(self) -> str:
        """The default as shown in the help; empty if there is none to show."""
        if isinstance(self.info.show_default, str):
            return self.info.show_default
        if self.kind is bool:
            return self.name.replace("_", "-") if self.default is True else ""
        is_shown = self.info.show_default and self.default not in (None, "", inspect.Parameter.empty)
        return str(self.default) if is_shown else ""

    def read(self, text: str) -> Any:
        """Return the value of a text as typed.

        Raises:
            UsageError: it is not a number, out of bounds, or not one of the choices.
        """
        if self.kind is Path:
            return Path(text)
        if self.choices:
            check_word(self.name, text, self.choices)
        if self.kind not in (int, float):
            return text
        try:
            value: float = self.kind(text)
        except ValueError:
            raise self._not_a_number(text) from None
        check_range(self.name, value, least=self.info.min, most=self.info.max)
        return value

    def _not_a_number(self, text: str) -> UsageError:
        share, excerpt = text.rstrip("%"), text if len(text) < 100 else f"{text[:80]}..."
        example = self.shown_default or f"{max(1, self.info.min or 0):g}"
        if self.kind is float and text.endswith("%") and share.replace(".", "", 1).isdigit():
            example = f"{float(share) / 100:g}"
        problem = "not a whole number" if self.kind is int else "not a number"
        problem = "too large" if text.lstrip("+-").isdecimal() else problem  # too many digits for Python
        flag = self.names[0]
        return UsageError(f"'{flag} {excerpt}' is {problem}", f"{flag} {example.split()[0]}")


def command(body: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command whose signature has panels of options.

    A parameter annotated with a panel, a dataclass of options, stands for all of them: Typer sees each as an
    option, and the body gets the panel. An option that the command declares itself replaces that of a panel.
    """
    own: list[inspect.Parameter] = []
    panels: dict[str, Any] = {}
    for parameter in inspect.signature(body).parameters.values():
        if is_dataclass(parameter.annotation):
            panels[parameter.name] = parameter.annotation
        else:
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    names = {parameter.name for parameter in own}
    shared = {
        parameter.name: parameter
        for panel in panels.values()
        for parameter in _options_in(panel)
        if parameter.name not in names
    }

    @wraps(body)
    def run(**values: Any) -> Any:
        given = {
            name: panel(**{one.name: values[one.name] for one in fields(panel) if one.name in shared})
            for name, panel in panels.items()
        }
        return body(**{name: values[name] for name in names}, **given)

    every = [*own, *shared.values()]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    run.shared = frozenset(shared)  # type: ignore[attr-defined]
    return run


def _options_in(panel: Any) -> Iterator[inspect.Parameter]:
    """Yield the options of a panel, those of its own class before those that it inherits."""
    defaults = {one.name: one.default for one in fields(panel)}
    annotations: dict[str, Any] = {}
    for kind in panel.__mro__:
        annotations = annotations | {
            name: one
            for name, one in vars(kind).get("__annotations__", {}).items()
            if name not in annotations
        }
    for name, annotation in annotations.items():
        if name in defaults:
            kind, info = get_args(annotation)
            info.rich_help_panel = info.rich_help_panel or panel.panel
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=Annotated[kind, info]
            )


@cache
def function_of(name: str) -> Callable[..., Any]:
    """Return the function of a command, importing its module."""
    function: Callable[..., Any] = getattr(import_module(MODULES[name]), name)
    return function


@cache
def parameters_of(name: str) -> Mapping[str, Parameter]:
    """Return the arguments and options of a command by parameter name, panel by panel."""
    function = function_of(name)
    shared: frozenset[str] = getattr(function, "shared", frozenset())
    every = [_read(one, one.name in shared) for one in inspect.signature(function).parameters.values()]
    own = [one.panel for one in every if one.panel not in (OPTIONS, *SHARED)]
    order = [*dict.fromkeys([ARGUMENTS, *own, OPTIONS, *SHARED])]
    every.sort(key=lambda one: order.index(one.panel))
    return {one.name: one for one in every}


def _read(parameter: inspect.Parameter, is_shared: bool) -> Parameter:
    kind, info = get_args(parameter.annotation)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    is_repeatable = get_origin(kind) is list
    kind = str if choices else get_args(kind)[0] if is_repeatable else kind
    is_shared = is_shared and info.rich_help_panel in SHARED
    return Parameter(parameter.name, kind, choices, is_repeatable, parameter.default, info, is_shared)


@cache
def options_of(name: str) -> Mapping[str, Parameter]:
    """Return the options of a command by each of their spellings, such as `--out` and `-o`."""
    return {
        spelling: one for one in parameters_of(name).values() if not one.is_argument for spelling in one.names
    }
