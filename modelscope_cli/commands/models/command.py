"""`modelscope models`."""

import modelscope_cli as ms
from modelscope_cli.records.listings import Catalogue, ModelEntry
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, field_columns
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit


def _gmacs(row: ModelEntry) -> float | None:
    return None if row.macs is None else row.macs / 1e9


COLUMNS = (
    *field_columns(ModelEntry, "name family"),
    *field_columns(
        ModelEntry, "params", text=lambda r: "-" if r.params is None else f"{r.params / 1e6:.2f} M"
    ),
    Column("gmacs", "GMACs", _gmacs, lambda r: "-" if r.macs is None else f"{r.macs / 1e9:.2f}", rank=0),
    Column(
        "input",
        "input",
        lambda r: numbers.shapes(r.input_shapes),
        lambda r: numbers.shapes(r.input_shapes) or "any size",
        is_number=False,
        rank=1,
    ),
    Column("weights", "weights", lambda r: " ".join(r.weights), is_number=False, rank=2),
)


def models_sheet(catalogue: Catalogue) -> Sheet:
    """Return the models with the figures that their library publishes for the default weights."""
    n = len(catalogue.models)
    is_timm = n > 0 and catalogue.models[0].name.startswith("timm:")
    library = "timm" if is_timm else f"torchvision {catalogue.versions['torchvision']}"
    return Sheet(
        title=f"{counted(n, 'model')} of {library}", columns=COLUMNS, rows=catalogue.models, is_catalogue=True
    )


PLACE = 53  # in `modelscope --help`


@command
def models(call: CommandCall) -> None:
    """List the models of torchvision, or of timm, with parameters, multiply-adds and input size.

    The numbers are those that torchvision publishes for its default weights; `modelscope summary` measures any
    model, also of timm.

    Examples:

      modelscope models

      modelscope models 'vit_*' --columns name,params,gmacs

      modelscope models timm:vit_tiny
    """

    where = call.begin()
    catalogue = ms.list_models(call["pattern"])
    emit(where, models_sheet(catalogue), catalogue)
