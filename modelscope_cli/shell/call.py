"""Commands made from public functions: their Typer signature, and the parsed call."""

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.ranks import find_ranks
from modelscope_cli.records.keywords import DEFAULTS
from modelscope_cli.records.options import SHARED
from modelscope_cli.records.refusals import flags, refuse
from modelscope_cli.records.run import invocation, invoked_as
from modelscope_cli.shell import completion, console
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.declared import FUNCTIONS, Declared, declared, help_of, signature
from modelscope_cli.shell.named_model import names_learner, names_model, take_model
from modelscope_cli.shell.output import Destination, destination

if TYPE_CHECKING:
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest

_KINDS = {"flag": bool, "maybe": bool | None, "texts": list[str] | None}


def command(body: Callable[["CommandCall"], Any]) -> Callable[..., Any]:
    """Return a Typer command with the options of the public function and its own.

    Args:
        body: implements the command of its name; its docstring is the help.
    """
    name = body.__name__

    def run(**typed: Any) -> Any:
        return body(CommandCall(name, typed))

    parameters = [_parameter(one, name) for one in declared(name).values()]
    run.__name__, run.__doc__, run.__module__ = name, body.__doc__, body.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(one: Declared, command: str) -> inspect.Parameter:
    """Return an option as a Typer parameter; values are parsed by `CommandCall` by their bounds."""
    settings: dict[str, Any] = {
        "metavar": one.option.metavar or None,
        "help": help_of(one, command),
        "envvar": one.option.variable,
        "show_default": False,
        "autocompletion": _completion(one),
    }
    if one.is_argument:
        parameter = typer.Argument(**settings)
    else:
        parameter = typer.Option(*one.spellings, rich_help_panel=one.panel, **settings)
    default = one.parameter.default if one.parameter.kind == "flag" else None
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if one.parameter.is_required else default,
        annotation=Annotated[_KINDS.get(one.parameter.kind, str | None), parameter],
    )


def _completion(one: Declared) -> Callable[..., list[str]] | None:
    completes = one.option.completes or one.option.choices
    if isinstance(completes, str):
        complete: Callable[..., list[str]] = getattr(completion, completes)
        return complete
    return completion.one_of(*completes) if completes else None


class CommandCall:
    """One call of a command."""

    def __init__(self, name: str, typed: Mapping[str, Any]) -> None:
        self.name = name  # the command
        # Options and arguments of the command line by parameter name; flags only if not at their default
        self.typed = {
            key: value
            for key, text in typed.items()
            if (value := _read(name, declared(name)[key], text)) is not None
            and not (isinstance(value, bool) and value == declared(name)[key].parameter.default)
        }

    @property
    def changed(self) -> dict[str, Any]:
        """The options and arguments that differ from their default."""
        every = declared(self.name)
        return {name: value for name, value in self.typed.items() if value != every[name].parameter.default}

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option, else its default."""
        if name in self.typed:
            return self.typed[name]
        option = declared(self.name).get(name)
        return option.parameter.default if option is not None else DEFAULTS.get(name)

    def begin(self, more: tuple[str, ...] = (), *, is_shared: bool = False) -> Destination:
        """Apply verbosity and --force, check the combination of options, and return the destination.

        Must be called first.

        Args:
            more: formats that only this command has.
            is_shared: whether the processes of torchrun share the work; then only the first one prints.
        """
        from modelscope_cli.report.sheet import View

        settings = console.settings
        settings.is_quiet, settings.is_verbose = bool(self["quiet"]), bool(self["verbose"])
        settings.is_debug = bool(self["debug"])
        settings.is_silent = is_shared and not find_ranks().is_first
        # A silent process may find files that the first one wrote.
        invoked_as(settings.argv, settings.started, bool(self["force"]) or settings.is_silent)
        refuse(self.name, self.changed)
        top = self["top"] if self.is_own("top") else None
        view = View(self["columns"], self["sort"], top, bool(self["all"]))
        page = None if settings.is_silent else self["html"]
        where = destination(
            self["format"] or "auto", bool(self["json"]), self["output"], view, more, page=page
        )
        console.begin_work()
        return where

    def is_own(self, name: str) -> bool:
        """Tell whether an option exists only on the command line, not as a parameter of the function."""
        option = declared(self.name).get(name)
        return option is not None and option.is_own

    def subject(self, is_model: Callable[[str], bool] = names_model) -> tuple["ModelRequest", "InputRequest"]:
        """Return the requested model and input, checked without importing anything heavy.

        Args:
            is_model: tells a model from an image.
        """
        default = declared(self.name)["model"].option.shown
        arguments = self["first"], self["images"], self["model"]
        named, images = take_model(self.name, *arguments, default=default or None, is_model=is_model)
        return self.model(named), self.inputs(images)

    def learner(self) -> tuple["ModelRequest", str | None]:
        """Return the model to train, and the folder of images, if any."""
        words = () if self["folder"] is None else (self["folder"],)
        default = declared(self.name)["model"].option.shown
        named, folders = take_model(
            self.name, self["first"], words, self["model"], default=default, is_model=names_learner
        )
        if len(folders) > 1:
            message = f"one folder of images at a time, not '{folders[0]}' and '{folders[1]}'"
            raise UsageError(message, f"leave out {shlex.quote(folders[1])}")
        return self.model(named), next(iter(folders), None)

    def need_images(self, inputs: "InputRequest") -> None:
        """Refuse a command line without images, for a command that requires them."""
        if not inputs.files and not inputs.named:
            raise UsageError("missing argument 'IMAGE'", f"modelscope {self.name} --help")

    def model(self, named: str, *, is_checked: bool = True) -> "ModelRequest":
        from modelscope_cli.models.check_request import check_request
        from modelscope_cli.models.request import as_request
        from modelscope_cli.models.weights_file import is_checkpoint_file

        fields = ("key", "strict", "num_classes", "model_arg", "device", "dtype", "seed")
        weights, checkpoint = self["weights"], self["checkpoint"]
        if checkpoint is None and is_checkpoint_file(weights):  # as other tools take it
            weights, checkpoint = declared(self.name)["weights"].parameter.default, Path(weights)
        keywords: Any = {field: self[field] for field in fields}
        request = as_request(named, keywords | {"weights": weights, "checkpoint": checkpoint})
        request = replace(request, progress=not console.settings.is_quiet)
        return check_request(request) if is_checked else request

    def inputs(self, images: list[str] | None) -> "InputRequest":
        """Return the request for the input; its files exist."""
        from modelscope_cli.inputs.files import check_pictures
        from modelscope_cli.inputs.grammar import files_of
        from modelscope_cli.inputs.request import InputRequest

        named = tuple(self["input"] or ())
        check_pictures(file for file in (*(images or ()), *files_of(named)) if file != "-")
        fields = ("size", "mean", "std", "batch", "workers", "seed")
        return InputRequest(
            files=tuple(images or ()),
            named=named,
            shapes=tuple(self["input_shape"] or ()),
            **{field: self[field] for field in fields},
        )

    def keywords(self, *names: str) -> dict[str, Any]:
        """Return the keyword arguments of the public function, except those of model and input.

        Args:
            names: restricts the result to these; empty for all.
        """
        of_function = signature(FUNCTIONS.get(self.name, self.name))
        in_request = {*SHARED["Model"], *SHARED["Input"]} - {"mode", "output_kind"}
        values = {
            name: self.typed[name]
            for name, one in declared(self.name).items()
            if name in self.typed and not one.is_own and not one.is_argument
            if not (one.panel in SHARED and name in in_request)
            if not names or name in names
        }
        if names:
            return values
        always = {"force": self["force"], "progress": PROGRESS, "share": True}
        return values | {name: value for name, value in always.items() if name in of_function}

    def folder(self, model: str) -> Path:
        """Return the folder of --out, else a new default folder."""
        from modelscope_cli.output_files import OutputFolder, free_folder

        folder: Path = self["out"] or free_folder(self.name, model)
        OutputFolder(folder, invocation().is_forced).check()
        return folder

    def check_saving(self, beside: Path | None = None) -> bool:
        """Return whether a folder is written; without one refuse options about it.

        Args:
            beside: a file outside the folder to which --force may apply.
        """
        is_about_folder = self["force"] and not (self["output"] or self["html"] or beside)
        if not self["save"] and (self["out"] or is_about_folder):
            hint = "leave out --no-save, or leave out --out and --force"
            raise UsageError("--no-save writes no folder", hint)
        return bool(self["save"])


def _read(command: str, one: Declared, text: Any) -> Any:
    """Convert the text of an option to the type of its parameter; None if it was not given."""
    kind = one.parameter.kind
    if kind == "flag" and isinstance(text, str):  # from an environment variable
        return text.lower() not in ("", "0", "false", "no", "off")
    if text is None or kind in ("flag", "maybe", "text"):
        return text
    if kind == "texts":
        return list(text) or None
    if kind == "path":
        return Path(text)
    try:
        return int(text) if kind == "whole" else float(text)
    except ValueError:
        flag = one.spellings[0]
        share, excerpt = text.rstrip("%"), text if len(text) < 100 else f"{text[:80]}..."
        example = one.shown_default or (f"{one.option.least:g}" if one.option.least is not None else "1")
        if kind == "real" and text.endswith("%") and share.replace(".", "", 1).isdigit():
            example = f"{float(share) / 100:g}"
        problem = "not a whole number" if kind == "whole" else "not a number"
        problem = "too large" if text.lstrip("+-").isdecimal() else problem  # too many digits for Python
        message = f"'{flags(command, one.name, excerpt)}' is {problem}"
        raise UsageError(message, f"{flag} {example.split()[0]}") from None
