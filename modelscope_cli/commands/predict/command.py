"""`modelscope predict`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.named_model import FirstArg, need_images
from modelscope_cli.shell.numbers import real, whole
from modelscope_cli.shell.output import emit, is_streamed, row_writer

if TYPE_CHECKING:
    from modelscope_cli.records.predict import PredictRecord
    from modelscope_cli.report.sheet import Sheet


class Scores(StrEnum):
    """What turns logits into scores."""

    auto = "auto"
    softmax = "softmax"
    sigmoid = "sigmoid"


@spread
def predict(
    first: FirstArg = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE",
            help="Image files, folders, globs, '-' for standard input, or one tensor file (.pt, .npy, "
            ".safetensors).",
        ),
    ] = None,
    top: Annotated[int, whole("--top", min=1, metavar="K", help="How many classes or boxes an image.")] = 5,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="Names of the classes, instead of those of the weights: one a line, a JSON list, or JSON "
            "{index: label}.",
        ),
    ] = None,
    scores: Annotated[
        Scores,
        typer.Option(
            "--scores",
            help="softmax: exactly one class an image, the scores add up to 1. sigmoid: several classes or "
            "none, each scored on its own. auto: sigmoid where the model states it, else softmax.",
        ),
    ] = Scores.auto,
    threshold: Annotated[
        float | None,
        real(
            "--threshold",
            min=0.0,
            max=1.0,
            metavar="P",
            help="With sigmoid: a class is on from this score, else from 0.5.",
        ),
    ] = None,
    temperature: Annotated[
        float,
        real("--temperature", metavar="T", help="Divide the logits by this; above 1 is less sure."),
    ] = 1.0,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    prepared: groups.ImageOptions = groups.IMAGES,
    input: opt.NamedInputsOpt = None,
    batch: opt.BatchOpt = None,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Print what a model says about images: the likeliest classes of each, one row a class.

    Of a segmentation model these are the classes that cover most of the image, of a detection model its best
    boxes; of several heads each has its rows. Any number of images goes through in batches; tsv and csv are written
    row by row as the predictions come.

    Examples:

      modelscope predict samples/star.png -m squeezenet1_1 -c samples/shapes_squeezenet1_1.safetensors

      modelscope predict 'photos/*.jpg' --top 1 --columns image,label,score

      modelscope predict samples/composition.jpg -m samples/tiny_resnet.py:TinyResNet --scores sigmoid
    """
    from modelscope_cli.analysis.predictions.request import check_scoring
    from modelscope_cli.commands.predict.table import predict_columns, predict_sheet
    from modelscope_cli.report.sheet import choose_columns

    where = output.begin()
    named, images = model.take("predict", first, images)
    need_images("predict", images or input or ())
    asked = model.request(named), prepared.request(images, model.seed, batch=batch, named=input)
    choose_columns(predict_columns(), output.columns)
    check_scoring(scores, threshold, temperature)

    def lay_out(record: "PredictRecord") -> "Sheet":
        return predict_sheet(record, output.columns)

    record = ms.predict(
        *asked,
        top=top,
        labels=labels,
        scores=scores,
        threshold=threshold,
        temperature=temperature,
        hook=hook or (),
        each=row_writer(where, lay_out) if is_streamed(where) else None,
        progress=PROGRESS,
    )
    if not is_streamed(where):
        emit(where, lay_out(record), record.to_dict())
