"""`modelscope predict`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

import modelscope_cli as ms
from modelscope_cli.commands.predict import options as own
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg, need_images
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import Destination, emit, is_streamed, row_writer

if TYPE_CHECKING:
    from pathlib import Path

    from modelscope_cli.records.predict import PredictRecord
    from modelscope_cli.report.sheet import Sheet


@spread
def predict(
    first: FirstArg = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE",
            help="Images: files, folders, globs, @list.txt, .tar shards, '-'; or one file of tensors.",
        ),
    ] = None,
    top: Annotated[
        int, whole("--top", min=1, metavar="K", help="How many classes or boxes to print for each image.")
    ] = own.TOP,
    given: own.ScoreOptions = own.SCORES,
    doctor: own.DoctorOpt = False,
    against: own.TruthOptions = own.TRUTH,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    prepared: groups.ImageOptions = groups.IMAGES,
    input: opt.NamedInputsOpt = None,
    batch: opt.BatchOpt = None,
    workers: opt.WorkersOpt = None,
    blocks: groups.BlockOptions = groups.BLOCKS,
    output: own.PredictOutputOptions = own.OUTPUT,
) -> None:
    """Print what a model predicts for images: the most likely classes of each.

    For a segmentation model these are the classes that cover most of the image, for a detection model its best
    boxes; with several heads each has its rows. Any number of images goes through in batches; tsv and csv are
    written row by row as the predictions come. With --truth, how accurate the predictions are instead: accuracy,
    classes, confusions, calibration, the worst images. With --doctor, one row for each mistake: what preparing the
    images in the usual wrong ways does to the predictions.

    Examples:

      modelscope predict demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope predict demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --top 1 --columns image,label,score

      modelscope predict demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors --truth
        folders --table worst --out judged

      modelscope predict demo/tiny_resnet.py:TinyResNet demo/harbour.jpg -c demo/tiny_resnet.safetensors
        --scores sigmoid

      modelscope predict demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --doctor
    """
    from modelscope_cli.analysis.predictions.request import check_scoring
    from modelscope_cli.commands.predict.table import predict_columns, predict_sheet, truth_columns

    where = output.begin(is_shared=True)
    named, images = model.take("predict", first, images)
    need_images("predict", images or input or ())
    given_images = prepared.request(images, model.seed, batch=batch, named=input, workers=workers)
    asked = model.request(named), given_images
    if doctor:
        own.refuse_idle(given, against, blocks, top, hook)
        _doctor(asked, given.labels, where)
        return
    against.check(top)
    columns = predict_columns() if against.truth is None else truth_columns(against.table)
    where.view.check(columns)
    check_scoring(given.scores, given.threshold, given.temperature)

    def lay_out(record: "PredictRecord") -> "Sheet":
        return predict_sheet(record, against.table)

    is_by_row = is_streamed(where) and against.truth is None
    record = ms.predict(
        *asked,
        **said(given, blocks),
        top=top,
        truth=against.truth,
        hook=hook or (),
        each=row_writer(where, lay_out) if is_by_row else None,
        share=True,
        force=output.force,
        progress=PROGRESS,
    )
    if not is_by_row:
        emit(where, lay_out(record), record)
    elif record.certificate is not None:
        PROGRESS.note(f"certificate: {record.certificate.words}")


def _doctor(asked: Any, labels: "Path | None", where: Destination) -> None:
    """Print what the usual mistakes in preparing images do to the predictions, one row a mistake."""
    from modelscope_cli.commands.predict.table import doctor_columns, doctor_sheet

    where.view.check(doctor_columns())
    record = ms.doctor(*asked, labels=labels, progress=PROGRESS)
    emit(where, doctor_sheet(record), record)
