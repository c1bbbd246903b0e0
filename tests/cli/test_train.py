"""`modelscope train` and `lrfind`: the contract, the study, and what they leave behind."""

import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modelscope_cli.training.data import CLASSES

SMALL = "--model {TINY} --size 32 --pictures 40 --batch 8"


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(run, cwd):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(f"train {SMALL} --steps 2 --seed {seed} --out {name} -q")
    # Not the files: safetensors writes the entries of its metadata in no fixed order.
    a, b, c = (load_file(cwd / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


def test_the_weights_it_saves_are_those_the_report_speaks_of(run, cwd):
    run(f"train {SMALL} --steps 3 --out a -q")
    with safe_open(cwd / "a" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["categories"])[3] == "star"
    final = load_file(cwd / "a" / "model.safetensors")
    assert final["bn.num_batches_tracked"] == 3  # measuring on held-out pictures moved no statistics
    rows = run("predict {star} --model {TINY} --checkpoint a/model.safetensors --json").json["predictions"]
    assert {guess["label"] for guess in rows[0]["top"]} <= set(CLASSES)


def test_only_what_is_to_be_trained_moves(run, cwd, samples):
    before = load_file(samples / "tiny_resnet.safetensors")
    line = f"train {SMALL} -c {samples}/tiny_resnet.safetensors --train-only head --steps 3 --out a"
    outcome = run(line)
    assert "warning: 7 frozen batch norms" in outcome.err
    after = load_file(cwd / "a" / "model.safetensors")
    learned = {name for name in before if "running" not in name and "num_batches" not in name}
    assert {name for name in learned if not torch.equal(before[name], after[name])} == {
        "head.weight",
        "head.bias",
    }


def test_a_loss_that_is_nan_from_the_first_step_is_said_and_nothing_is_trained(run, cwd, samples):
    state = load_file(samples / "tiny_resnet.safetensors")
    state["conv.weight"][0] = float("nan")
    save_file(state, cwd / "nan.safetensors")
    document = run(f"train {SMALL} -c nan.safetensors --steps 5 --fail-on error --json", expect=1).json
    assert document["steps"] == 0
    assert [(one["rule"], one["layer"], one["since_step"]) for one in document["findings"]] == [
        ("loss-not-finite", None, 0),
        ("output-not-finite", "conv", 0),
        ("gradient-not-finite", "conv.weight", 0),
    ]
    assert [one["kind"] for one in document["events"]] == ["non-finite-loss"]
    assert document["held_out"][-1]["loss"] is None
    after = load_file(cwd / document["out_dir"] / "model.safetensors")
    assert torch.equal(after["head.weight"], state["head.weight"])


def test_a_folder_of_pictures_with_an_unreadable_one(run, cwd):
    for colour in ("red", "green", "blue"):
        (cwd / "data" / colour).mkdir(parents=True)
        for n in range(10):
            Image.new("RGB", (40, 40), colour).save(cwd / "data" / colour / f"{n}.png")
    (cwd / "data" / "red" / "3.png").write_bytes(b"nothing")
    outcome = run("train {TINY} data --size 32 --batch 8 --steps 20 --json")
    assert "warning: 1 of 30 images could not be read and were skipped: 'data/red/3.png'" in outcome.err
    document = outcome.json
    assert document["data"]["classes"] == ["blue", "green", "red"]
    assert document["data"]["skipped"] == ["data/red/3.png"]
    assert document["held_out"][-1]["accuracy"] == 1


@pytest.fixture
def bright(cwd):
    """A folder of two classes, dark and bright noise, of 20 gray images each; and a model that calls F.relu."""
    draw = np.random.default_rng(0)
    for label, mean in (("dark", 90), ("light", 160)):
        (cwd / "photos of noise" / label).mkdir(parents=True)
        for n in range(20):
            pixels = draw.normal(mean, 20, (16, 16)).clip(0, 255).astype("uint8")
            Image.fromarray(pixels).save(cwd / "photos of noise" / label / f"{n}.png")
    (cwd / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes=2):\n"
        "        super().__init__()\n"
        "        self.first, self.last = torch.nn.Linear(768, 8), torch.nn.Linear(8, num_classes)\n"
        "    def forward(self, x):\n"
        "        return self.last(torch.nn.functional.relu(self.first(x.flatten(1))))\n"
    )
    return "net.py:Net 'photos of noise' --size 16 --batch 8"


@pytest.mark.parametrize("form", ["{}", "--model {}"])
def test_the_line_that_lrfind_prints_trains_with_what_it_found(run, bright, form):
    words = "--optimizer adamw --seed 4 --steps 40 --columns lr --json --out found"
    outcome = run(f"lrfind {form.format(bright)} {words}")
    line = outcome.err.splitlines()[-1].removeprefix("hint: modelscope ")
    trained = run(f"{line} --steps 3 --json").json
    rate = outcome.json["suggestion"]["valley"]
    settings = trained["settings"]
    assert settings["lr"] == pytest.approx(rate, rel=0.005)
    assert (settings["optimizer"], settings["seed"], settings["batch"]) == ("adamw", 4, 8)
    assert trained["data"]["source"] == "photos of noise"
    assert shlex.split(line)[0] == "train"
    assert "hint" not in run(f"lrfind {bright} {words} --force -q").err


def test_lrfind_suggests_nothing_where_no_rate_can_lower_the_loss(run, cwd, bright):
    text = (cwd / "net.py").read_text()
    (cwd / "net.py").write_text(text.replace("x.flatten(1)))", "x.flatten(1)) - 1e4)"))  # always off
    outcome = run(f"lrfind {bright} --steps 40 --to 0.1 --json")
    assert set(outcome.json["suggestion"].values()) == {None}
    assert "hint" not in outcome.err


def test_what_is_learnt_is_said_with_what_was_counted(run, bright):
    document = run(f"train {bright} --steps 40 --lr 0.01 --json").json
    assert document["held_out_labels"] == [[0, 4], [1, 4]]
    assert document["training_accuracy"] > 0.95
    assert document["verdict"] == "nothing wrong"
    assert (
        "100.0 % on 8 labels, which guessing (50.0 %) reaches in 4 of 1,000" in document["reason"]
    )  # 2 ** -8
    table = run(f"train {bright} --steps 20 --lr 0.01 --columns name,dead --format tsv").out
    assert table.splitlines() == ["name\tdead", "first\t", "relu#f1\t0.0", "last\t"]
