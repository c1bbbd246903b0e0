"""`modelscope predict`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli import interrupts
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.truth import AUTO, FOLDERS, NONE
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.ranks import find_ranks
from modelscope_cli.records.naming import counted
from modelscope_cli.records.predict import PredictRecord
from modelscope_cli.records.refusals import refuse_both
from modelscope_cli.report.numbers import percent
from modelscope_cli.report.sheet import Layout, Sheet
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    BatchOptions,
    Hook,
    Labels,
    ModelArgument,
    ModelOptions,
    OutputKind,
    need_images,
)
from modelscope_cli.shell.output import Destination, emit, is_streamed, row_writer, save_report
from modelscope_cli.shell.output_options import BlocksOut, OutputOptions, Resume
from modelscope_cli.shell.parameters import command


@command
def predict(
    first: ModelArgument = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE", help="Images: files, folders, globs, @list.txt, '-'; or one file of tensors."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="How many classes or boxes to print per image: by default 5, or 1 for several images.",
            show_default=False,
        ),
    ] = None,
    labels: Labels = None,
    scores: Annotated[
        Literal["auto", "softmax", "sigmoid"],
        typer.Option(
            help="softmax: exactly one class per image; the scores sum to 1. sigmoid: several classes or "
            "none, each scored independently. auto: sigmoid if the model or the truth has several, else softmax."
        ),
    ] = "auto",
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            min=0,
            max=1,
            help="With sigmoid, the lowest score at which a class counts as predicted; 0.5 by default.",
        ),
    ] = None,
    doctor: Annotated[
        bool,
        typer.Option(
            "--doctor",
            help="Make the common preprocessing mistakes one at a time, and count the predictions that change.",
        ),
    ] = False,
    truth: Annotated[
        str,
        typer.Option(
            metavar="auto|folders|none|FILE",
            rich_help_panel="Against the truth",
            help="Compare the predictions with the truth. folders: each folder has the name of a class, a "
            "label or an index; auto: folders, if all are named after labels. FILE: lines of image,class or JSON "
            "{image: class}; with several labels image,class|class.",
        ),
    ] = "auto",
    table: Annotated[
        Literal["measures", "classes", "confusions", "calibration", "worst"] | None,
        typer.Option(
            rich_help_panel="Against the truth",
            help="The table that --truth prints (default: worst for auto, else measures).",
            show_default=False,
        ),
    ] = None,
    hook: Hook = None,
    output_kind: OutputKind = "auto",
    out: BlocksOut = None,
    resume: Resume = False,
    *,
    on: ModelOptions,
    data: BatchOptions,
    show: OutputOptions,
) -> None:
    """Print what a model predicts for images, and its accuracy.

    For segmentation, the classes that cover most of the image are printed; for detection, the best boxes; for
    regression, the numbers. Images are processed in batches; rows of tsv and csv are written as they are computed.
    For folders named after classes, the accuracy and the misclassified images are printed. --truth prints metrics,
    or a table of the classes, confusions, calibration or worst images. --doctor prints how many predictions each
    common preprocessing mistake changes. A model for images and texts (CLIP) chooses among --labels.

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
    from modelscope_cli.report.predict.table import first_table, predict_columns, predict_sheet, truth_columns

    where = show.begin(is_shared=True)
    model, files = on.choose(first, images)
    inputs = data.request(files, on.seed)
    need_images(inputs)
    if doctor:
        usual = {"truth": "auto", "scores": "auto", "resume": False}
        given: dict[str, object] = {"table": table, "top": top, "scores": scores, "threshold": threshold}
        given |= {"truth": truth, "out": out, "hook": hook, "resume": resume}
        for name, value in given.items():
            if value != usual.get(name):
                refuse_both("doctor", True, name, value)
        _doctor(model, inputs, labels, where)
        return
    truth = FOLDERS if table is not None and truth == AUTO else truth
    is_given = truth not in (AUTO, NONE)
    where.layout.check(truth_columns()[table or "measures"] if is_given else predict_columns())
    if table is not None and truth == NONE:
        refuse_both("truth", truth, "table", table, "--table compares with the truth")
    if is_given and top is not None:
        refuse_both("truth", truth, "top", top, "--truth prints a table of classes, not of images")

    is_plain = where.layout == Layout()

    def lay_out(record: PredictRecord) -> Sheet:
        return predict_sheet(record, table or (first_table(record) if top is None and is_plain else None))

    is_by_row = is_streamed(where) and not is_given
    record = ms.predict(
        model,
        inputs,
        top=top,
        labels=labels,
        scores=scores,
        threshold=threshold,
        truth=truth,
        hook=hook or (),
        output_kind=output_kind,
        each=row_writer(where, lay_out) if is_by_row else None,
        out=out,
        resume=resume,
        share=True,
        force=show.force,
        progress=PROGRESS,
    )
    if out is not None:
        record = save_report(record, out, has_content=bool(interrupts.resumable))
    if not is_by_row:
        emit(where, lay_out(record), record)
    elif record.truth is not None and record.truth.accuracy is not None:
        PROGRESS.note(
            f"accuracy: {percent(record.truth.accuracy.value)} of {counted(record.truth.images, 'image')}"
        )


def _doctor(model: ModelRequest, inputs: InputRequest, labels: Path | None, where: Destination) -> None:
    """Print what the usual mistakes in preparing images do to the predictions, one row a mistake."""
    from modelscope_cli.report.predict.table import doctor_columns, doctor_sheet

    if find_ranks().world > 1:
        raise UsageError("'torchrun' and '--doctor' cannot be combined", "leave out torchrun")
    where.layout.check(doctor_columns())
    record = ms.doctor(model, inputs, labels=labels, progress=PROGRESS)
    emit(where, doctor_sheet(record), record)
