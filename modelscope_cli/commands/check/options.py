"""The options that only `check` has, in groups."""

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import completion
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.named_model import SameModelOpt, names_learner, names_model, take_model

if TYPE_CHECKING:
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.rules.settings import CheckSettings

_RULES, _BUDGETS = "Rules", "Budgets, for one image"


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """What is judged, and what makes it fail."""

    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="CODES",
            help="Judge only these rules: MS202, its name, or a beginning such as MS2 (repeatable).",
            autocompletion=completion.rules,
            rich_help_panel=_RULES,
        ),
    ] = None
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CODES",
            help="Leave out these rules.",
            autocompletion=completion.rules,
            rich_help_panel=_RULES,
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CODE=THRESHOLD",
            help="Set the threshold of a rule (repeatable); `modelscope rules` lists them.",
            rich_help_panel=_RULES,
        ),
    ] = None
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="SEVERITY",
            help="The lowest severity that makes the exit code 1: error or warning.",
            show_default="error",
            rich_help_panel=_RULES,
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Ignore the findings listed in this file, unless they got worse.",
            rich_help_panel=_RULES,
        ),
    ] = None
    update_baseline: Annotated[
        bool,
        typer.Option(
            "--update-baseline",
            help="Write today's findings to that file, and ignore all of them.",
            rich_help_panel=_RULES,
        ),
    ] = False
    max_params: Annotated[
        str | None,
        typer.Option(
            "--max-params",
            metavar="N",
            help="At most this many parameters, such as 25M.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None
    max_macs: Annotated[
        str | None,
        typer.Option(
            "--max-macs",
            metavar="N",
            help="At most this many multiply-adds, such as 5G.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="BYTES",
            help="At most this much memory for weights, buffers and all layer outputs, such as 500MB.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None
    expect_output: Annotated[
        str | None,
        typer.Option(
            "--expect-output",
            metavar="SHAPE",
            help="The expected shape of the output, such as 1,1000.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None

    def settings(self) -> "CheckSettings":
        """Return these over what the project says.

        Raises:
            UsageError: what means nothing, here or in pyproject.toml (exit 2).
        """
        from modelscope_cli.rules.settings import read_settings

        return read_settings(
            Path.cwd(),
            select=self.select,
            ignore=self.ignore,
            set_=self.set_,
            budgets={
                "max-params": self.max_params,
                "max-macs": self.max_macs,
                "max-memory": self.max_memory,
                "expect-output": self.expect_output,
            },
            fail_on=self.fail_on,
            baseline=self.baseline,
        )


@dataclass(frozen=True, slots=True)
class LoadingOptions(groups.LoadOptions):
    """The model that is judged, and how it is loaded."""

    model: SameModelOpt = None

    def take(
        self, first: str | None, images: list[str] | None, settings: "CheckSettings"
    ) -> tuple[str, list[str]]:
        """Return the model and the images that are typed, else those of the project.

        The first word is the model; where --model or the project names one it may be an image.
        """

        def is_model(word: str) -> bool:
            if self.model is not None:
                return names_model(word)
            is_alone = settings.model is None and not any(map(names_model, images or ()))
            return is_alone or names_learner(word)

        return take_model("check", first, images, self.model, default=settings.model, is_model=is_model)

    def completed(self, model: str, settings: "CheckSettings") -> Self:
        """Return these with the checkpoint of the project, which belongs to its model and to no other."""
        is_projects = model == settings.model and self.weights == "auto" and self.checkpoint is None
        return replace(self, checkpoint=settings.checkpoint) if is_projects else self

    def request(self, model: str) -> "ModelRequest":
        """Return what was asked for. A file of weights is judged before it is refused, so it is checked later."""
        from modelscope_cli.models.request import check_request, weights_file

        request = self.typed(model)
        return check_request(request) if weights_file(request) is None else request


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """What a data set is held against."""

    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="FOLDER",
            help="Another data set, which should have no image in common with the first (repeatable).",
            rich_help_panel="Data set",
        ),
    ] = None

    def take(
        self,
        first: str | None,
        images: list[str] | None,
        settings: "CheckSettings",
        loading: LoadingOptions,
        inputs: groups.InputOptions,
    ) -> list[str]:
        """Return the words that name a data set; none where a model is to be judged.

        It is a data set where --against is given, where all rules that are selected are about data sets, or where
        the first word is a folder, a list or a shard, and nobody names a model.
        """
        words = [word for word in (first, *(images or ())) if word is not None]
        is_selected = bool(settings.select) and all(
            code.upper().startswith("MS8") for code in settings.select
        )
        has_model = loading.model is not None or settings.model is not None
        if not (self.against or is_selected or (words and not has_model and is_data_set(words[0]))):
            return []
        for typed, default in ((loading, LOADING), (inputs, groups.INPUT)):
            for field in fields(typed):
                is_typed = getattr(typed, field.name) != getattr(default, field.name)
                if is_typed and field.name != "offline":  # which may be set for every command
                    option = f"--{field.name.replace('_', '-')}"
                    message = f"'{option}' is about a model, and a data set is judged here"
                    raise UsageError(message, f"leave out {option}")
        if not words:
            raise UsageError("missing argument: the folder of images", "modelscope check IMAGES")
        return words


def refuse_idle(mode: str, blocks: groups.BlockOptions) -> None:
    """Refuse what says how a model is run where a data set is judged."""
    typed = {
        f"--mode {mode}": mode != "auto",
        f"--out {blocks.out}": blocks.out is not None,
        "--resume": blocks.resume,
    }
    for option in (option for option, is_typed in typed.items() if is_typed):
        message = f"'{option}' is about a model, and a data set is judged here"
        raise UsageError(message, f"leave out {option}")


def is_data_set(word: str) -> bool:
    """Tell a folder of images, a list or a shard from a model; what holds weights or a config is a model."""
    from modelscope_cli.checkpoints.file_type import CHECKPOINT_SUFFIXES

    if word.startswith("@") or word.lower().endswith(".tar"):
        return os.path.exists(word.removeprefix("@"))
    if not os.path.isdir(word):
        return False
    names = [Path(name.lower()) for name in os.listdir(word)]
    return not any(name.name == "config.json" or name.suffix in CHECKPOINT_SUFFIXES for name in names)


@dataclass(frozen=True, slots=True)
class CheckOutputOptions(groups.OutputOptions):
    """How the result is shown; two formats are for build servers."""

    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="auto (table on a terminal, tsv in a pipe), table, tsv, csv, json, markdown, github, junit.",
            rich_help_panel="Output",
        ),
    ] = "auto"


RULES, LOADING, OUTPUT, DATASET = RuleOptions(), LoadingOptions(), CheckOutputOptions(), DatasetOptions()
