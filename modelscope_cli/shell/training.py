"""The options that `train` and `lrfind` share."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import completion
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.named_model import FirstArg, LearnerOpt, names_learner, take_model
from modelscope_cli.shell.numbers import real, whole

DATA, HOW, CHANGE = "Data", "Training", "Change the model"

FolderArg = Annotated[
    str | None,
    typer.Argument(
        metavar="DIR",
        help="A folder with one folder of images for each class. Without it, ten classes of drawn shapes.",
        show_default=False,
    ),
]
# As it was once given; it stands in no help.
DataOpt = Annotated[Path | None, typer.Option("--data", hidden=True, help="The same as DIR.")]
LoadersOpt = Annotated[
    str | None,
    typer.Option(
        "--loaders",
        metavar="FILE.py:NAME",
        help="Train on a DataLoader of your own. NAME may also be a function that returns one, or "
        "(train, validation).",
        rich_help_panel=DATA,
    ),
]
PicturesOpt = Annotated[
    int,
    whole("--pictures", metavar="N", min=20, help="How many shapes to draw.", rich_help_panel=DATA),
]
SizeOpt = Annotated[
    int,
    whole(
        "--size",
        most=4096,
        metavar="N",
        min=8,
        help="Width and height of each image, in pixels.",
        rich_help_panel=DATA,
    ),
]
BatchOpt = Annotated[
    int, whole("--batch", "-b", metavar="N", help="How many images each step takes.", rich_help_panel=HOW)
]
OptimizerOpt = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="The optimizer: sgd, momentum, nesterov (both 0.9), or adamw.",
        autocompletion=completion.of_training("optimizer"),
        rich_help_panel=HOW,
    ),
]
SmoothingOpt = Annotated[
    float,
    real("--label-smoothing", metavar="E", help="Label smoothing of the cross-entropy.", rich_help_panel=HOW),
]
DecayOpt = Annotated[
    float, real("--weight-decay", metavar="L", help="Weight decay of the optimizer.", rich_help_panel=HOW)
]
InitOpt = Annotated[
    str,
    typer.Option(
        "--init",
        metavar="NAME",
        help="Initialise by default, kaiming-normal, kaiming-uniform, xavier, or lsuv. default "
        "is what the model does itself.",
        autocompletion=completion.of_training("init"),
        rich_help_panel=CHANGE,
    ),
]
ActivationOpt = Annotated[
    str,
    typer.Option(
        "--activation",
        metavar="NAME",
        help="Replace the ReLUs: leaky or general. relu leaves them; general takes --leak, --subtract, --maximum.",
        autocompletion=completion.of_training("activation"),
        rich_help_panel=CHANGE,
    ),
]
LeakOpt = Annotated[
    float,
    real("--leak", metavar="S", help="The slope of the new ReLU below zero.", rich_help_panel=CHANGE),
]
SubtractOpt = Annotated[
    float, real("--subtract", metavar="V", help="What the general ReLU subtracts.", rich_help_panel=CHANGE)
]
MaximumOpt = Annotated[
    float | None,
    real("--maximum", metavar="V", help="The highest value of the general ReLU.", rich_help_panel=CHANGE),
]
NormLayerOpt = Annotated[
    str,
    typer.Option(
        "--norm-layer",
        metavar="NAME",
        help="Replace batch norms: layer, group, instance, running, or none. batch leaves them as they are.",
        autocompletion=completion.of_training("norm"),
        rich_help_panel=CHANGE,
    ),
]
FreezeOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--freeze",
        metavar="PATTERN",
        help="Do not train these layers (repeatable).",
        rich_help_panel=CHANGE,
    ),
]
TrainOnlyOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--train-only",
        metavar="PATTERN",
        help="Train nothing but these layers (repeatable).",
        rich_help_panel=CHANGE,
    ),
]


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """What is typed by position, a model and a folder of images, and what may stand in for the folder."""

    first: FirstArg = None
    folder: FolderArg = None
    data: DataOpt = None
    loaders: LoadersOpt = None

    def take(self, command: str, named: str | None) -> tuple[str, str | None]:
        """Return the model and the folder of images, if any; `named` is what `--model` says.

        Raises:
            UsageError: two different models, or two folders (exit 2).
        """
        others = () if self.folder is None else (self.folder,)
        model, words = take_model(
            command, self.first, others, named, default="resnet18", is_model=names_learner
        )
        folders = [*words, *([str(self.data)] if self.data is not None else [])]
        if len(folders) > 1:
            message = f"one folder of images at a time, not '{folders[0]}' and '{folders[1]}'"
            option = "--data " if len(words) == 1 else ""
            raise UsageError(message, f"leave out {option}{shlex.quote(folders[1])}")
        return model, next(iter(folders), None)


@dataclass(frozen=True, slots=True)
class DrawnOptions:
    """The images of the sample set; the size holds for a folder, too."""

    pictures: PicturesOpt = 2000
    size: SizeOpt = 64


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """What is changed in the model before it learns."""

    init: InitOpt = "default"
    activation: ActivationOpt = "relu"
    leak: LeakOpt = 0.1
    subtract: SubtractOpt = 0.4
    maximum: MaximumOpt = None
    norm_layer: NormLayerOpt = "batch"
    freeze: FreezeOpt = None
    train_only: TrainOnlyOpt = None


@dataclass(frozen=True, slots=True)
class LearnerOptions(groups.LoadOptions):
    """The model that learns, in float32."""

    model: LearnerOpt = None
    weights: opt.WeightsOpt = "none"
    dtype: opt.DtypeOpt = field(default="float32", init=False)


GIVEN, DRAWN, CHANGES, LEARNER = GivenOptions(), DrawnOptions(), ChangeOptions(), LearnerOptions()
