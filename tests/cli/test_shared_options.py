"""Every option of a shared panel works in every command that shows it, and has its natural effect."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from modelscope_cli import stats
from modelscope_cli.report.registry import view_for
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import parameters_of

# A quick line of every command.
LINES = {
    "summary": "summary {TINY}",
    "stats": "stats {TINY} {star}",
    "featuremaps": "featuremaps {TINY} {star} --layer conv@1",
    "predict": "predict {TINY} {star}",
    "explain": "explain {TINY} {star} --method hirescam --receipt none",
    "watch": "watch --steps 3 {samples}/train.py --batch 4",
    "grads": "grads {TINY} {star}",
    "train": "train {TINY} --size 16 --steps 2 --pictures 24",
    "lrfind": "lrfind {TINY} --size 16 --steps 12 --pictures 24",
    "ablate": "ablate {TINY} {star} --layer conv@1",
    "check": "check {TINY} {star} --select MS1",
    "diff": "diff {TINY} --b-dtype float16 {star}",
    "report": "report saved.json",
    "weights": "weights {samples}/tiny_resnet.safetensors",
    "demo": "demo elsewhere",
    "help": "help model",
}
VALUES = {
    "model": "{TINY}",
    "weights": "none",
    "checkpoint": "{samples}/tiny_resnet.safetensors",
    "key": "state_dict",
    "num_classes": "10",
    "model_arg": "width=16",
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
    "layer": "conv",
    "exclude": "head",
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
# Options that do not contradict each other are tried in one line.
TOGETHER = (
    "model weights num_classes model_arg device dtype seed size mean batch workers layer columns all verbose force",
    "checkpoint std exclude sort top quiet output html strict",
    "key input_shape format debug",
    "input json",
)
CASES = [(name, one.name) for name in COMMANDS for one in parameters_of(name).values() if one.is_shared]


def line_with(name, *options):
    """Return the line of a command with options."""
    typed = []
    for option in options:
        one = parameters_of(name)[option]
        value = view_for(name).columns[0].key if option in ("columns", "sort") else VALUES.get(option)
        typed += [BESIDE.get(option, ""), one.names[0], value if one.takes_value else ""]
    words, line = " ".join(filter(None, typed)), LINES[name]
    line = line.replace("{star}", "") if {*INSTEAD} & {*options} else line
    line = line.replace("{TINY}", "") if "model" in options else line
    return line.replace(name, f"{name} {words}", 1) if name == "watch" else f"{line} {words}"


def test_every_option_is_tried():
    tried = {option for _, option in CASES}
    assert {"device", "dtype", "seed", "size", "mean", "batch", "force", "quiet", "debug", "html"} <= tried
    assert len(CASES) > 300
    assert tried - {*VALUES} == {"force", "all", "json", "verbose", "quiet", "debug", "strict"}
    assert sorted(" ".join(TOGETHER).split()) == sorted(tried)


@pytest.fixture(scope="module")
def made(tmp_path_factory, samples):
    """A checkpoint with an entry, and a saved result."""
    folder = tmp_path_factory.mktemp("made")
    torch.save({"state_dict": load_file(samples / "tiny_resnet.safetensors")}, folder / "nested.pt")
    stats(f"{samples}/tiny_resnet.py:TinyResNet").save(folder / "saved.json")
    return folder


@pytest.fixture
def given(cwd, made):
    shutil.copytree(made, cwd, dirs_exist_ok=True)


@pytest.mark.parametrize("together", TOGETHER, ids=lambda options: options.split()[0])
@pytest.mark.parametrize("name", dict(CASES))
def test_shared_options_work(name, together, run, given):
    if options := [option for option in together.split() if (name, option) in CASES]:
        result = run(line_with(name, *options), expect=None)
        assert result.code == 0 or (name == "diff" and result.code == 1), result.err
        assert not re.search("(?m)^error: ", result.err)


@pytest.mark.parametrize("option", ["device", "dtype", "layer", "exclude", "size", "mean", "batch"])
def test_a_comparison_of_weights_takes_it_too(option, run, given):
    files = "{samples}/tiny_resnet.safetensors {samples}/sick.safetensors"
    value = VALUES[option].replace("conv", "block3")
    names = run(f"diff {files} --{option} {value} --all --format tsv", expect=1).column("name")
    if option == "layer":
        assert {name.partition(".")[0] for name in names} == {"block3"}
    if option == "exclude":
        assert "head.weight" not in names
        assert "block3.conv1.weight" in names


@pytest.mark.parametrize("option", ["device", "dtype", "seed"])
def test_it_is_in_the_document(option, run):
    for name in COMMANDS:
        if option in parameters_of(name) and name not in ("train", "lrfind", "report"):
            document = run(f"{line_with(name, option)} --json", expect=None).json
            assert str(document[option]) == VALUES[option], name
