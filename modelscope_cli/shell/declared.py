"""The options of a command, read from the source of its public function. Imports nothing heavy."""

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import modelscope_cli
from modelscope_cli.records import keywords
from modelscope_cli.records.keywords import with_words
from modelscope_cli.records.options import ARGUMENTS, OPTIONS, SHARED, Option, own

_ENTRY = re.compile(r"(?m)^ {4}(?! )([\w, ]+):\s")
_SECTION = re.compile(r"(?m)^(?:Args|Attributes):\n((?:(?: {4}.*)?\n?)+)")
_IN_CODE = re.compile(r"`(\w+)`")


# Public functions whose name differs from their command's; parameters that only Python callers have.
FUNCTIONS: Mapping[str, str] = {"rules": "list_rules", "report": "make_report", "models": "list_models"}
IN_PYTHON = frozenset(
    ["progress", "share", "each", "keep", "measure", "flow", "allow", "inputs", "data", "more"]
)
LACKS: Mapping[str, frozenset[str]] = {
    "summary": frozenset(["size", "mean", "std", "workers"]),
    "stats": frozenset(["attention"]),
    "featuremaps": frozenset(["batch", "workers"]),
    "predict": frozenset(["input_shape"]),
    "attack": frozenset(["input_shape", "input", "batch", "workers", "output_kind"]),
    "train": frozenset(["num_classes"]),
    "watch": frozenset(["what", "optimizer"]),
}
# Output options that a command does not have, because its table is short or it shows no result.
_ROWS = frozenset(["columns", "sort", "top", "all"])
_LACKS_OUTPUT: Mapping[str, Collection[str]] = {
    **dict.fromkeys(["attack", "lrfind"], _ROWS),
    "models": frozenset(["all", "html", "verbose"]),
    "rules": frozenset(["all", "sort", "html", "verbose"]),
    "report": _ROWS | {"output", "verbose"},
    "schema": SHARED["Output"].keys() - {"quiet", "debug"},
    "demo": SHARED["Output"].keys() - {"force"},
    "help": SHARED["Output"].keys(),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    kind: str  # `flag`, `maybe` (a flag that may be None), `whole`, `real`, `path`, `texts` or `text`
    default: Any
    help: str  # its text in the docstring
    is_required: bool = False  # whether it has no default


@dataclass(frozen=True, slots=True)
class Declared:
    """An option or argument of a command, with all its properties."""

    name: str
    panel: str
    option: Option
    parameter: Parameter  # its kind, default and help
    is_own: bool  # whether it exists only on the command line, not as a parameter of the function

    @property
    def is_argument(self) -> bool:
        return self.panel == ARGUMENTS

    @property
    def spellings(self) -> list[str]:
        """The long and short spelling; with the negation for a flag that is on or None by default."""
        flag = self.option.flag or "--" + self.name.replace("_", "-")
        is_switch = self.parameter.kind == "maybe" or (
            self.parameter.kind == "flag" and self.parameter.default
        )
        long = f"{flag}/--no-{flag[2:]}" if is_switch else flag
        return [long, *filter(None, [self.option.short])]

    @property
    def shown_default(self) -> str:
        """The default as shown in the help; empty if there is none to show."""
        if self.option.shown is not None:
            return self.option.shown
        default = self.parameter.default
        if self.parameter.kind == "flag":
            flag = self.name.replace("_", "-")
            return flag if default is True else ""
        if default is None or default in ((), ""):
            return ""
        values = default if isinstance(default, tuple) else (default,)
        return ",".join(map(str, values))


@cache
def declared(command: str) -> Mapping[str, Declared]:
    """Return the arguments and options of a command by parameter name, panel by panel."""
    function = FUNCTIONS.get(command, command)
    parameters = signature(function) if function in modelscope_cli.__all__ else {}
    shared, command_options = _by_name(SHARED), _by_name(own(command))
    of_command = {
        **command_options,
        **dict.fromkeys(parameters.keys() - IN_PYTHON),
        **dict.fromkeys(["model"] if "first" in command_options else []),
        **dict.fromkeys(["input"] if "images" in command_options else []),
        **dict.fromkeys(
            name for name in SHARED["Output"] if shared[name][1].kind and _is_shown(command, name)
        ),
    }
    options = []
    for name in sorted(of_command.keys() - LACKS.get(command, frozenset()), key=[*of_command].index):
        panel, option = command_options.get(name) or shared.get(name) or (OPTIONS, Option())
        mine = Parameter(option.kind, option.default, option.help) if option.kind else parameters[name]
        options.append(
            Declared(name, panel, option, replace(mine, help=option.help or mine.help), bool(option.kind))
        )
    order = [*(panel for panel in own(command) if panel not in SHARED), OPTIONS, *SHARED]
    places = [*shared]
    options.sort(
        key=lambda one: (
            order.index(one.panel),
            places.index(one.name) if one.name in SHARED.get(one.panel, ()) else -1,
        )
    )
    return {one.name: one for one in options}


def _is_shown(command: str, name: str) -> bool:
    return name != "save" and name not in _LACKS_OUTPUT.get(command, ())


def _by_name(panels: Mapping[str, Mapping[str, Option]]) -> dict[str, tuple[str, Option]]:
    return {name: (panel, option) for panel, inside in panels.items() for name, option in inside.items()}


@cache
def signature(function: str) -> Mapping[str, Parameter]:
    """Return the parameters of a public function, including those of `**keywords: Unpack[...]`."""
    home = modelscope_cli.home_of(function) or ""
    path = Path(modelscope_cli.__file__).parents[1] / (home.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text("utf-8"))
    node = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function][-1]
    constants = _Constants(tree, home)
    doc = with_words(ast.get_docstring(node) or "", lambda name: constants.value(ast.Name(name)))
    helps = {**_shared_helps(), **_helps(doc)}
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    n_required = len(plain) - len(args.defaults)
    defaults = [*[None] * n_required, *args.defaults, *args.kw_defaults]
    parameters = {}
    for place, (arg, default) in enumerate(zip([*plain, *args.kwonlyargs], defaults, strict=True)):
        kind = _kind(ast.unparse(arg.annotation)) if arg.annotation else "text"
        help = helps.get(arg.arg, "")
        parameters[arg.arg] = Parameter(kind, constants.value(default), help, place < n_required)
    if args.vararg:
        parameters[args.vararg.arg] = Parameter("texts", (), helps.get(args.vararg.arg, ""))
    if args.kwarg and args.kwarg.annotation:
        group = ast.unparse(args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
        kinds = getattr(keywords, group).__annotations__
        for name, default in keywords.DEFAULTS.items():
            if name in kinds and name not in parameters:
                parameters[name] = Parameter(_kind(str(kinds[name])), default, _shared_helps()[name])
    return parameters


def _kind(annotation: str) -> str:
    words = set(re.split(r"\W+", re.sub(r"<class '(\w+)'>", r"\1", annotation))) - {"None", ""}
    if words == {"bool"}:
        return "maybe" if "None" in annotation else "flag"
    if words == {"int"}:
        return "whole"
    if words == {"float"}:
        return "real"
    if "PathLike" in words:
        return "path"
    return "texts" if "Sequence[str]" in annotation else "text"


class _Constants:
    """Evaluates defaults: literals, and constants of lightweight modules of the package."""

    def __init__(self, tree: ast.Module, module: str) -> None:
        self._module = module
        self._homes = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        self._own = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def value(self, node: ast.expr | None) -> Any:
        if node is None:
            return None
        if isinstance(node, ast.Name) and node.id in self._own:
            if isinstance(self._own[node.id], ast.Call):
                return getattr(import_module(self._module), node.id)
            return self.value(self._own[node.id])
        if isinstance(node, ast.Name):
            module, name = self._homes[node.id]
            return getattr(import_module(module), name)
        return ast.literal_eval(node)


def _helps(doc: str) -> dict[str, str]:
    """Return the text of each parameter under `Args:` or `Attributes:` of a docstring.

    Text after "In Python" is for Python callers and left out.
    """
    section = _SECTION.search(doc)
    pieces = _ENTRY.split(section[1])[1:] if section else []
    helps: dict[str, str] = {}
    for names, text in zip(pieces[::2], pieces[1::2], strict=True):
        words = " ".join(text.split()).partition(" In Python")[0].rstrip(";")
        helps |= dict.fromkeys((name.strip() for name in names.split(",")), _capitalised(words))
    return helps


def _capitalised(text: str) -> str:
    """Capitalise a sentence unless it begins with a value: `softmax: ...`."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


@cache
def _shared_helps() -> dict[str, str]:
    groups = (
        keywords.ModelKeywords,
        keywords.InputKeywords,
        keywords.BlockKeywords,
        keywords.OutputKeywords,
        keywords.LearningKeywords,
    )
    return {name: text for group in groups for name, text in _helps(inspect.getdoc(group) or "").items()}


def help_of(one: Declared, command: str) -> str:
    """Return the help of an option; parameter names in code become options."""
    options = declared(command)
    return _IN_CODE.sub(lambda found: _flag(options.get(found[1])) or found[1], one.parameter.help)


def _flag(one: Declared | None) -> str:
    return one.spellings[0].partition("/")[0] if one is not None and not one.is_argument else ""


def panels(command: str) -> Iterator[tuple[str, list[Declared]]]:
    """Yield the panels of a command's options, each with its options."""
    every = declared(command).values()
    for panel in dict.fromkeys(one.panel for one in every):
        yield panel, [one for one in every if one.panel == panel]


def takes_value(option: Declared) -> bool:
    return option.parameter.kind not in ("flag", "maybe")


@cache
def options_of(command: str) -> dict[str, Declared]:
    """Return the options of a command by each of their spellings, such as `--out` and `-o`."""
    return {
        name: one
        for one in declared(command).values()
        if not one.is_argument
        for spelling in one.spellings
        for name in spelling.split("/")
    }
