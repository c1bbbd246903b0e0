"""`modelscope predict`."""

from typing import TYPE_CHECKING

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.ranks import find_ranks
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.output import Destination, emit, is_streamed, row_writer, save

if TYPE_CHECKING:
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.records.predict import PredictRecord
    from modelscope_cli.report.sheet import Sheet

PLACE = 14  # in `modelscope --help`


@command
def predict(call: CommandCall) -> None:
    """Print what a model predicts for images: the most likely classes of each.

    For a segmentation model these are the classes that cover most of the image, for a detection model its best
    boxes; with several heads each has its rows. Images are predicted in batches; tsv and csv are written row by
    row. With --truth, the metrics are printed instead: accuracy, classes, confusions, calibration, the worst
    images. With --doctor, one row for each usual preprocessing mistake, with the number of predictions that it
    changes.

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
    from modelscope_cli.records.reading import RUN
    from modelscope_cli.report.predict.table import predict_columns, predict_sheet, truth_columns

    where = call.begin(is_shared=True)
    model, inputs = call.subject()
    call.need_images(inputs)
    if call["doctor"]:
        _doctor(call, model, inputs, where)
        return
    table = call["table"]
    where.view.check(truth_columns(table) if call["truth"] else predict_columns())
    check_scoring(call["scores"], call["threshold"])

    def lay_out(record: "PredictRecord") -> "Sheet":
        return predict_sheet(record, table)

    is_by_row = is_streamed(where) and call["truth"] is None
    each = row_writer(where, lay_out) if is_by_row else None
    record = ms.predict(model, inputs, **call.keywords(), each=each)
    if (out := call["out"]) is not None:
        record = save(record, out, has_content=(out / RUN).exists())
    if not is_by_row:
        emit(where, lay_out(record), record)


def _doctor(call: CommandCall, model: "ModelRequest", inputs: "InputRequest", where: Destination) -> None:
    """Print what the usual mistakes in preparing images do to the predictions, one row a mistake."""
    from modelscope_cli.report.predict.table import doctor_columns, doctor_sheet

    if find_ranks().world > 1:
        raise UsageError("'torchrun' and '--doctor' exclude each other", "leave out torchrun")
    where.view.check(doctor_columns())
    record = ms.doctor(model, inputs, labels=call["labels"], progress=PROGRESS)
    emit(where, doctor_sheet(record), record)
