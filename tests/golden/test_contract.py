"""The keys of every document and the columns of every TSV, kept as files. `--update-golden` rewrites them."""

import json
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from modelscope_cli.shell.app import make_app, run

HERE = Path(__file__).parent / "contract"
SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"-m {SAMPLES}/tiny_resnet.py:TinyResNet -c {SAMPLES}/tiny_resnet.safetensors"
LINES = {
    "ablate": f"ablate {SAMPLES}/star.png {TINY} -l block3.conv2 --channels --hook scale=2@block1.conv1 --no-save",
    "attack": f"attack {SAMPLES}/star.png {TINY} --steps 1 --hook scale=1@block1.conv1",
    "check": f"check {SAMPLES}/tiny_resnet.py:TinyResNet {SAMPLES}/star.png -w none --max-params 1000",
    "diff": f"diff {SAMPLES}/tiny_resnet.safetensors {SAMPLES}/sick.safetensors",
    "diff_run": f"diff {SAMPLES}/tiny_resnet.py:TinyResNet {SAMPLES}/star.png -c {SAMPLES}/tiny_resnet.safetensors "
    "--tolerance 0 --b-dtype bfloat16 --hook scale=1@block1.conv1",
    "featuremaps": f"featuremaps {SAMPLES}/star.png {TINY} -l conv --channels 2 --hook scale=1@block1.conv1",
    "grads": f"grads {SAMPLES}/star.png {SAMPLES}/star.png {TINY} --mode train --clip 1 --train-only head "
    "--hook grad:scale=1@head --no-save",
    "lrfind": f"lrfind -m {SAMPLES}/tiny_resnet.py:TinyResNet --steps 12 --pictures 40 --size 16 --batch 4",
    "models": "models alexnet",
    "predict": f"predict {SAMPLES}/star.png {TINY} --top 2 --hook scale=1@block1.conv1",
    "prune": f"prune {SAMPLES}/star.png {TINY} --save pruned.safetensors --sweep 0.5 --hook scale=1@block1.conv1",
    "rules": "rules",
    "stats": f"stats {SAMPLES}/star.png {TINY} --mode train --batch 1 --correlation -l conv "
    "--hook scale=1@block1.conv1",
    "summary": f"summary {SAMPLES}/tiny_resnet.py:TinyResNet",
    "train": f"train -m {SAMPLES}/tiny_resnet.py:TinyResNet --steps 3 --pictures 40 --size 16 --batch 4 "
    "--vary lr=0.1,0.2",
    "watch": f"watch --steps 3 {SAMPLES}/train.py",
    "weights": f"weights {SAMPLES}/tiny_resnet.safetensors --stats",
}
ENDS_WITH_A_FINDING = {"check", "diff", "diff_run"}


def keys(value, path=""):
    """Return every path in a document: `layers[].name`; what a list holds is one path, whatever its length."""
    if isinstance(value, dict):
        return {path, *(found for key, item in value.items() for found in keys(item, f"{path}.{key}"))}
    if isinstance(value, list):
        return {path, *(found for item in value for found in keys(item, f"{path}[]"))}
    return {path}


@pytest.fixture
def printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run_it(line):
        assert run(shlex.split(line)) == (1 if line.partition(" ")[0] in ENDS_WITH_A_FINDING else 0)
        return capsys.readouterr().out

    return run_it


def test_every_command_is_here():
    assert {name.partition("_")[0] for name in LINES} == set(get_command(make_app()).commands)


@pytest.mark.parametrize("name", LINES)
def test_no_key_and_no_column_went_away_or_came_unseen(name, printed, request):
    command, _, arguments = LINES[name].partition(" ")
    document = json.loads(printed(f"{command} --json {arguments}"))
    header = printed(f"{command} --format tsv {arguments}").partition("\n")[0]
    found = "\n".join([*sorted(keys(document) - {""}), "", *header.split("\t"), ""])
    golden = HERE / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")
