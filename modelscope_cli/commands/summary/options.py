"""What can be said to `modelscope summary`, in groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.records.summary import COLORS, SummaryRecord
from modelscope_cli.shell import completion
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.named_model import SameModelOpt


@dataclass(frozen=True, slots=True)
class Built(groups.LoadOptions):
    """How the model is built: weights are not needed where nothing is measured."""

    model: SameModelOpt = None
    weights: opt.WeightsOpt = "none"


@dataclass(frozen=True, slots=True)
class Run:
    """What the model is run on: noise, where there are no images."""

    input_shape: opt.InputShapeOpt = None
    input: opt.NamedInputsOpt = None
    batch: opt.BatchOpt = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """The model as one image."""

    graph: Annotated[
        Path | None,
        typer.Option("--graph", metavar="FILE", help="Also save the model as one image (.svg, .html)."),
    ] = None
    color: Annotated[
        str | None,
        typer.Option(
            "--color",
            metavar="COLUMN",
            help="Which column colours the graph: macs, flops, params, memory, time, zero, gradient.",
            autocompletion=completion.one_of(*COLORS),
        ),
    ] = None

    def check(self, page: Path | None) -> None:
        """Refuse what cannot be drawn, beside a `page`; see `graph.check_graph`."""
        if self.graph is not None or self.color is not None:
            from modelscope_cli.commands.summary.graph import check_graph

            check_graph(self.graph, self.color, page)

    def save(self, record: SummaryRecord, *, is_whole: bool) -> None:
        """Draw a record; see `graph.save`."""
        from modelscope_cli.commands.summary.graph import save

        save(record, self.graph, self.color, is_whole=is_whole)


BUILT, RUN, DRAWN = Built(), Run(), Drawn()
