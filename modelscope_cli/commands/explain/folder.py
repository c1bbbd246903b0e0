"""The folder `explain` leaves behind."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelscope_cli.commands.explain.pictures import Explained, draw_class_maps, draw_explanations
from modelscope_cli.commands.explain.table import explain_sheet
from modelscope_cli.records.explain import ExplainRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES

if TYPE_CHECKING:
    from torch import Tensor

PICTURE, CLASSES, TABLE = "explanation.png", "classes.png", "explanation.csv"
Kept = Sequence[Any]  # what came of each image; see `analysis.explaining.one_image.Explained`


def files_for(record: ExplainRecord, kept: Kept) -> tuple[str, ...]:
    """Name what `save_report` writes: pictures only of images, the classes only of several."""
    pictures = (PICTURE,) if _seen(kept) else ()
    return (*pictures, *((CLASSES,) if record.whereabouts is not None else ()), TABLE, *RESULT_FILES)


def save_report(record: ExplainRecord, stage: Path, kept: Kept, mean_maps: "Mapping[str, Tensor]") -> None:
    """Write `files_for(record, kept)`.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    heading = f"{record.run.model.heading}, why {record.target}"
    if _seen(kept):
        save_figure(draw_explanations(_seen(kept), heading), stage / PICTURE)
    if record.whereabouts is not None:
        title = f"{heading}: where the evidence lies by {record.whereabouts_method}"
        save_figure(draw_class_maps(record.whereabouts, mean_maps, title), stage / CLASSES)
    write_text(stage / TABLE, render_csv(explain_sheet(record)))
    save_result(record, stage)


def _seen(kept: Kept) -> list[Explained]:
    return [
        Explained(
            name=Path(one.name).name,
            said=f"{one.words} {numbers.percent(one.probability)}",
            image=one.picture,
            maps={method: outcome.shown for method, outcome in one.outcomes.items()},
            receipts={method: outcome.receipt for method, outcome in one.outcomes.items()},
            units={method: outcome.units for method, outcome in one.outcomes.items()},
        )
        for one in kept
        if one.picture is not None
    ]
