"""The figures and tables in the folder of a result."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from modelscope_cli.output_files import write_text
from modelscope_cli.records.display import Shown
from modelscope_cli.records.reading import RESULT_FILES
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.sheet import Sheet, render_csv

R = TypeVar("R", bound=Shown)


def write_files(record: R, folder: Path, figures: Mapping[str, Any], tables: Mapping[str, Sheet]) -> R:
    """Write figures and csv tables under their names; return the record with the names of its files."""
    for name, sheet in tables.items():
        write_text(folder / name, render_csv(sheet))
    for name, figure in figures.items():
        save_figure(figure, folder / name)
    return record.with_changes(files=(*figures, *tables, *RESULT_FILES))
