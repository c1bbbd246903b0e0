"""The folder `grads` leaves behind: figures for people, tables for programs."""

import shlex
from dataclasses import replace
from pathlib import Path

from modelscope_cli.commands.grads.pictures import draw_gradient_flow
from modelscope_cli.commands.grads.table import grads_sheet
from modelscope_cli.plain_text import markdown, plain
from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.markdown import render_markdown
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES

PICTURE = "gradient_flow.png"
FILES = (*RESULT_FILES, "report.md", PICTURE, "parameters.csv", "activations.csv")


def save_report(record: GradsRecord, stage: Path) -> None:
    """Write `FILES` into a folder.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    write_text(stage / "parameters.csv", render_csv(grads_sheet(record, "parameters")))
    write_text(stage / "activations.csv", render_csv(grads_sheet(record, "activations")))
    save_figure(draw_gradient_flow(record), stage / PICTURE)
    write_text(stage / "report.md", _markdown(record))
    save_result(record, stage)


def _markdown(record: GradsRecord) -> str:
    """Everything on one page: what was run, the picture, what is troubled, and the tables."""
    parameters = grads_sheet(record, "parameters")
    troubled = replace(parameters, title="Troubled parameters", facts=())
    troubled = replace(troubled, rows=tuple(row for row in parameters.rows if parameters.is_bad(row)))
    parts = [
        f"# Gradients of {markdown(Path(record.run.model.name).name)}",
        f"    modelscope {plain(shlex.join(record.run.argv))}" if record.run.argv else "",
        f"![Gradient flow]({PICTURE})",
        render_markdown(troubled) if troubled.rows else "No parameter is marked.",
        "## Parameters",
        render_markdown(parameters),
        "## Activations",
        render_markdown(replace(grads_sheet(record, "activations"), facts=())),
    ]
    if record.batch_norm:
        parts += ["## Batch norm", render_markdown(grads_sheet(record, "batch-norm"))]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
