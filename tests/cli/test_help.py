"""`--help`: a page of 60 lines a command; everything in `--help-all`; what commands share in `modelscope help`."""

import json
import re
import shlex

import pytest
from typer.main import get_command

import modelscope_cli as ms
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.typer_app import make_app

APP = get_command(make_app())


def options_of(name):
    return [one for one in APP.commands[name].params if one.param_type_name == "option" and not one.hidden]


@pytest.fixture(autouse=True)
def a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_60_lines_at_most_and_no_line_is_too_wide(run, name):
    lines = run(f"{name} --help").out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: modelscope {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_names_every_option_and_the_whole_page_says_all_of_each(run, name):
    page, whole = run(f"{name} --help").out, run(f"{name} --help-all").out
    said = " ".join(whole.split())
    for option in options_of(name):
        assert re.search(rf"(?<![\w-]){re.escape(option.opts[0])}(?![\w-])", page), option.opts
        for spelling in (*option.opts, *option.secondary_opts):
            assert spelling in whole
        assert " ".join(option.help.split()) in said
    assert run(f"help {name}").out.split() == whole.split()


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_that_is_broken_over_lines_can_be_pasted(run, name):
    whole = run(f"{name} --help-all").out
    pasted = re.sub(r"\\\n\s+", "", whole)
    stated = APP.commands[name].help.partition("Examples:")[2].split("\n\n")
    examples = [text for text in map(str.strip, stated) if text]
    assert examples
    found = [
        shlex.split(line) for line in pasted.splitlines() if line.startswith(("  modelscope ", "  torchrun "))
    ]
    assert [shlex.split(example) for example in examples] == found


@pytest.mark.parametrize("rule", ["MS709", "ms709", "large-updates"])
def test_a_rule_is_explained(run, rule):
    out = run(f"help {rule}").out
    assert out.startswith("MS709 large-updates\n")
    assert "to fix it" in out


def test_a_schema_is_that_of_the_document(run):
    assert json.loads(run("help schema stats").out) == ms.schema("stats")
    assert "DOCUMENT" in run("help schema").out
    assert "'nonsense'" in run("help schema nonsense", expect=2).err
    assert "hint: modelscope help stats\n" in run("help stats twice", expect=2).err
