"""`modelscope ablate` from the command line to its folder."""

import csv
import json

import pytest
from PIL import Image
from tolerance import A_NETWORK, close

FILES = ["ablation.csv", "ablation.png", "report.html", "report.json"]


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
    with Image.open(folder / "ablation.png") as image:
        assert min(image.size) > 400


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


def test_many_pictures_are_means_and_a_target_is_the_same_for_all(run):
    line = "ablate {star} {harbour} {composition} {squeezenet} -l conv@-1 --target waves --no-save"
    together = run(line).rows[0]
    alone = [run(line.replace("{star} {harbour} {composition}", image)).rows[0]
             for image in ("{star}", "{harbour}", "{composition}")]  # fmt: skip
    for key in ("logit_change", "kl", "l2", "changed"):
        mean = sum(float(row[key]) for row in alone) / 3
        assert float(together[key]) == close(mean, A_NETWORK, scale=0.01)


def test_a_model_that_keeps_something_is_reported(run, cwd):
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
