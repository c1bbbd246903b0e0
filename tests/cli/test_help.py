"""`--help`: a page of 60 lines a command; everything in `--help-all`; what commands share in `modelscope help`."""

import re
import shlex

import pytest
from typer.main import get_command

import modelscope_cli as ms
from modelscope_cli.analysis.explaining.request import METHODS
from modelscope_cli.analysis.gradients.request import LOSSES
from modelscope_cli.hooks.spec import ACTIONS, KINDS
from modelscope_cli.shell.declared import declared, help_of, signature
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


def test_the_commands_stand_in_groups_with_the_first_sentence_of_their_help(run):
    page = run("--help").out
    assert page == run("help").out == run("--help-all").out == run("-h").out
    assert max(map(len, page.splitlines())) <= 80
    for name, about in COMMANDS.items():
        assert f"\n  {name} " in page
        assert APP.commands[name].help.partition("\n")[0] == about


@pytest.mark.parametrize("topic", ["model", "input", "output", "layers", "hooks"])
def test_a_topic_is_explained(run, topic):
    page = run(f"help {topic}").out
    assert page.splitlines()[0].strip()
    assert max(map(len, page.splitlines())) <= 80


def test_a_topic_tells_every_option_that_pages_fold(run):
    for topic, option in (("model", "--checkpoint"), ("input", "--mean"), ("output", "--columns")):
        folded = run("stats --help").out.partition("Shared options")[2]
        assert option in folded
        assert f"{option} " in run(f"help {topic}").out.replace(",", " ")


def test_every_action_and_kind_of_a_hook_is_explained(run):
    from modelscope_cli.hooks.spec import ACTIONS, KINDS

    page = run("help hooks").out
    assert [word for word in (*ACTIONS, *KINDS) if word != "forward" and word not in page] == []


def test_an_unknown_topic_names_the_near_ones(run):
    assert "model" in run("help modle", expect=2).err


def test_options_of_watch_stand_before_the_script(run):
    assert run("watch --help").out.startswith("Usage: modelscope watch [OPTIONS] [SCRIPT]")


def test_the_help_names_every_action_and_kind_of_hook_and_every_method_and_loss():
    hook = help_of(declared("stats")["hook"], "stats")
    assert f"Actions: {', '.join(ACTIONS)}. Kinds: {', '.join(KINDS)}." in hook
    assert f", or {', '.join(METHODS)}." in help_of(declared("explain")["method"], "explain")
    assert f"auto, {', '.join(LOSSES)}, or FILE.py:fn" in help_of(declared("grads")["loss"], "grads")


def test_a_docstring_says_to_python_alone_what_follows_in_python():
    doc = signature("predict")["labels"].help
    assert doc.endswith("chooses among these texts.")
    assert "In Python also a list of names." in " ".join((ms.predict.__doc__ or "").split())
