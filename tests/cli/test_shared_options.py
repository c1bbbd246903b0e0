"""Every option of a shared panel works in every command that shows it, and has its natural effect."""

import pytest

from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import parameters_of

# A quick line of every command.
LINES = {
    "summary": "summary {TINY}",
    "stats": "stats {TINY} {star}",
    "featuremaps": "featuremaps {TINY} {star} --layer conv@1",
    "predict": "predict {TINY} {star}",
    "explain": "explain {TINY} {star} --method hirescam --receipt none",
    "watch": "watch --steps 3 {samples}/train.py",
    "grads": "grads {TINY} {star}",
    "train": "train {TINY} --size 16 --steps 2 --pictures 40",
    "lrfind": "lrfind {TINY} --size 16 --steps 20 --pictures 40",
    "ablate": "ablate {TINY} {star} --layer conv@1",
    "prune": "prune {TINY} {star}",
    "attack": "attack {TINY} {star} --method fgsm --epsilon 1/255",
    "check": "check {TINY} {star} --select MS1",
    "rules": "rules MS705",
    "diff": "diff {samples}/tiny_resnet.safetensors {samples}/sick.safetensors",
    "report": "report saved.json",
    "weights": "weights {samples}/tiny_resnet.safetensors",
    "models": "models resnet18",
    "schema": "schema stats",
    "demo": "demo elsewhere",
    "help": "help model",
}
VALUES = {
    "model": "{TINY}",
    "weights": "none",
    "checkpoint": "{samples}/tiny_resnet.safetensors",
    "key": "state_dict",
    "num_classes": "10",
    "model_arg": "classes=10",
    "device": "cpu",
    "dtype": "bfloat16",
    "seed": "3",
    "input_shape": "2,3,64,64",
    "input": "x=2,3,64,64",
    "size": "64",
    "mean": "0.4",
    "std": "0.3",
    "batch": "2",
    "workers": "0",
    "layer": "conv@1",
    "exclude": "conv@2",
    "columns": "",
    "sort": "",
    "top": "1",
    "format": "json",
    "output": "written.json",
    "html": "page.html",
}
# An input of its own takes the place of the image; the entry of a checkpoint needs one.
INSTEAD = ("input_shape", "input")
BESIDE = {"key": "--checkpoint nested.pt"}
CASES = [(name, one.name) for name in COMMANDS for one in parameters_of(name).values() if one.is_shared]


def line_with(name, option, value=None):
    """Return the line of a command with an option."""
    one = parameters_of(name)[option]
    typed = (
        f"{one.names[0]} {VALUES[option] if value is None else value}" if one.takes_value else one.names[0]
    )
    typed = f"{BESIDE.get(option, '')} {typed}"
    line = LINES[name].replace("{star}", "") if option in INSTEAD else LINES[name]
    return line.replace(name, f"{name} {typed}", 1) if name == "watch" else f"{line} {typed}"


def test_every_panel_is_tried():
    tried = {option for _, option in CASES}
    assert {"device", "dtype", "seed", "size", "mean", "batch", "force", "quiet", "debug", "html"} <= tried
    assert len(CASES) > 300
    assert tried - {one for one in VALUES} == {"force", "all", "json", "verbose", "quiet", "debug", "strict"}


@pytest.mark.parametrize(("name", "option"), CASES)
def test_a_shared_option_works(name, option, run, cwd):
    column = {"models": "name", "rules": "code", "report": "page", "weights": "name", "diff": "name"}.get(
        name
    )
    value = None
    if option in ("columns", "sort"):
        rows = run(f"{LINES[name]} --format tsv") if name != "report" else None
        value = rows.out.partition("\n")[0].split("\t")[0] if rows else column
    result = run(line_with(name, option, value), expect=None)
    assert result.code == (1 if name == "diff" else 0), result.err
    assert "error" not in result.err


@pytest.mark.parametrize("option", ["device", "dtype", "seed"])
def test_it_is_in_the_document(option, run):
    for name in COMMANDS:
        if option in parameters_of(name) and name not in ("train", "lrfind", "diff"):
            document = run(f"{line_with(name, option)} --json").json
            assert str(document[option]) == VALUES[option], name
