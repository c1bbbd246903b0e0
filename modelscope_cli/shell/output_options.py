"""The options of the panel Output: how and where a result is written, and how much is said."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.output_files import OutputFolder, free_folder
from modelscope_cli.ranks import find_ranks
from modelscope_cli.records.run import invocation, invoked_as
from modelscope_cli.report.formats import FORMATS, Format
from modelscope_cli.report.sheet import Layout
from modelscope_cli.shell import console
from modelscope_cli.shell.output import Destination, destination, emit_failure


def format_option(*more: str) -> Any:
    """Return the option --format; `more`: the formats that only this command has."""
    return typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        rich_help_panel="Output",
        help=f"auto (table on a terminal and in a CI log, else tsv), {', '.join((*FORMATS, *more))}.",
    )


Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel="Output",
        help="Folder for the report and the figures.",
        show_default="runs/COMMAND-MODEL",
    ),
]
Save = Annotated[
    bool, typer.Option("--save/--no-save", rich_help_panel="Output", help="Whether to write the report.")
]
BlocksOut = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel="Output",
        help="Folder for the report and, for several batches of image files, the finished blocks that --resume "
        "needs. Blocks are computed in one thread; use torchrun for more cores.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        rich_help_panel="Output",
        help="Continue with the blocks in --out, with any number of processes; the result is bit-identical to an "
        "uninterrupted run.",
    ),
]


def _list_columns(ctx: typer.Context, value: str | None) -> str | None:
    """Print the columns of a command, their headings and their names in JSON, for `--columns help`."""
    if value != "help":
        return value
    from modelscope_cli.report.registry import view_for

    columns = {column.key: column for column in view_for(str(ctx.info_name)).columns}
    width = max(map(len, columns))
    for key, column in columns.items():
        in_json = f"  (in JSON {column.field})" if column.field not in ("", key) else ""
        console.write(f"{key:<{width}}  {column.title}{in_json}".rstrip() + "\n")
    raise typer.Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietOptions:
    """What every command says besides its result."""

    panel: ClassVar[str] = "Output"

    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no notes and no progress to stderr.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False

    def begin_quietly(self, *, is_forced: bool = False, is_verbose: bool = False) -> None:
        """Set how much is said, and whether existing files may be replaced."""
        settings = console.settings
        settings.is_quiet, settings.is_verbose, settings.is_debug = self.quiet, is_verbose, self.debug
        # A silent process may find files that the first one wrote.
        invoked_as(settings.argv, settings.started, is_forced or settings.is_silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions(QuietOptions):
    """How the result is written."""

    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files, or write into a folder that is not empty.")
    ] = False
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Only these columns, in this order; `--columns help` lists them.",
            is_eager=True,
            callback=_list_columns,
        ),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort the rows, largest number first; COLUMN:asc reverses the order. JSON is not sorted.",
        ),
    ] = None
    top: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show only the first N rows. JSON has all.")
    ] = None
    all: Annotated[bool, typer.Option("--all", help="Show every row of a long table.")] = False
    format: Annotated[str, format_option()] = "auto"
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to a file; the suffix decides the format "
            f"({' '.join(one.suffix for one in FORMATS.values() if one.suffix)}).",
        ),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also save the result as a web page in one self-contained file."),
    ] = None
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Explain the columns and how images are preprocessed.")
    ] = False

    def begin(
        self, format: str | None = None, more: Mapping[str, Format] | None = None, *, is_shared: bool = False
    ) -> Destination:
        """Apply these options before anything runs, and return where the result goes.

        Args:
            format: the value of --format of a command that declares its own, and `more` the formats it adds.
            is_shared: whether the processes of torchrun share the work; then only the first one prints.
        """
        console.settings.is_silent = is_shared and not find_ranks().is_first
        self.begin_quietly(is_forced=self.force, is_verbose=self.verbose)
        layout = Layout(self.columns, self.sort, self.top, self.all)
        page = None if console.settings.is_silent else self.html
        where = destination(format or self.format, self.json, self.output, layout, more, page=page)
        console.settings.on_failure = partial(emit_failure, where)
        console.begin_work(is_alone=where.file is None and where.format not in ("auto", "table", "brief"))
        return where

    def folder(
        self,
        out: Path | None,
        model: str,
        *,
        beside: Path | None = None,
        save: bool = True,
        resume: bool = False,
    ) -> Path | None:
        """Return the folder of --out, else a new one in `runs`, checked before any long work; None with --no-save.

        Args:
            beside: a file outside the folder to which --force may apply.
            save: the value of --save; `resume`: of --resume, for which the folder has content.
        """
        if not save:
            if out or (self.force and not (self.output or self.html or beside)):
                hint = "leave out --no-save, or leave out --out and --force"
                raise UsageError("--no-save writes no folder", hint)
            return None
        if console.settings.is_silent:  # one of several processes writes
            return out
        folder = out or free_folder(console.settings.argv[0], model)
        OutputFolder(folder, invocation().is_forced or resume).check()
        return folder
