"""`modelscope help`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records.documents import DOCUMENTS
from modelscope_cli.records.refusals import unknown
from modelscope_cli.shell import completion, console
from modelscope_cli.shell.output_options import QuietOptions
from modelscope_cli.shell.parameters import command


@command
def help(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC|COMMAND|RULE",
            help="model, input, output, layers or hooks; a command; a rule, such as MS709; schema; or agents, what "
            "coding agents need.",
            autocompletion=completion.topics,
        ),
    ] = None,
    document: Annotated[
        str | None,
        typer.Argument(
            metavar="DOCUMENT",
            help=f"After schema, the document: {', '.join(DOCUMENTS)}.",
            autocompletion=completion.documents,
        ),
    ] = None,
    *,
    show: QuietOptions,
) -> None:
    """Explain a topic, a command, a rule, or the schema of a result.

    A rule is explained in full: what it finds, why that matters, the source of its threshold, how to fix and how to
    silence it. A schema describes what a command prints with --json and writes as `report.json` (draft 2020-12).

    Examples:

      modelscope help model

      modelscope help stats

      modelscope help MS709

      modelscope help schema stats
    """
    from modelscope_cli.report.formats import render_json, to_text
    from modelscope_cli.report.listings import rules_sheet
    from modelscope_cli.shell.overview import COMMANDS, overview, width
    from modelscope_cli.shell.topics import AGENTS, TOPICS, explain_command, explain_topic, skill

    show.begin_quietly()
    what = "help" if what == "schema" and document is None else what
    if document is not None and what != "schema":
        raise UsageError(f"unexpected argument '{document}'", f"modelscope help {what}")
    if what is None:
        text = overview() + "\n"
    elif document is not None:
        text = render_json(ms.schema(document))
    elif what in COMMANDS:
        text = explain_command(what)
    elif what == AGENTS:
        text = skill()
    elif what in TOPICS:
        text = explain_topic(what)
    elif what.upper().startswith("MS") or what in {rule.name for rule in ms.list_rules().rules}:
        text = to_text(rules_sheet(ms.list_rules(what)), width())
    else:
        raise unknown("a topic, a command or a rule", what, (*TOPICS, AGENTS, "schema", *COMMANDS))
    console.write(text)
