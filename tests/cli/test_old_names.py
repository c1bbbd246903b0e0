"""Former spellings of options: each does what the present one does, and stands in no help."""

import re

import pytest
from typer.main import get_command

from modelscope_cli.shell.old_names import OLD_NAMES, renewed
from modelscope_cli.shell.typer_app import make_app

TRAINED = "{TINY} --size 8 --pictures 20 --steps 4 --batch 4"
# (command, what is typed the old way, the new way)
CASES = [
    ("predict", "{star} {tiny} --activation=sigmoid", "{star} {tiny} --scores sigmoid"),
    (
        "ablate",
        "{star} {tiny} -l block3.conv2 --channels --how mean --no-save",
        "{star} {tiny} -l block3.conv2 --by-channel --method mean --no-save",
    ),
    (
        "prune",
        "{star} {tiny} --sweep 0.5 --channels --save=cut.safetensors --force",
        "{star} {tiny} --sweep 0.5 --by-channel --save-weights cut.safetensors --force",
    ),
    ("train", f"{TRAINED} --norm none", f"{TRAINED} --norm-layer none"),
    ("train", f"{TRAINED} --vary norm=batch,none", f"{TRAINED} --vary norm-layer=batch,none"),
    ("lrfind", f"{TRAINED} --norm group", f"{TRAINED} --norm-layer group"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "old", "new"), CASES)
def test_an_old_spelling_does_what_the_new_one_does(run, command, old, new):
    assert run(f"{command} {old}").out == run(f"{command} {new}").out


def test_every_old_spelling_is_tried_and_leads_to_an_option_there_is():
    commands = get_command(make_app()).commands
    for command, names in OLD_NAMES.items():
        tried = " ".join(old for name, old, _ in CASES if name == command)
        there = {option for parameter in commands[command].params for option in parameter.opts}
        for old, new in names.items():
            assert re.search(rf"{old}\b(?!-)", tried)
            assert new in there
            assert old not in there


def test_data_by_option_is_data_by_position(run):
    for command in ("train", "lrfind"):
        by_option, by_position = (
            run(f"{command} {TRAINED} {data}", expect=4).err for data in ("--data x", "x")
        )
        assert by_option == by_position
        assert "'x' does not exist" in by_option
        _, hint = run(f"{command} a --data b", expect=2).err.strip().split("\n\n")
        assert hint == "hint: leave out --data b"


@pytest.mark.parametrize("command", [*OLD_NAMES])
def test_no_help_shows_an_old_spelling(run, command):
    shown = run(f"{command} --help").out
    olds = [*OLD_NAMES[command], *(["--data"] if command in ("train", "lrfind") else [])]
    assert not [old for old in olds if re.search(rf"(?<![\w-]){old}(?![\w-])", shown)]


@pytest.mark.parametrize(
    "line",
    [
        ["watch", "--every", "2", "train.py", "--norm", "x", "--how", "y"],  # the script's own
        ["ablate", "x.png", "--", "--how", "--channels"],
        ["attack", "x.png", "--norm", "l2"],
        ["ablate", "--top", "3", "--target", "how"],
        ["--help"],
        [],
    ],
)
def test_what_is_not_an_old_spelling_stays(line):
    assert renewed(line) == line
