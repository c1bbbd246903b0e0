"""`modelscope summary`."""

from typing import TYPE_CHECKING, Any, cast

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.records.progress import Progress
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.named_model import names_model
from modelscope_cli.shell.output import emit

if TYPE_CHECKING:
    from modelscope_cli.records.summary import SummaryRecord


_OPTIONS = ("depth", "freeze", "layer", "exclude", "train", "optimizer", "amp", "fit")

PLACE = 11  # in `modelscope --help`


@command
def summary(call: CommandCall) -> None:
    """Print the layers of a model with their shapes, parameters and cost.

    Needs no weights and almost no memory: the model is built and run without data. Shapes and costs are
    those of one forward at the model's own input size; --input-shape and --batch change it. The summary of a
    torchvision model is cached, for the same versions and options. The columns time, backward, zero, gradient and
    field, the receptive field, are measured on request: the model then runs on real values, by default with random
    weights (--weights).

    With --train one training step runs as well, also without data. The column saved is what autograd keeps for a
    layer; the facts below the table are how much memory the step needs, and when. --fit finds the largest batch.

    Examples:

      modelscope summary resnet34

      modelscope summary vit_b_16 --depth 3 --batch 8

      modelscope summary demo/tiny_resnet.py:TinyResNet --input-shape 1,3,96,96

      modelscope summary resnet18 --columns name,time,backward --sort time

      modelscope summary resnet18 --graph resnet18.svg --color params

      modelscope summary resnet50 --train --optimizer momentum --fit 24GB
    """
    from modelscope_cli.report.summary.table import measured_for, summary_sheet

    where = call.begin()
    # The first word is the model, unless --model names one.
    request = call.subject(is_model=names_model if call["model"] else lambda _: True)
    graph, color = call["graph"], call["color"]
    if graph is not None or color is not None:
        from modelscope_cli.report.summary.graph import check_graph, save

        check_graph(graph, color)
    measure = measured_for(where.view, color)
    options = {**call.keywords(*_OPTIONS), "flow": bool(graph or where.html)}
    record, raised = _summary(request, options, measure)
    if graph is not None:
        save(record, graph, color)
        PROGRESS.note(f"wrote {graph}")
    emit(where, summary_sheet(record, measure), record)
    if raised is not None:  # the layers up to the failing one are shown
        raise raised


def _summary(
    request: Any, options: dict[str, Any], measure: tuple[str, ...]
) -> tuple["SummaryRecord", ModelscopeError | None]:
    """Return a cached summary, else a new one, and the exception of its forward, if any."""
    from modelscope_cli.analysis.summary.cache import Told, kept_for

    cache_file = kept_for(*request, **options) if not measure else None
    cached = cache_file.read() if cache_file is not None else None
    if cached is not None:
        for note in (*cached[1], "cached result"):
            PROGRESS.note(note)
        return cached[0], None
    messages = Told(PROGRESS)
    try:
        record = ms.summary(*request, **options, measure=measure, progress=cast(Progress, messages))
    except ModelscopeError as error:
        if error.record is None:
            raise
        return error.record, error
    if cache_file is not None:
        cache_file.write(record, messages.notes)
    return record, None
