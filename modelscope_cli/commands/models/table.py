"""The columns of `models`."""

from modelscope_cli.records.models import Catalogue, ModelEntry
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, choose_columns


def _gmacs(row: ModelEntry) -> float:
    return row.macs / 1e9


def _weights(row: ModelEntry) -> str:
    return " ".join(row.weights)


_COLUMNS = (
    Column("name", "model", lambda r: r.name, is_number=False, rank=0),
    Column("family", "family", lambda r: r.family, is_number=False, rank=3),
    Column("params", "params", lambda r: r.params, lambda r: f"{r.params / 1e6:.2f} M", rank=0),
    Column("gmacs", "GMACs", _gmacs, lambda r: f"{_gmacs(r):.2f}", rank=0),
    Column(
        "input",
        "input",
        lambda r: numbers.shapes(r.input_shapes),
        lambda r: numbers.shapes(r.input_shapes) or "any size",
        is_number=False,
        rank=1,
    ),
    Column("weights", "weights", _weights, is_number=False, rank=2),
)


def models_sheet(catalogue: Catalogue, columns: str | None = None) -> Sheet:
    """List models with the figures torchvision publishes for their default weights."""
    n = len(catalogue.models)
    return Sheet(
        title=f"{n} model{'s' if n != 1 else ''} of torchvision {catalogue.versions['torchvision']}",
        columns=choose_columns(_COLUMNS, columns),
        rows=catalogue.models,
    )
