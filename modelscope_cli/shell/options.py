"""Every shared option, declared once. Commands put these in their signature with a default."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelscope_cli.bounds import LAST_SEED
from modelscope_cli.models.names import model_names
from modelscope_cli.records.run import invocation, invoked_as
from modelscope_cli.shell import console
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import Destination, destination

if TYPE_CHECKING:
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest

_MODEL, _INPUT, _LAYERS, _OUTPUT = "Model", "Input", "Layers", "Output"


class Mode(StrEnum):
    """In which mode a model runs."""

    auto = "auto"
    eval = "eval"
    train = "train"


def _complete_model(incomplete: str) -> list[str]:
    return [name for name in model_names() if name.startswith(incomplete)]


def _complete_weights(incomplete: str) -> list[str]:
    return [name for name in ("auto", "none", "DEFAULT", "IMAGENET1K_V1") if name.startswith(incomplete)]


def _complete_device(incomplete: str) -> list[str]:
    return [name for name in ("auto", "cpu", "cuda", "mps", "xpu") if name.startswith(incomplete)]


ModelArg = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A torchvision name (resnet34), a checkpoint of one, package.module:attr, or path/to/file.py:attr.",
        autocompletion=_complete_model,
    ),
]
ModelOpt = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="A torchvision name (resnet34), a checkpoint of one, package.module:attr, or path/to/file.py:attr.",
        autocompletion=_complete_model,
        rich_help_panel=_MODEL,
    ),
]
WeightsOpt = Annotated[
    str,
    typer.Option(
        "--weights",
        "-w",
        metavar="WEIGHTS",
        help="auto (pretrained: from torch's cache, else downloaded, else random with a warning), none "
        "(random, seeded), DEFAULT, or a name such as IMAGENET1K_V1.",
        autocompletion=_complete_weights,
        rich_help_panel=_MODEL,
    ),
]
CheckpointOpt = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="FILE",
        help="Load this state dict (.safetensors, .pt, .pth, .bin, .ckpt) into the model.",
        rich_help_panel=_MODEL,
    ),
]
KeyOpt = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="NAME",
        help="Take this out of a checkpoint instead of its state dict: state_dict_ema, model.generator.",
        rich_help_panel=_MODEL,
    ),
]
StrictOpt = Annotated[
    bool,
    typer.Option(
        "--strict/--no-strict",
        help="Whether a checkpoint that does not fit exactly is an error or a warning.",
        rich_help_panel=_MODEL,
    ),
]
NumClassesOpt = Annotated[
    int | None,
    whole("--num-classes", metavar="N", help="Classes of the head.", rich_help_panel=_MODEL),
]
ModelArgsOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--model-arg",
        metavar="KEY=VALUE",
        help="An argument for the model's class or factory (repeatable).",
        rich_help_panel=_MODEL,
    ),
]
DeviceOpt = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="DEVICE",
        help="auto (cuda, mps, xpu, cpu: the first that is there), a name, or a CUDA number.",
        autocompletion=_complete_device,
        rich_help_panel=_MODEL,
    ),
]
DtypeOpt = Annotated[
    str,
    typer.Option("--dtype", metavar="DTYPE", help="float32, bfloat16 or float16.", rich_help_panel=_MODEL),
]
SeedOpt = Annotated[
    int,
    whole("--seed", most=LAST_SEED, min=0, help="Seed of random weights and noise.", rich_help_panel=_MODEL),
]
OfflineOpt = Annotated[
    bool,
    typer.Option(
        "--offline", envvar="MSCOPE_OFFLINE", help="Never touch the network.", rich_help_panel=_MODEL
    ),
]
ModeOpt = Annotated[
    Mode,
    typer.Option(
        "--mode",
        help="eval; or train, where batch norm uses the batch and dropout drops. auto: eval, but train for "
        "the loss of a detection model.",
        rich_help_panel=_MODEL,
    ),
]

ImagesArg = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[IMAGE]...",
        help="Image files, folders, globs, '-' for standard input, or one tensor file (.pt, .npy, "
        ".safetensors). Nothing: seeded noise of the model's own size.",
    ),
]
InputShapeOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="SHAPE",
        help="Seeded noise instead of images: 1,3,224,224 or int64:1,128 (repeatable for several inputs).",
        rich_help_panel=_INPUT,
    ),
]
SizeOpt = Annotated[
    str | None,
    typer.Option("--size", metavar="H[,W]", help="Resize and crop to this instead.", rich_help_panel=_INPUT),
]
MeanOpt = Annotated[
    str | None, typer.Option("--mean", metavar="R,G,B", help="Normalise by this.", rich_help_panel=_INPUT)
]
StdOpt = Annotated[
    str | None, typer.Option("--std", metavar="R,G,B", help="Normalise by this.", rich_help_panel=_INPUT)
]
NormalizeOpt = Annotated[
    bool, typer.Option("--normalize/--no-normalize", help="Whether to normalise.", rich_help_panel=_INPUT)
]
BatchOpt = Annotated[
    int | None,
    whole("--batch", "-b", metavar="N", help="Images in one forward.", rich_help_panel=_INPUT),
]

LayersOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        "-l",
        metavar="PATTERN",
        help="Layers to look at (repeatable): conv, layer1.0.conv1, 'layer1.*', type:Conv2d, "
        "'re:^layer[12]', conv@16, relu@-1, relu@1..4.",
        rich_help_panel=_LAYERS,
    ),
]
ExcludeOpt = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PATTERN", help="Take layers away again.", rich_help_panel=_LAYERS),
]
HookOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--hook",
        metavar="HOOK",
        help="Change what flows (repeatable, in order): ACTION=ARGS@PATTERN, or KIND:ACTION... "
        "zero@layer3, 'zero[3,7]@conv1', pre:add=10@fc, grad:clamp=-1,1@conv, call=hooks.py:fn@relu. "
        "ACTION: zero, scale, add, clamp, noise, mean, keep, shuffle, print, save, nan-to-num, raise-on-nan, call. "
        "KIND: forward, pre, grad, param-grad, full-backward.",
        rich_help_panel=_LAYERS,
    ),
]
ColumnsOpt = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="A,B,...", help="Only these columns, in this order.", rich_help_panel=_OUTPUT
    ),
]
FormatOpt = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="auto (table on a terminal, tsv in a pipe), table, tsv, csv, json, markdown.",
        rich_help_panel=_OUTPUT,
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Short for --format json.", rich_help_panel=_OUTPUT)]
OutputOpt = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to a file; the suffix decides the format (.txt .tsv .csv .json .md).",
        rich_help_panel=_OUTPUT,
    ),
]
OutDirOpt = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder for the report and the pictures.",
        show_default="runs/COMMAND-MODEL",
        rich_help_panel=_OUTPUT,
    ),
]
ForceOpt = Annotated[
    bool,
    typer.Option(
        "--force", help="Overwrite files, write into a folder that is not empty.", rich_help_panel=_OUTPUT
    ),
]
QuietOpt = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No notes and no progress on stderr.", rich_help_panel=_OUTPUT),
]
DebugOpt = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model of a command that runs one."""

    model: ModelOpt = "resnet34"
    weights: WeightsOpt = "auto"
    checkpoint: CheckpointOpt = None
    key: KeyOpt = None
    strict: StrictOpt = True
    num_classes: NumClassesOpt = None
    model_arg: ModelArgsOpt = None
    device: DeviceOpt = "auto"
    dtype: DtypeOpt = "float32"
    seed: SeedOpt = 0
    offline: OfflineOpt = False

    def request(self) -> "ModelRequest":
        """Return what was asked for, checked as far as that goes without importing anything heavy.

        Raises:
            UsageError, CannotRunError: what is wrong with a name, or missing as a file (exit 2, 4).
        """
        from modelscope_cli.models.request import check_request

        request = self.typed()
        check_request(request)
        return request

    def typed(self) -> "ModelRequest":
        """Return what was asked for as it was typed."""
        from modelscope_cli.models.request import ModelRequest

        return ModelRequest(
            model=self.model,
            weights=self.weights,
            checkpoint=self.checkpoint,
            key=self.key,
            strict=self.strict,
            num_classes=self.num_classes,
            model_args=tuple(self.model_arg or ()),
            device=self.device,
            dtype=self.dtype,
            seed=self.seed,
            offline=self.offline,
            progress=not console.settings.is_quiet,
        )


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How images are prepared for a model."""

    size: SizeOpt = None
    mean: MeanOpt = None
    std: StdOpt = None
    normalize: NormalizeOpt = True

    def request(
        self,
        images: list[str] | None,
        seed: int,
        input_shape: list[str] | None = None,
        batch: int | None = None,
    ) -> "InputRequest":
        """Return what was asked for; the files are there.

        Raises:
            UsageError, CannotRunError: a glob that matches nothing, a file that is missing (exit 2, 4).
        """
        from modelscope_cli.inputs.files import find_pictures
        from modelscope_cli.inputs.request import InputRequest

        find_pictures(file for file in images or () if file != "-")
        return InputRequest(
            files=tuple(images or ()),
            shapes=tuple(input_shape or ()),
            size=self.size,
            mean=self.mean,
            std=self.std,
            normalize=self.normalize,
            batch=batch,
            seed=seed,
        )


@dataclass(frozen=True, slots=True)
class InputOptions:
    """What a model is run on, beside the images themselves."""

    input_shape: InputShapeOpt = None
    size: SizeOpt = None
    mean: MeanOpt = None
    std: StdOpt = None
    normalize: NormalizeOpt = True
    batch: BatchOpt = None

    def request(self, images: list[str] | None, seed: int) -> "InputRequest":
        """Return what was asked for; see `ImageOptions.request`."""
        prepared = ImageOptions(self.size, self.mean, self.std, self.normalize)
        return prepared.request(images, seed, self.input_shape, self.batch)


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Which layers are looked at."""

    layer: LayersOpt = None
    exclude: ExcludeOpt = None


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """The folder of a command that writes pictures."""

    out: OutDirOpt = None

    def choose(self, command: str, model: str) -> Path:
        """Return the folder that was asked for, else one of the command's own that is free.

        Raises:
            UsageError, CannotRunError: it is not empty and not forced, or cannot be written to (exit 2, 4).
        """
        from modelscope_cli.report.folder import OutputFolder, free_folder

        folder = self.out or free_folder(command, model)
        OutputFolder(folder, invocation().is_forced).check()
        return folder


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a result is shown, and how much is said on the way."""

    force: ForceOpt = False
    columns: ColumnsOpt = None
    format: FormatOpt = "auto"
    json: JsonOpt = False
    output: OutputOpt = None
    quiet: QuietOpt = False
    debug: DebugOpt = False

    def begin(self, more: tuple[str, ...] = ()) -> Destination:
        """Remember how much to say and what may be overwritten; decide where the result goes. Comes first."""
        console.settings.is_quiet = self.quiet
        console.settings.is_debug = self.debug
        invoked_as(console.settings.argv, console.settings.started, self.force)
        return destination(self.format, self.json, self.output, more)


MODEL, INPUT, IMAGES, LAYERS, FOLDER, OUTPUT = (
    ModelOptions(),
    InputOptions(),
    ImageOptions(),
    LayerOptions(),
    FolderOptions(),
    OutputOptions(),
)
