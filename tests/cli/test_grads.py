"""`modelscope grads`: the tables, the folder it leaves, and what it says."""

import csv
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tolerance import A_NETWORK, close

from modelscope_cli.inputs.python_inputs import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest

# The keys of the JSON contract. Keys may be added; none of these may go.
DOCUMENT = {"schema", "tool", "argv", "model", "input", "device", "dtype", "seed", "warnings", "elapsed_ms"}
GRADS = {"loss", "parameters", "activations", "totals", "clip"}
LOSS = {"name", "value", "target", "label_smoothing", "weight_decay"}
FIGURES = {"grad_norm", "grad_mean", "grad_std", "grad_abs_max"}
PARAMETER = FIGURES | {"name", "layer", "shape", "numel", "trainable", "grad_min", "grad_max"}
PARAMETER |= {"zero_fraction", "nan_count", "inf_count", "weight_norm", "grad_to_weight"}
PARAMETER |= {"norm_before_clip", "clipped_fraction"}
ACTIVATION = FIGURES | {"name", "type", "order", "call", "shape"}
TOTALS = {"grad_norm", "norm_before_clip", "clipped_fraction", "trainable_params", "frozen_params"}
FILES = ["activations.csv", "gradient_flow.png", "parameters.csv", "report.html", "report.json", "report.md"]


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def by_hand(samples, name="star.png", target=None):
    """Return the gradient of every parameter of the healthy sample model for one picture."""
    model = load_model(
        ModelRequest(
            model=f"{samples}/tiny_resnet.py:TinyResNet",
            checkpoint=samples / "tiny_resnet.safetensors",
            device="cpu",
        )
    )
    inputs = open_inputs(
        InputRequest(files=(str(samples / name),)),
        family=model.family,
        transforms=model.transforms,
        module=model.module,
        device=model.device,
        dtype=model.dtype,
    )
    scores = model.module(*next(iter(inputs)).args)
    label = scores.argmax(1) if target is None else torch.tensor([target])
    parameters = dict(model.module.named_parameters())
    loss = F.cross_entropy(scores, label)
    return loss.item(), dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))


def test_the_table_is_what_autograd_gives(run, samples):
    loss, grads = by_hand(samples, target=3)
    outcome = run("grads {star} {healthy} -t 3 --no-save")
    assert outcome.column("name") == list(grads)
    for row, grad in zip(outcome.rows, grads.values(), strict=True):
        assert float(row["norm"]) == close(grad.double().norm().item())
        assert float(row["min"]) == grad.min().item()
        assert float(row["max"]) == grad.max().item()
        assert float(row["zero"]) == (grad == 0).double().mean().item()
        assert row["shape"] == "x".join(map(str, grad.shape))
    document = run("grads {star} {healthy} -t 3 --no-save --json").json
    assert document["loss"]["value"] == close(loss)
    assert document["loss"]["target"].startswith("3")


def test_the_document_keeps_the_contract(run, cwd):
    printed = run("grads {star} {healthy} --clip 0.01 --out here --json").json
    assert json.loads((cwd / "here" / "report.json").read_text()) == printed
    assert printed.keys() >= DOCUMENT | GRADS
    assert printed["schema"] == "modelscope/grads/1"
    assert printed["loss"].keys() >= LOSS
    assert printed["totals"].keys() >= TOTALS
    assert printed["clip"] == {"kind": "value", "value": 0.01}
    assert all(row.keys() >= PARAMETER for row in printed["parameters"])
    assert all(row.keys() >= ACTIVATION for row in printed["activations"])
    assert run("grads {star} {healthy} --no-save --json").json["clip"] is None


@pytest.mark.drawn
def test_the_folder_holds_tables_a_picture_and_a_page(run, cwd):
    outcome = run("grads {star} {sick} -t 0 --json")
    folder = cwd / "runs" / "grads-tiny_resnet.py-TinyResNet"
    assert names(folder) == FILES
    assert f"wrote {folder.relative_to(cwd)}\n" in outcome.err
    document = outcome.json
    assert (document["out_dir"], sorted(document["files"])) == (str(folder.relative_to(cwd)), FILES)

    with Image.open(folder / "gradient_flow.png") as image:
        assert min(image.size) > 600
        assert len(image.convert("RGB").getcolors(maxcolors=10**6)) > 50  # not blank

    for table in ("parameters", "activations"):
        with open(folder / f"{table}.csv", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        assert len(rows) == len(document[table])
        for row, entry in zip(rows, document[table], strict=True):
            assert row["name"].partition("#")[0] == entry["name"]
            assert row["mark"] == entry["mark"]
            expected = "" if entry["grad_norm"] is None else repr(entry["grad_norm"])
            assert row["norm"] == expected

    page = (folder / "report.md").read_text()
    assert page.startswith("# Gradients of tiny\\_resnet.py:TinyResNet\n")
    assert "![Gradient flow](gradient_flow.png)" in page
    assert "\n## Parameters\n" in page
    assert "\n## Activations\n" in page
    assert "## Batch norm" not in page
    assert all(f" {row['name']} " in page for row in document["parameters"])


def test_folders_are_numbered_and_only_force_writes_into_a_full_one(run, cwd):
    run("grads {star} {tiny} -l head")
    run("grads {star} {tiny} -l head")
    base = "grads-tiny_resnet.py-TinyResNet"
    assert sorted(path.name for path in (cwd / "runs").iterdir()) == [base, f"{base}-2"]
    (cwd / "mine").mkdir()
    (cwd / "mine" / "notes.txt").write_text("mine")
    assert "'mine' is not empty" in run("grads {star} {tiny} --out mine", expect=2).err
    run("grads {star} {tiny} --out mine --force")
    assert names(cwd / "mine") == sorted([*FILES, "notes.txt"])


def test_no_save_writes_nothing(run, cwd):
    outcome = run("grads {star} {tiny} --no-save")
    assert list(cwd.iterdir()) == []
    assert "wrote" not in outcome.err
    document = run("grads {star} {tiny} --no-save --json").json
    assert (document["out_dir"], document["files"]) == (None, [])


def test_the_sick_model_is_visibly_sick(run):
    sick = run("grads {star} {sick} -t 0 --no-save --json").json
    healthy = run("grads {star} {healthy} -t 0 --no-save --json").json
    assert {row["mark"] for row in healthy["parameters"]} == {""}
    assert {row["mark"] for row in sick["parameters"]} & {"zero", "vanishing", "exploding", "non-finite"}


@pytest.mark.parametrize(
    ("table", "key"),
    [("parameters", "parameters"), ("activations", "activations"), ("batch-norm", "batch_norm")],
)
def test_every_table_can_be_printed(run, table, key):
    line = f"grads --input-shape 2,3,48,48 {{healthy}} --mode train --no-save --table {table}"
    outcome = run(line)
    entries = run(f"{line} --json").json[key]
    labels = [row["name"] + (f"#{row['call']}" if row.get("call") else "") for row in entries]
    assert outcome.column("name") == labels
    assert len(labels) > 5
    assert run(f"{line} --columns name").out.splitlines()[0] == "name"


def test_layers_restrict_the_rows(run):
    document = run("grads {star} {healthy} -l block1 --no-save --json").json
    assert {row["layer"].split(".")[0] for row in document["parameters"]} == {"block1"}
    assert [row["name"] for row in document["activations"]] == ["block1"]
    relu = run("grads {star} {healthy} -l block1.relu#1 --no-save --json").json
    assert [(row["name"], row["call"]) for row in relu["activations"]] == [("block1.relu", 1)]
    assert relu["not_called"] == []


def test_several_images_are_several_passes(run, samples):
    pictures = ("star.png", "harbour.jpg", "composition.jpg")
    each = [by_hand(samples, name)[1] for name in pictures]
    document = run("grads {star} {harbour} {composition} {healthy} --no-save --json").json
    assert (document["passes"], document["images"]) == (3, 3)
    for row in document["parameters"]:
        raw = np.stack([grads[row["name"]].double().numpy() for grads in each])
        assert row["grad_norm"] == close(np.linalg.norm(raw.mean(0)), A_NETWORK)
        assert row["noise"] == close(np.sqrt(raw.var(0, ddof=1).sum()), A_NETWORK)
    together = run("grads {star} {harbour} {composition} {healthy} --no-save --json --batch 3").json
    assert (together["passes"], together["images"]) == (1, 3)
    for row, one in zip(together["parameters"], document["parameters"], strict=True):
        assert row["noise"] is None
        assert row["grad_norm"] == close(one["grad_norm"], 10 * A_NETWORK)


def test_repeat_draws_the_noise_anew(run):
    line = "grads {healthy} --input-shape 1,3,48,48 --no-save --json"
    document = run(f"{line} --repeat 3 --seed 5").json
    each = [run(f"{line} --seed {seed}").json for seed in (5, 6, 7)]
    assert (document["passes"], document["images"]) == (3, 3)
    mean = sum(one["loss"]["value"] for one in each) / 3
    assert document["loss"]["value"] == close(mean)
    assert all(row["noise"] > 0 for row in document["parameters"])
    picture = run("grads {star} {healthy} --no-save --json --repeat 3").json
    assert {row["noise"] for row in picture["parameters"]} == {0.0}


def test_a_fresh_head_is_fine_tuned(run):
    line = (
        "grads -m resnet18 -w none --size 64 --train-only fc --num-classes 10 --mode train --no-save --json"
    )
    outcome = run(line)
    document = outcome.json
    trained = [row["name"] for row in document["parameters"] if row["trainable"]]
    assert trained == ["fc.weight", "fc.bias"]
    assert document["totals"]["trainable_params"] == 5130
    assert document["totals"]["frozen_params"] == 11_689_512 - 513_000
    saving = document["saving"]
    assert saving["kept_bytes"] < saving["kept_bytes_unfrozen"] / 100
    assert saving["backward_ms"] < saving["backward_ms_unfrozen"]
    assert len(document["batch_norm"]) == 20
    assert "20 frozen batch norms still update their running statistics" in outcome.err
    shown = run(line.replace("--json", "-f table")).out
    assert "freezing saves" in shown
    assert "5,130 parameters" in shown


def test_noise_for_train_mode_has_two_images(run):
    assert run("grads {tiny} --mode train --no-save --json").json["input"]["shape"] == [[2, 3, 224, 224]]
    assert run("grads {tiny} --no-save --json").json["input"]["shape"] == [[1, 3, 224, 224]]
    outcome = run("grads -m ssdlite320_mobilenet_v3_large -w none --no-save --json -l backbone.extra")
    assert outcome.json["mode"] == "train"
    assert "mode: train (auto; detection models have a loss only in train mode)" in outcome.err
    assert "one object in every image" in outcome.json["loss"]["target"]


@pytest.mark.parametrize("clip", ["--clip 0.01", "--clip-norm 0.5", "--clip-activations 0.001 -l type:ReLU"])
def test_before_and_after_clipping_stand_side_by_side(run, clip):
    outcome = run(f"grads {{star}} {{healthy}} --no-save {clip} -f table")
    assert "unclipped" in outcome.out
    assert "before clipping" in outcome.out
    document = run(f"grads {{star}} {{healthy}} --no-save {clip} --json").json
    plain = run("grads {star} {healthy} --no-save --json").json
    assert document["totals"]["norm_before_clip"] == plain["totals"]["grad_norm"]
    assert document["totals"]["grad_norm"] < plain["totals"]["grad_norm"]


def test_thresholds_are_stated_and_adjustable(run):
    line = "grads {star} {healthy} --no-save -t 0"
    shown = run(f"{line} -f table").out
    assert "vanishing below 1e-07 x, exploding above 1e+06 x |g| at the output" in shown
    document = run(f"{line} --json --vanishing 1e9 --exploding 1e10").json
    marks = {len(row["shape"]) > 1: row["mark"] for row in document["parameters"]}
    assert marks == {True: "vanishing", False: ""}  # biases and scales of norms are not judged
    assert document["thresholds"] == {"vanishing": 1e9, "exploding": 1e10}


NAN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3))
        nn.init.constant_(self[0].bias, torch.nan)
"""


def test_a_loss_that_is_nan_is_said_and_strict_json(run, cwd):
    (cwd / "nan.py").write_text(NAN)
    outcome = run("grads -m nan.py:Net --json")
    assert "warning: the loss is nan, so no gradient is meaningful\n" in outcome.err
    document = outcome.json
    assert document["loss"]["value"] is None
    assert {row["mark"] for row in document["parameters"]} == {"non-finite"}
    assert [row["nan_count"] for row in document["parameters"]] == [12, 3]
    assert names(cwd / "runs" / "grads-nan.py-Net") == FILES  # drawn and written all the same


def test_how_many_rows_are_marked_is_told_in_words(run):
    err = run("grads {star} {sick} --no-save").err
    assert "marked: 25 of 25 rows: zero" in err
