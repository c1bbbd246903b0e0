"""The folder `ablate` leaves behind."""

from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.commands.ablate.gallery import rows_shown, save_contact_sheet
from modelscope_cli.commands.ablate.pictures import draw_ablation
from modelscope_cli.commands.ablate.table import ablate_sheet
from modelscope_cli.records.ablate import AblateRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES

if TYPE_CHECKING:
    from torch import Tensor

    from modelscope_cli.commands.ablate.gallery import Maps

__all__ = ["files_for", "rows_shown", "save_report"]
PLOT, TABLE, CONTACT_SHEET = "ablation.png", "ablation.csv", "contact_sheet.png"


def files_for(picture: "Tensor | None") -> tuple[str, ...]:
    """Name what `save_report` writes; the contact sheet only where there is a picture."""
    return (PLOT, *((CONTACT_SHEET,) if picture is not None else ()), TABLE, *RESULT_FILES)


def save_report(record: AblateRecord, stage: Path, picture: "Tensor | None", maps: "Maps") -> None:
    """Write `files_for(picture)`: the chart, the contact sheet, the table, the record and its page.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    save_figure(draw_ablation(record), stage / PLOT)
    if picture is not None:
        save_contact_sheet(record, picture, maps, stage / CONTACT_SHEET)
    write_text(stage / TABLE, render_csv(ablate_sheet(record)))
    save_result(record, stage)
