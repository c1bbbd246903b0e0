"""`modelscope help`."""

import re
from difflib import get_close_matches
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records.documents import DOCUMENTS
from modelscope_cli.shell import console
from modelscope_cli.shell.output_options import QuietOptions
from modelscope_cli.shell.parameters import command
from modelscope_cli.synonyms import meaning


@command
def help(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC|COMMAND|RULE|schema DOCUMENT",
            help="model, input, output, layers or hooks; a command; a rule, such as MS709; agents, what coding "
            f"agents need; or schema and a document: {', '.join(DOCUMENTS)}.",
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
    from modelscope_cli.report.explain.table import MEANINGS
    from modelscope_cli.report.formats import render_json, to_text
    from modelscope_cli.report.listings import rules_sheet
    from modelscope_cli.shell.overview import COMMANDS, overview, width
    from modelscope_cli.shell.topics import AGENTS, TOPICS, explain_command, explain_topic, skill

    show.begin_quietly()
    what = "help" if words == ["schema"] else " ".join(words or ())
    if not what:
        text = overview() + "\n"
    elif what.startswith("schema "):
        text = render_json(ms.schema(what.removeprefix("schema ")))
    elif what in COMMANDS:
        text = explain_command(what)
    elif what == AGENTS:
        text = skill()
    elif what in TOPICS:
        text = explain_topic(what)
    elif what in MEANINGS:
        text = f"{what}: {MEANINGS[what]}; see modelscope help explain\n"
    elif re.fullmatch("(?i)ms[0-9x]*", what) or what in _rules():
        text = to_text(rules_sheet(ms.list_rules(what)), width())
    else:
        topics = (*TOPICS, AGENTS, "schema", *COMMANDS)
        named = [word if word in topics else meaning(word, topics) for word in (what, *(words or ()))]
        near = get_close_matches(what, [*topics, *_rules()], 1, 0.7)
        meant = next(filter(None, (named[0], *near, *named)), "")
        pages = {name: explain_command(name).lower().count(what.lower()) for name in COMMANDS}
        meant = meant or max(pages, key=pages.__getitem__) * any(pages.values())
        hint = f"modelscope help {meant}".strip()
        raise UsageError(f"'{what}' is not a topic, a command or a rule", hint)
    console.write(text)


def _rules() -> list[str]:
    return [rule.name for rule in ms.list_rules().rules]
