"""Every shared option, declared once. Commands put these, or the groups of them, in their signature."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.hooks.spec import ACTIONS, KINDS
from modelscope_cli.records.bounds import LAST_SEED
from modelscope_cli.shell import completion
from modelscope_cli.shell.numbers import whole

_MODEL, _INPUT, _LAYERS, _OUTPUT = "Model", "Input", "Layers", "Output"


class Mode(StrEnum):
    """In which mode a model runs."""

    auto = "auto"
    eval = "eval"
    train = "train"


WeightsOpt = Annotated[
    str,
    typer.Option(
        "--weights",
        "-w",
        metavar="WEIGHTS",
        help="Which weights: auto (pretrained: from torch's cache, else downloaded, else random with a warning), "
        "none "
        "(random, seeded), DEFAULT, or a name such as IMAGENET1K_V1.",
        autocompletion=completion.one_of("auto", "none", "DEFAULT", "IMAGENET1K_V1"),
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
        help="Load this entry of a checkpoint instead of its state dict: state_dict_ema, model.generator.",
        rich_help_panel=_MODEL,
    ),
]
StrictOpt = Annotated[
    bool | None,
    typer.Option(
        "--strict/--no-strict",
        help="A checkpoint that does not fit exactly is an error unless --no-strict; of many images, one that "
        "cannot be read is an error only with --strict.",
        rich_help_panel=_MODEL,
    ),
]
NumClassesOpt = Annotated[
    int | None,
    whole("--num-classes", metavar="N", help="How many classes the head has.", rich_help_panel=_MODEL),
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
        help="The device: auto (the first of cuda, mps, xpu and cpu that is there), a name, or a CUDA number.",
        autocompletion=completion.one_of("auto", "cpu", "cuda", "mps", "xpu"),
        rich_help_panel=_MODEL,
    ),
]
DtypeOpt = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="The dtype to run in: float32, bfloat16 or float16.",
        autocompletion=completion.one_of("float32", "bfloat16", "float16"),
        rich_help_panel=_MODEL,
    ),
]
SeedOpt = Annotated[
    int,
    whole(
        "--seed",
        most=LAST_SEED,
        min=0,
        metavar="N",
        help="The seed of random weights and noise.",
        rich_help_panel=_MODEL,
    ),
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
        help="The mode: eval, or train, in which batch norm uses the batch and dropout is active. auto: eval, but "
        "train for "
        "the loss of a detection model.",
        rich_help_panel=_MODEL,
    ),
]

ImagesArg = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IMAGE",
        help="Images: files, folders, globs, @list.txt, .tar shards, '-'. One tensor file (.pt, .npy, "
        ".safetensors) replaces them; without images the model runs on seeded noise of its own size.",
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
NamedInputsOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=SPEC",
        help="An input that the forward takes by name, or in one dict (repeatable): an image, a file of one "
        "tensor, or "
        "a shape of noise: pixel_values=photo.jpg, input_ids=int64:1,16. Images of one name are stacked.",
        rich_help_panel=_INPUT,
    ),
]
SizeOpt = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="H[,W]", help="Resize and crop to this size instead.", rich_help_panel=_INPUT
    ),
]
MeanOpt = Annotated[
    str | None,
    typer.Option("--mean", metavar="R,G,B", help="The mean to normalise with.", rich_help_panel=_INPUT),
]
StdOpt = Annotated[
    str | None,
    typer.Option(
        "--std", metavar="R,G,B", help="The standard deviation to normalise with.", rich_help_panel=_INPUT
    ),
]
NormalizeOpt = Annotated[
    bool, typer.Option("--normalize/--no-normalize", help="Whether to normalise.", rich_help_panel=_INPUT)
]
BatchOpt = Annotated[
    int | None,
    whole(
        "--batch",
        "-b",
        metavar="N",
        help="How many images go through the model at once.",
        rich_help_panel=_INPUT,
    ),
]
WorkersOpt = Annotated[
    int | None,
    whole(
        "--workers",
        min=0,
        metavar="N",
        help="How many processes decode images beside the model; by default one less than there are cores, at "
        "most 4.",
        rich_help_panel=_INPUT,
    ),
]

LayersOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        "-l",
        metavar="PATTERN",
        help="Which layers, as `modelscope help layers` explains (repeatable): conv, 'layer1.*', relu@-1. "
        "Also layer1.0.conv1, type:Conv2d, 're:^layer[12]', conv@16, relu@1..4.",
        autocompletion=completion.layers,
        rich_help_panel=_LAYERS,
    ),
]
ExcludeOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN",
        help="Leave out these layers.",
        autocompletion=completion.layers,
        rich_help_panel=_LAYERS,
    ),
]
SaveOpt = Annotated[
    bool,
    typer.Option("--save/--no-save", help="Write the report, or only print.", rich_help_panel=_OUTPUT),
]
TARGET_HELP = (
    "Which number of the output to follow: a class index or label, predicted, box:N, mask:CLASS, "
    "logit:PATH[I,J], or similar:FILE."
)
HookOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--hook",
        metavar="HOOK",
        help="Change values inside the model, as `modelscope help hooks` explains (repeatable): zero@layer3, "
        "pre:add=10@fc. "
        "Written [KIND:]ACTION[=ARGS]@PATTERN: 'zero[3,7]@conv1', grad:clamp=-1,1@conv, call=hooks.py:fn@relu. "
        f"The actions are {', '.join(ACTIONS)}; the kinds are {', '.join(KINDS)}.",
        autocompletion=completion.hooks,
        rich_help_panel=_LAYERS,
    ),
]
ColumnsOpt = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,...",
        help="Only these columns, in this order.",
        autocompletion=completion.columns,
        rich_help_panel=_OUTPUT,
    ),
]
SortOpt = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        autocompletion=completion.columns,
        help="Sort the rows, the largest number first; COLUMN:asc reverses that. JSON stays in order.",
        rich_help_panel=_OUTPUT,
    ),
]
TopOpt = Annotated[
    int | None,
    whole(
        "--top",
        min=1,
        metavar="N",
        help="Show only the first N rows. JSON has all.",
        rich_help_panel=_OUTPUT,
    ),
]
AllOpt = Annotated[
    bool,
    typer.Option("--all", help="Show every row, even of a long table.", rich_help_panel=_OUTPUT),
]
FormatOpt = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="auto (table on a terminal, tsv in a pipe), table, tsv, csv, json, markdown.",
        autocompletion=completion.one_of("auto", "table", "tsv", "csv", "json", "markdown"),
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
HtmlOpt = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also save the result as a page for the browser: one file that needs nothing else.",
        rich_help_panel=_OUTPUT,
    ),
]
OutDirOpt = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder for the report and the figures.",
        show_default="runs/COMMAND-MODEL",
        rich_help_panel=_OUTPUT,
    ),
]
BlocksDirOpt = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder for the report and, over several batches of image files, every finished block, for --resume "
        "and modelscope verify. Blocks are computed with one thread; torchrun uses all cores.",
        rich_help_panel=_OUTPUT,
    ),
]
ResumeOpt = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue with the blocks in --out, with any number of processes; the result has the same bits as "
        "without a break.",
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
VerboseOpt = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show in full how images are prepared.", rich_help_panel=_OUTPUT),
]
DebugOpt = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)
]
