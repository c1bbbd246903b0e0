"""Every example of a command's help runs as it is printed, beside the folder of `modelscope demo`."""

import shlex
import shutil
from importlib.util import find_spec
from itertools import pairwise

import pytest
import warm

from modelscope_cli.shell.app import run
from tools.docs.commands import commands, example_lines
from tools.docs.printed import fresh_folder, settings

# Options that change how long it takes, and nothing of what is tried here.
QUICKER = {
    "ablate": ["--size", "64"],
    "explain": ["--size", "32"],
    "featuremaps": ["--max-channels", "4", "--size", "64"],
    "grads": ["--size", "64"],
    "lrfind": ["--steps", "12", "--pictures", "60"],
    "stats": ["--size", "64"],
    "train": ["--steps", "4", "--pictures", "60"],
}
# What is there to find something may find it.
FINDS = ("check", "diff", "explain", "watch", "weights")


def examples(name):
    return example_lines(commands()[name].help.partition("Examples:")[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", commands())
def test_the_examples_of_a_command_run(name, undrawn, quick_weights):
    lines = examples(name)
    assert lines
    with fresh_folder() as folder, settings(folder):
        if name == "demo":
            shutil.rmtree(folder / "demo")
        for line in lines:
            if "timm:" not in line or find_spec("timm"):
                assert exit_code(shlex.split(line)) <= (name in FINDS), line


def exit_code(typed):
    """Run a command here; one that torchrun starts, in the processes that it starts."""
    tool, *arguments = typed
    if tool == "torchrun":
        return warm.run("-m", "torch.distributed.run", *arguments, "--size", "64").returncode
    assert tool == "modelscope"
    command, *rest = arguments
    if command == "watch":  # what stands behind the script is the script's
        steps = "8" if "--try-fixes" in rest else "12"  # no trials; those of README.md are held word for word
        return run([command, "--steps", steps, *without(rest, ["--steps"])])
    quicker = QUICKER.get(command, [])
    if any(word.startswith("vit_") for word in rest):  # takes images of one size
        quicker = [word for word in quicker if word not in ("--size", "64")]
    if "--fit" in rest:  # traces several training steps, layer by layer
        rest = ["demo/tiny_resnet.py:TinyResNet" if word == "resnet50" else word for word in rest]
    return run([command, *without(rest, quicker[::2]), *quicker])


def without(words, options):
    """Return a command line without these options and their values."""
    return [word for before, word in pairwise(["", *words]) if before not in options and word not in options]
