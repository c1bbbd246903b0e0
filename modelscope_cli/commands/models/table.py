"""The columns of `models`."""

from modelscope_cli.records.listings import Catalogue, ModelEntry
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, field_columns


def _params_shown(row: ModelEntry) -> str:
    return "-" if row.params is None else f"{row.params / 1e6:.2f} M"


def _gmacs_shown(row: ModelEntry) -> str:
    return "-" if row.macs is None else f"{row.macs / 1e9:.2f}"


COLUMNS = (
    *field_columns(ModelEntry, "name family"),
    *field_columns(ModelEntry, "params", text=_params_shown),
    Column("gmacs", "GMACs", lambda row: None if row.macs is None else row.macs / 1e9, _gmacs_shown, rank=0),
    Column(
        "input",
        "input",
        lambda r: numbers.shapes(r.input_shapes),
        lambda r: numbers.shapes(r.input_shapes) or "any size",
        is_number=False,
        rank=1,
    ),
    Column("weights", "weights", lambda row: " ".join(row.weights), is_number=False, rank=2),
)


def models_sheet(catalogue: Catalogue) -> Sheet:
    """Return the models with the figures that their library publishes for the default weights."""
    n = len(catalogue.models)
    is_timm = n > 0 and catalogue.models[0].name.startswith("timm:")
    library = "timm" if is_timm else f"torchvision {catalogue.versions['torchvision']}"
    return Sheet(
        title=f"{counted(n, 'model')} of {library}",
        columns=COLUMNS,
        rows=catalogue.models,
        is_catalogue=True,
    )
