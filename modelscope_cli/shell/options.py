"""Options that several commands have: single ones by name, and panels as dataclasses that do what they say."""

import glob
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import check_pictures, is_picture
from modelscope_cli.inputs.grammar import files_of
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.naming import LAST_SEED
from modelscope_cli.shell import completion, console
from modelscope_cli.shell.named_model import names_learner, names_model, take_model

_NAME = (
    "A torchvision name (resnet34), timm:NAME, hf:NAME, a checkpoint, module:attr, or path/to/file.py:attr."
)
_FILES = "Images: files, folders, globs, @list.txt, '-'"

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="The model; see `modelscope help model`.",
        autocompletion=completion.name_or_file,
        show_default=False,
    ),
]
NamedArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=_NAME, autocompletion=completion.name_or_file, show_default=False),
]
ImagesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IMAGE",
        help=f"{_FILES}. Or one tensor file (.pt, .npy, .safetensors); without either, the model runs on seeded "
        "noise of its input size.",
    ),
]
ClassesArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DIR",
        help="A folder with one folder per class, or with train and val; by default, ten classes of drawn shapes.",
        show_default=False,
    ),
]
Mode = Annotated[
    Literal["auto", "eval", "train"],
    typer.Option(
        rich_help_panel="Model",
        help="The mode: eval, or train, where batch norm uses the batch and dropout is active. auto: eval, but "
        "train for the loss of a detection model.",
    ),
]
OutputKind = Annotated[
    str,
    typer.Option(
        metavar="KIND[:OUTPUT]",
        rich_help_panel="Model",
        help="How to read the output: auto (from the model, else names, else shapes), classes, "
        "labels (several classes or none), segmentation, depth (one value per pixel), detection or embedding. "
        "KIND:OUTPUT chooses one of several outputs by name or number: auto:1.",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Class names to use instead of those of the weights: a file (one per line, a JSON list, or JSON "
        "{index: label}), or the names themselves: 'cat,dog'.",
    ),
]
Hook = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOOK",
        rich_help_panel="Layers",
        help="Change values inside the model (repeatable); see `modelscope help hooks`: zero@layer3, "
        "pre:add=10@fc. Syntax [KIND:]ACTION[=ARGS]@PATTERN: 'zero[3,7]@conv1', grad:clamp=-1,1@conv, "
        "call=hooks.py:fn@relu. Actions: zero, scale, add, clamp, noise, mean, keep, print, save, nan-to-num, "
        "raise-on-nan, call. Kinds: forward, pre, grad.",
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", rich_help_panel="What is trained", help="Do not train these layers (repeatable)."
    ),
]
TrainOnly = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", rich_help_panel="What is trained", help="Train only these layers (repeatable)."
    ),
]
FailOn = Annotated[
    Literal["warning", "error", "never"] | None,
    typer.Option(help="Exit with 1 at a finding of this severity or worse."),
]


def _model(default: str | bool) -> Any:
    """Return the option for a model; `default` is the one shown."""
    return typer.Option(
        "--model", "-m", metavar="MODEL", help=_NAME, autocompletion=completion.name, show_default=default
    )


Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        "-w",
        metavar="WEIGHTS",
        help="The weights: auto, none (random, seeded), DEFAULT, or a name (IMAGENET1K_V1). auto: pretrained, "
        "from torch's cache or downloaded unless MSCOPE_OFFLINE=1; if neither works, random with a warning, "
        "or an error if the command gives a verdict.",
    ),
]
_Batch = Annotated[
    int | None,
    typer.Option("--batch", "-b", metavar="N", min=1, help="How many images go through the model at once."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions:
    """The model of a training."""

    panel: ClassVar[str] = "Model"
    otherwise: ClassVar[str | None] = "resnet18"  # the model if none is named

    model: Annotated[str | None, _model("resnet18")] = None
    weights: Weights = "none"
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            "-c",
            metavar="FILE",
            help="Load this state dict (.safetensors, .pt, .pth, .bin, .ckpt) into the model.",
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Load this entry of a checkpoint instead of its state dict: state_dict_ema, model.generator.",
        ),
    ] = None
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            help="A checkpoint that does not match exactly is an error unless --no-strict; an unreadable image "
            "among many is an error only with --strict.",
        ),
    ] = None
    model_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An argument for the model's class or factory (repeatable)."),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="DEVICE",
            help="The device: auto (the accelerator, else cpu), any torch device name, or a number.",
        ),
    ] = "auto"
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=LAST_SEED, help="The seed of random weights and noise.")
    ] = 0

    def request(self, named: str) -> ModelRequest:
        """Return the request for a model; its weights are checked by `check_request`."""
        from modelscope_cli.models.weights_file import is_checkpoint_file  # opens files: slow to import

        weights, checkpoint = self.weights, self.checkpoint
        if checkpoint is not None and named == str(checkpoint):  # it is the model
            checkpoint = None
        elif checkpoint is None and is_checkpoint_file(weights):  # as other tools take it
            weights, checkpoint = type(self)().weights, Path(weights)
        return ModelRequest(
            model=named,
            weights=weights,
            checkpoint=checkpoint,
            key=self.key,
            strict=self.strict,
            model_args=tuple(self.model_arg or ()),
            device=self.device,
            seed=self.seed,
            progress=not console.settings.is_quiet,
        )

    def default(self) -> str | None:
        """Return the model if none is named: that of the checkpoint, if any."""
        from modelscope_cli.models.request import is_checkpoint

        named = str(self.checkpoint)
        return named if self.checkpoint is not None and is_checkpoint(named) else self.otherwise

    def learner(self, first: str | None, folder: str | None) -> tuple[ModelRequest, str | None]:
        """Return the model to train, and the folder of images, if any."""
        words = [] if folder is None else [folder]
        named, folders = take_model(first, words, self.model, default=self.default(), is_model=names_learner)
        if len(folders) > 1:
            message = f"one folder of images at a time, not '{folders[0]}' and '{folders[1]}'"
            raise UsageError(message, f"leave out {shlex.quote(folders[1])}")
        return check_request(self.request(named)), next(iter(folders), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(LearnerOptions):
    """The model of a command, and how it is run."""

    otherwise: ClassVar[str | None] = "resnet34"

    model: Annotated[str | None, _model("resnet34")] = None
    weights: Weights = "auto"
    num_classes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many classes the head has.")
    ] = None
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="The dtype to run in: float32, bfloat16 or float16.")
    ] = "float32"

    def request(self, named: str) -> ModelRequest:
        # The plain call of `super` needs a cell that a class with slots does not have.
        request = LearnerOptions.request(self, named)
        return replace(request, num_classes=self.num_classes, dtype=self.dtype)

    def choose(
        self,
        first: str | None,
        images: Sequence[str] | None,
        *,
        is_model: Callable[[str], bool] = names_model,
    ) -> tuple[ModelRequest, list[str]]:
        """Return the model, checked without importing anything heavy, and the images.

        Args:
            first: the first argument of the command line, and `images` the others.
            is_model: tells a model from an image.
        """
        named, files = take_model(first, images, self.model, default=self.default(), is_model=is_model)
        return check_request(self.request(named)), files


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModelOptions(ModelOptions):
    """The model of a command that has no default."""

    otherwise: ClassVar[str | None] = None

    model: Annotated[str | None, _model(False)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The data of a training, how it trains, and what is changed in the model before."""

    panel: ClassVar[str] = "Training"

    loaders: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            rich_help_panel="Data",
            help="Train on a DataLoader of your own. NAME may also be a function that returns one, or (train, "
            "validation).",
        ),
    ] = None
    pictures: Annotated[
        int, typer.Option(metavar="N", min=20, rich_help_panel="Data", help="How many shapes to draw.")
    ] = 2000
    size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=8,
            max=4096,
            rich_help_panel="Data",
            help="Width and height of each image, in pixels.",
        ),
    ] = 64
    batch: Annotated[
        int,
        typer.Option("--batch", "-b", metavar="N", min=1, help="Images per step; not used with --loaders."),
    ] = 32
    optimizer: Annotated[
        Literal["sgd", "momentum", "nesterov", "adamw"],
        typer.Option(metavar="NAME", help="The optimizer: sgd, momentum, nesterov (both 0.9), or adamw."),
    ] = "momentum"
    freeze: Freeze = None
    train_only: TrainOnly = None

    def keywords(self) -> dict[str, Any]:
        """Return these options as keywords of `train` and `lrfind`."""
        lists = {"freeze": self.freeze or (), "train_only": self.train_only or ()}
        return {one.name: getattr(self, one.name) for one in fields(self)} | lists


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The preprocessing of images."""

    panel: ClassVar[str] = "Input"

    size: Annotated[
        str | None, typer.Option(metavar="H[,W]", help="Resize and crop to this size instead of the model's.")
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B", help="The mean to normalise with; --mean 0 --std 1 keeps pixels at 0..1."
        ),
    ] = None
    std: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="The standard deviation to normalise with.")
    ] = None

    def request(self, images: Sequence[str], seed: int) -> InputRequest:
        """Return the request for the input; its files exist.

        Args:
            seed: of the noise that replaces images.
        """
        check_pictures(file for file in images if file != "-")
        return InputRequest(files=tuple(images), size=self.size, mean=self.mean, std=self.std, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(ImageOptions):
    """The input of a command that needs images."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEC",
            help="An input by name (repeatable): an image, a tensor file, or the shape of noise, as in "
            "pixel_values=photo.jpg or input_ids=int64:1,16. Images with the same name are stacked.",
        ),
    ] = None
    batch: _Batch = None
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="How many processes decode images; by default, one fewer than there are cores, at most 4.",
        ),
    ] = None

    def request(self, images: Sequence[str], seed: int) -> InputRequest:
        named = tuple(self.input or ())
        check_pictures(file for file in files_of(named) if file != "-")
        request = ImageOptions.request(self, images, seed)
        return replace(request, named=named, batch=self.batch, workers=self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions(BatchOptions):
    """The input of a command: images, tensors, or noise."""

    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHAPE",
            help="The shape of seeded noise to use instead of images: 3,224,224, 8,3,224,224 or int64:1,128 "
            "(repeatable for several inputs).",
        ),
    ] = None

    def request(self, images: Sequence[str], seed: int) -> InputRequest:
        request = BatchOptions.request(self, images, seed)
        return replace(request, shapes=tuple(self.input_shape or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOptions:
    """Which layers."""

    panel: ClassVar[str] = "Layers"

    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="PATTERN",
            help="Layers to select (repeatable); see `modelscope help layers`: conv, 'layer1.*', relu@-1. Also "
            "layer1.0.conv1, type:Conv2d, 're:^layer[12]', conv@16, relu@1..4.",
            autocompletion=completion.layers,
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave out these layers.", autocompletion=completion.layers),
    ] = None


def need_images(inputs: InputRequest) -> None:
    """Refuse a command line without images, for a command that requires them."""
    if not inputs.files and not inputs.named:
        near = (path for depth in ("*", "*/*", "*/*/*") for path in islice(glob.iglob(depth), 1000))
        line = ["modelscope", *console.settings.argv, next(filter(is_picture, near), "IMAGE")]
        raise UsageError("missing argument 'IMAGE'", shlex.join(line))
