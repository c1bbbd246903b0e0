"""`modelscope ablate` from the command line to its folder."""

import csv
import json

import pytest
import torch
from PIL import Image
from tolerance import A_NETWORK, close

from modelscope_cli.analysis.predictions.scores import kl_divergence
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest

FILES = ["ablation.csv", "ablation.png", "contact_sheet.png", "report.html", "report.json"]


@pytest.mark.drawn
def test_the_folder_and_the_document(run, cwd):
    outcome = run("ablate {star} {squeezenet} -l conv --json")
    folder = cwd / "runs" / "ablate-squeezenet1_1"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    document = outcome.json
    assert json.loads((folder / "report.json").read_text()) == document
    assert document["schema"] == "modelscope/ablate/1"
    assert sorted(document["files"]) == FILES
    assert (document["mode"], document["images"], document["classes"]) == ("zero", 1, 10)

    baseline = document["baseline"]
    assert (baseline["target_index"], baseline["target_label"]) == (3, "star")
    assert baseline["predictions"][0]["top"][0]["label"] == "star"
    assert len(document["rows"]) == 26
    assert {"name", "call", "channel", "mode", "target_logit_change", "prediction_changed", "kl_divergence",
            "output_l2"} <= document["rows"][0].keys()  # fmt: skip
    assert all(row["prediction_changed"] == (row["answer_label"] != "star") for row in document["rows"])
    divergences = [row["kl_divergence"] for row in document["rows"]]
    assert divergences == sorted(divergences, reverse=True)

    table = list(csv.DictReader((folder / "ablation.csv").read_text().splitlines()))
    assert [row["name"] for row in table] == [row["name"] for row in document["rows"]]
    for name in FILES[1:3]:
        with Image.open(folder / name) as image:
            assert min(image.size) > 400


def test_figures_against_a_hook_written_by_hand(run, samples):
    outcome = run("ablate {squeezenet} --input-shape 2,3,64,64 -l features.6.squeeze --json --no-save")
    request = ModelRequest(
        "squeezenet1_1", checkpoint=samples / "shapes_squeezenet1_1.safetensors", device="cpu"
    )
    model = load_model(request).module
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(x)
        handle = model.get_submodule("features.6.squeeze").register_forward_hook(lambda m, a, out: out * 0)
        after = model(x)
        handle.remove()
    (row,) = outcome.json["rows"]
    assert row["kl_divergence"] == close(kl_divergence(before, after).mean().item())
    change = (after - before).gather(1, before.argmax(1, keepdim=True)).mean().item()
    assert row["target_logit_change"] == close(change)


@pytest.mark.parametrize("how", ["zero", "mean", "shuffle"])
def test_channels(run, cwd, how):
    outcome = run(
        f"ablate {{star}} {{healthy}} -l block1.conv2 -l head --by-channel --method {how} --top 7 --out out"
    )
    assert len(outcome.rows) == 7
    rows = json.loads((cwd / "out" / "report.json").read_text())["rows"]
    assert sorted((row["name"], row["channel"]) for row in rows) == [
        *(("block1.conv2", i) for i in range(16)),
        *(("head", i) for i in range(10)),
    ]
    assert {row["mode"] for row in rows} == {how}


def test_shuffling_has_a_seed(run):
    line = "ablate {star} {healthy} -l conv --method shuffle --no-save"
    assert run(line).out == run(line).out != run(f"{line} --seed 1").out


def test_many_pictures_are_means_and_a_target_is_the_same_for_all(run):
    line = "ablate {star} {harbour} {composition} {squeezenet} -l conv@-1 --target waves --no-save"
    together = run(line).rows[0]
    alone = [run(line.replace("{star} {harbour} {composition}", image)).rows[0]
             for image in ("{star}", "{harbour}", "{composition}")]  # fmt: skip
    for key in ("logit_change", "kl", "l2", "changed"):
        mean = sum(float(row[key]) for row in alone) / 3
        assert float(together[key]) == close(mean, A_NETWORK, scale=0.01)


def test_without_a_picture_there_is_no_contact_sheet(run, cwd):
    run("ablate {tiny} --input-shape 1,3,64,64 --out out --exclude block1 --exclude 'block*.*'")
    assert sorted(path.name for path in (cwd / "out").iterdir()) == [*FILES[:2], *FILES[3:]]


def test_the_table_says_what_was_done(run):
    out = run("ablate {star} {squeezenet} -l conv -l type:Dropout --format table --top 3 --no-save").out
    assert "star, logit" in out.replace("3 (star)", "star")
    assert "zeros" in out
    assert "3 of 27" in out
    assert "report" not in out


def test_no_save_leaves_nothing(run, cwd):
    run("ablate {tiny} --input-shape 1,3,64,64 -l head --no-save")
    assert list(cwd.iterdir()) == []


def test_a_model_that_keeps_something_is_told(run, cwd):
    (cwd / "kept.py").write_text(
        "from torch import nn\n"
        "class Kept(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        self.seen = self.conv(x)\n"
        "        return self.head(self.seen.mean((2, 3)))\n"
    )
    outcome = run("ablate -m kept.py:Kept --input-shape 1,3,9,9 --no-save")
    assert "every pass runs the whole model" in outcome.err
    assert len(outcome.rows) == 2
