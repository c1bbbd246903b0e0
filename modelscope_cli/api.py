"""The same engine from a notebook: `summary`."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from modelscope_cli.analysis.summary.summarize import summarize, summarize_module
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo, versions
from modelscope_cli.records.summary import SummaryRecord


def summary(
    model: str | nn.Module,
    *inputs: Tensor,
    input_shape: Sequence[int] | None = None,
    batch: int | None = None,
) -> SummaryRecord:
    """Return the layers of a model with their shapes, parameters and cost.

    Args:
        model: a name as on the command line, built without data; or a module of yours, run where it is.
        inputs: what to call a module with; left out, noise of `input_shape` or of a size it seems made for.

    Raises:
        UsageError, CannotRunError: a name that means nothing; a forward that raised.
    """
    shapes = (",".join(map(str, input_shape)),) if input_shape is not None else ()
    given = InputRequest(shapes=shapes, batch=batch)
    if isinstance(model, str):
        summarized = summarize(ModelRequest(model=model, weights="none"), given)
    else:
        summarized = summarize_module(_as_loaded(model), given, inputs)
    if summarized.error is not None:
        raise summarized.error
    run = _run("summary", summarized.loaded)
    return summarized.record(replace(run, input=summarized.given, warnings=summarized.warnings))


def _run(command: str, loaded: LoadedModel) -> Run:
    return Run(
        command=command,
        argv=(),
        model=loaded.info,
        input=None,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        seed=0,
        versions=versions(),
    )


def _as_loaded(module: nn.Module) -> LoadedModel:
    """Describe a module that was handed over, where it is and as it is."""
    import torch

    tensor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    kind = type(module).__name__
    return LoadedModel(
        module=module,
        info=ModelInfo("object", kind, kind, WeightsInfo("object", "object", "handed over")),
        device=tensor.device if tensor is not None else torch.device("cpu"),
        dtype=tensor.dtype if tensor is not None else torch.float32,
        family="custom",
        transforms=None,
        categories=None,
    )
