"""What `train` and `lrfind` share: their options, the data, and a model for them."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell.run import tell

if TYPE_CHECKING:
    from modelscope_cli.models.load import LoadedModel
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.records.run import InputInfo, Notice
    from modelscope_cli.records.train import DataInfo
    from modelscope_cli.training.data import TrainingData
    from modelscope_cli.training.request import TrainRequest

DATA, HOW, CHANGE = "Data", "Training", "Change the model"

DataOpt = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="A folder with one folder of pictures a class. Nothing: ten classes of drawn shapes.",
        rich_help_panel=DATA,
    ),
]
PicturesOpt = Annotated[
    int,
    typer.Option("--pictures", metavar="N", min=20, help="Drawn shapes to train on.", rich_help_panel=DATA),
]
SizeOpt = Annotated[
    int,
    typer.Option("--size", metavar="N", min=8, help="Side of the pictures, in pixels.", rich_help_panel=DATA),
]
BatchOpt = Annotated[
    int, typer.Option("--batch", "-b", metavar="N", help="Pictures in a step.", rich_help_panel=HOW)
]
OptimizerOpt = Annotated[
    str,
    typer.Option(
        "--optimizer", metavar="NAME", help="sgd, momentum (0.9), nesterov (0.9), adamw.", rich_help_panel=HOW
    ),
]
SmoothingOpt = Annotated[
    float, typer.Option("--label-smoothing", metavar="E", help="Of cross-entropy.", rich_help_panel=HOW)
]
DecayOpt = Annotated[
    float, typer.Option("--weight-decay", metavar="L", help="Of the optimizer.", rich_help_panel=HOW)
]
InitOpt = Annotated[
    str,
    typer.Option(
        "--init",
        metavar="NAME",
        help="default (the model's own), kaiming-normal, kaiming-uniform, xavier, lsuv.",
        rich_help_panel=CHANGE,
    ),
]
ActivationOpt = Annotated[
    str,
    typer.Option(
        "--activation",
        metavar="NAME",
        help="Put in the place of ReLUs: leaky, or general (--leak, --subtract, --maximum). relu: as they are.",
        rich_help_panel=CHANGE,
    ),
]
LeakOpt = Annotated[
    float, typer.Option("--leak", metavar="S", help="Slope below zero.", rich_help_panel=CHANGE)
]
SubtractOpt = Annotated[
    float, typer.Option("--subtract", metavar="V", help="Of the general ReLU.", rich_help_panel=CHANGE)
]
MaximumOpt = Annotated[
    float | None, typer.Option("--maximum", metavar="V", help="Of the general ReLU.", rich_help_panel=CHANGE)
]
NormOpt = Annotated[
    str,
    typer.Option(
        "--norm",
        metavar="NAME",
        help="Put in the place of batch norms: layer, group, instance, running, none. batch: as they are.",
        rich_help_panel=CHANGE,
    ),
]
FreezeOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--freeze",
        metavar="PATTERN",
        help="Do not train these layers and all below them (repeatable).",
        rich_help_panel=CHANGE,
    ),
]
TrainOnlyOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--train-only", metavar="PATTERN", help="Train only these (repeatable).", rich_help_panel=CHANGE
    ),
]


def open_data(folder: Path | None, pictures: int, size: int, seed: int) -> "TrainingData":
    """Open the folder, or the drawn sample set."""
    from modelscope_cli.training.data import open_drawn, open_folder

    return open_drawn(pictures, size, seed) if folder is None else open_folder(folder, size, seed)


def describe_data(data: "TrainingData") -> "DataInfo":
    """Describe the data for the record, with what could not be read of them so far."""
    from modelscope_cli.records.train import DataInfo

    return DataInfo(
        source=data.source,
        classes=data.classes,
        training_pictures=data.n_training,
        held_out_pictures=data.n_held_out,
        size=data.size,
        skipped=tuple(sorted(data.unreadable)),
    )


def input_of(shape: tuple[int, ...], data: "TrainingData | None") -> "InputInfo":
    """Describe one batch for the header of the record; without `data` it came from the user's own loaders."""
    from modelscope_cli.records.run import InputInfo

    if data is None:
        return InputInfo("tensor", (shape,))
    return InputInfo("image", (shape,), (), data.preprocessing)


def warn_of_skipped(data: "TrainingData") -> tuple["Notice", ...]:
    """Warn of files that could not be read."""
    from modelscope_cli.records.run import Notice

    if not data.unreadable:
        return ()
    total = data.n_training + data.n_held_out
    n, first = len(data.unreadable), min(data.unreadable)
    what = f"{n} of {total} pictures could not be read and were skipped: {data.unreadable[first]}"
    notice = Notice("unreadable_pictures", what + (f" and {n - 1} more" if n > 1 else ""))
    tell((), (notice,))
    return (notice,)


def check_init(request: "TrainRequest", model: "ModelRequest") -> None:
    """Refuse a fresh initialisation of weights that were asked for.

    Raises:
        UsageError: exit code 2.
    """
    if request.init != "default" and (model.checkpoint or model.weights.lower() != "none"):
        given = f"--checkpoint {model.checkpoint}" if model.checkpoint else f"--weights {model.weights}"
        raise UsageError(
            f"'--init {request.init}' would overwrite the weights of '{given}'", "--init default"
        )


def load_for(request: "ModelRequest", n_classes: int | None, *, is_first: bool = True) -> "LoadedModel":
    """Load the model with as many classes as the data have, where it can be told how many.

    Raises:
        CannotRunError: it is no classifier of single pictures (exit 4).
    """
    from modelscope_cli.models.importspec import imported_architecture
    from modelscope_cli.models.load import load_model
    from modelscope_cli.models.request import is_import, parse_model_args

    takes_classes = True
    if is_import(request.model):
        architecture = imported_architecture(
            request.model, parse_model_args(request.model_args), request.seed
        )
        takes_classes = architecture.takes_num_classes
    if n_classes is not None:
        request = replace(request, num_classes=n_classes if takes_classes else None)
    loaded = load_model(request)
    if loaded.family not in ("classification", "custom"):
        kind = loaded.family.replace("_", " ")
        message = f"'{loaded.info.name}' is a model for {kind}: only classifiers are trained here"
        raise CannotRunError(message, "modelscope models resnet")
    if is_first:
        tell(loaded.notes, loaded.warnings)
    # A module that the user's code holds is trained in a copy, so that the next variant finds it as it was.
    return replace(loaded, module=copy.deepcopy(loaded.module)) if is_import(request.model) else loaded


def advance_of(bar: object) -> None:
    """Move a progress bar of `_console.progress` one step on; None is no bar."""
    if bar is not None:
        bar.advance(bar.task_ids[0])  # type: ignore[attr-defined]
