"""Every example of a command's help runs as it is printed, beside the folder of `modelscope demo`."""

import shlex
import shutil
from importlib.util import find_spec

import pytest

from modelscope_cli.shell.app import run
from tools.docs.commands import commands, example_lines
from tools.docs.printed import fresh_folder, settings

# Options that change how long it takes, and nothing of what is tried here.
QUICKER = {"train": ["--steps", "4", "--pictures", "60"], "lrfind": ["--steps", "12", "--pictures", "60"]}
# What is there to find something may find it.
FINDS = ("check", "diff", "explain", "watch", "weights")


def examples(name):
    return example_lines(commands()[name].help.partition("Examples:")[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", commands())
def test_the_examples_of_a_command_run(name, undrawn):
    lines = examples(name)
    assert lines
    with fresh_folder() as folder, settings(folder):
        if name == "demo":
            shutil.rmtree(folder / "demo")
        for line in lines:
            tool, *typed = shlex.split(line)
            assert tool == "modelscope"
            if "timm:" not in line or find_spec("timm"):
                assert run([*typed, *QUICKER.get(name, ())]) <= (name in FINDS), line
