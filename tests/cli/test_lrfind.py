"""`modelscope lrfind`: the contract, the proof, and batches of one's own."""

import json

import pytest
from PIL import Image

SMALL = "--model {TINY} --size 32 --pictures 40 --batch 8"
LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def loaders():
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 3, 32, 32, generator=generator), torch.arange(64) % 10)
    return DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=64)
"""


@pytest.mark.drawn
def test_the_document_holds_the_contract(run, cwd):
    document = run(f"lrfind {SMALL} --steps 30 --json").json
    assert document["schema"] == "modelscope/lrfind/1"
    assert {"lr", "loss", "smoothed", "suggestion", "stopped", "restored"} <= document.keys()
    n = len(document["lr"])
    assert n == len(document["loss"]) == len(document["smoothed"]) <= 30
    assert document["lr"][0] == 1e-5
    assert document["suggestion"].keys() == {"steepest", "valley", "minimum"}
    assert document["restored"] == {"weights": True, "buffers": True, "optimizer": True, "rng": True}
    assert document["smoothed"][0] == document["loss"][0]
    folder = cwd / document["out_dir"]
    assert (
        {file.name for file in folder.iterdir()}
        == set(document["files"])
        == {"lr.png", "report.html", "report.json"}
    )
    assert json.loads((folder / "report.json").read_text()) == document
    with Image.open(folder / "lr.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50


def test_the_proof_is_printed(run):
    shown = run(f"lrfind {SMALL} --steps 5 --format markdown").out
    outcome = run(f"lrfind {SMALL} --steps 5 --format table").out
    assert "minimum" in shown
    (line,) = [line for line in outcome.splitlines() if line.startswith("restored ")]
    for part, (before, after) in run(f"lrfind {SMALL} --steps 5 --json").json["hashes"].items():
        assert before == after
        assert part in line


def test_the_same_seed_gives_the_same_curve(run):
    first, second = (run(f"lrfind {SMALL} --steps 8 --json").json for _ in range(2))
    assert first["loss"] == second["loss"]
    assert first["hashes"] == second["hashes"]


def test_batches_of_ones_own(run, cwd):
    (cwd / "mine.py").write_text(LOADERS)
    line = "lrfind --model {TINY} --loaders mine.py:loaders --linear --from 0.1 --to 0.9 --steps 9 --json"
    document = run(line).json
    assert [round(lr, 6) for lr in document["lr"]] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9][
        : len(document["lr"])
    ]
    assert document["sweep"] == "linear"
    assert document["input"]["shape"] == [[16, 3, 32, 32]]


def test_a_loss_that_is_nan_from_the_first_step_suggests_nothing(run, cwd):
    text = LOADERS.replace(
        "torch.randn(64, 3, 32, 32, generator=generator)", "torch.full((64, 3, 32, 32), float('nan'))"
    )
    (cwd / "mine.py").write_text(text)
    outcome = run("lrfind --model {TINY} --loaders mine.py:loaders --json")
    document = outcome.json
    assert document["stopped"] == "the loss was not finite at step 0"
    assert document["suggestion"] == {"steepest": None, "valley": None, "minimum": None}
    assert document["loss"] == [None]
    assert document["restored"]["buffers"]
