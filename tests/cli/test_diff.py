"""`modelscope diff`: what A and B may be, what is found, and the exit code that a build can fail on."""

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tolerance import close
from torchvision.models import resnet18

FILES = "{samples}/tiny_resnet.safetensors {samples}/sick.safetensors"


def statuses(document):
    rows = document.get("layers") or document["tensors"]
    return {row["name"]: row["status"] for row in rows}


@pytest.fixture(scope="module")
def one_weight(tmp_path_factory):
    """Two checkpoints of resnet18 that differ in one weight, by 1e-3."""
    folder = tmp_path_factory.mktemp("resnet18")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet18()
    torch.save(model.state_dict(), folder / "a.pt")
    with torch.no_grad():
        model.layer2[0].conv1.weight[3, 5, 1, 1] += 1e-3
    torch.save(model.state_dict(), folder / "b.pt")
    return f"{folder}/a.pt {folder}/b.pt"


def test_one_weight_is_named_exactly(run, one_weight):
    document = run(f"diff {one_weight} {{star}} --model resnet18 --size 64 --json", expect=1).json
    assert document["first_divergence"] == "layer2.0.conv1"
    rows = document["layers"]
    place = [row["name"] for row in rows].index("layer2.0.conv1")
    assert {row["differing"] for row in rows[:place]} == {0}
    assert rows[place]["rel_l2"] > document["tolerance"] == 1.3e-6
    assert rows[place]["sqnr_db"] == close(-20 * torch.tensor(rows[place]["rel_l2"]).log10().item())


def test_a_file_and_itself(run, one_weight):
    file, _ = one_weight.split()
    outcome = run(f"diff {file} {file}")
    assert outcome.rows == []
    document = run(f"diff {file} {file} --json").json
    assert document["first_divergence"] is None
    assert set(statuses(document).values()) == {"same"}
    assert document["totals"]["same"] == document["totals"]["compared"] == len(document["tensors"])


@pytest.mark.parametrize(("line", "first"), [
    ("{TINY} {star} -c {samples}/tiny_resnet.safetensors --b-checkpoint {samples}/sick.safetensors", "bn"),
    ("{samples}/tiny_resnet.safetensors {star} -m {TINY} --b-checkpoint {samples}/sick.safetensors", "bn"),
    ("{TINY} {samples}/sick.safetensors {star} -c {samples}/tiny_resnet.safetensors", "bn"),
    ("{samples}/tiny_resnet.safetensors {TINY} --input-shape 2,3,48,48", "conv"),
    ("{TINY} --b-seed 1 --input-shape 2,3,48,48", "conv"),
    ("{TINY} {star} --b-mode train --input-shape 2,3,48,48", None),
    ("{TINY} {TINY} --b-mode train --input-shape 2,3,48,48", "bn"),
    ("{TINY} --b-dtype float16 --tolerance 1e-9 --input-shape 2,3,48,48", "conv"),
])  # fmt: skip
def test_ways_to_name_two_sides(run, line, first):
    outcome = run(f"diff {line} --json", expect=1 if first else 2)
    if first:
        assert outcome.json["first_divergence"] == first
    else:
        assert "are two different inputs" in outcome.err


@pytest.mark.parametrize(
    "line", ["{TINY} {TINY} {star} {harbour}", "{TINY} {TINY} --mode train --input-shape 2,3,48,48"]
)
def test_a_model_and_itself(run, line):
    assert run(f"diff {line}").rows == []
    assert len(run(f"diff {line} --all").rows) == 27


def test_several_pictures_are_measured_together(run, cwd):
    for name, colour in (("a.png", "teal"), ("b.png", "white")):
        Image.new("RGB", (64, 64), colour).save(cwd / name)
    line = f"diff {FILES} {{pictures}} -m {{TINY}} --size 48 -l conv -l bn --json"
    each = [run(line, expect=1, pictures=name).json["layers"][1] for name in ("a.png", "b.png")]
    for pictures in ("a.png b.png", "*.png --batch 1", "*.png --batch 2"):
        row = run(line, expect=1, pictures=pictures).json["layers"][1]
        assert row["max_abs"] == close(max(one["max_abs"] for one in each))
        assert row["mean_abs"] == close(sum(one["mean_abs"] for one in each) / 2)


def test_within_the_tolerance_is_shown_and_is_not_a_difference(run):
    line = "diff {TINY} {star} --b-dtype bfloat16"
    outcome = run(f"{line} --format table")
    assert " within " in outcome.out
    assert "first divergence  none" in outcome.out
    assert run(f"{line} --tolerance 1e-6", expect=1).column("status")[0] == "changed"


def test_a_wrapped_checkpoint_of_another_type(run, samples, cwd):
    state = load_file(samples / "tiny_resnet.safetensors")
    state = {f"net.{name}": tensor for name, tensor in state.items()}
    state["net.head.bias"] = state["net.head.bias"].half()
    state["net.head.weight"] = state["net.head.weight"][:5].clone()
    del state["net.conv.weight"]
    save_file(state | {"epoch": torch.ones(1)}, cwd / "b.safetensors")
    line = "diff {samples}/tiny_resnet.safetensors b.safetensors"
    document = run(f"{line} --json", expect=1).json
    assert document["renamings"] == [{"prefix": "", "b_prefix": "net.", "tensors": 45}]
    odd = {name: status for name, status in statuses(document).items() if status != "renamed"}
    assert odd == {
        "conv.weight": "removed",
        "head.bias": "retyped",
        "head.weight": "reshaped",
        "epoch": "added",
    }
    table = run(f"{line} --format table", expect=1).out
    assert "'' is 'net.' in B: 45 tensors fit" in table
    assert "10x64 -> 5x64" in table


def test_tensors_are_in_the_order_of_their_numbers(run, cwd):
    save_file({f"layer.{n}.weight": torch.ones(n + 1) for n in range(12)}, cwd / "a.safetensors")
    names = run("diff a.safetensors a.safetensors --all").column("name")
    assert names == [f"layer.{n}.weight" for n in range(12)]


def test_nan_is_equal_to_nan_and_to_nothing_else(run, cwd):
    save_file({"x": torch.tensor([1, torch.nan, torch.inf])}, cwd / "a.safetensors")
    save_file({"x": torch.tensor([1, torch.nan, 2.0])}, cwd / "b.safetensors")
    run("diff a.safetensors a.safetensors")
    row = run("diff a.safetensors b.safetensors --json", expect=1).json["tensors"][0]
    assert (row["status"], row["nonfinite"], row["max_abs"]) == ("changed", 1, 0)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("line", "suffix"),
    [(f"{FILES} {{star}} -m {{TINY}}", "png"), (FILES, "svg"), ("squeezenet1_1 mnasnet0_5 -w none", "pdf")],
)
def test_plot(run, cwd, suffix, line):
    if suffix != "png" and "mnasnet" in line:
        line = "{TINY} {TINY} --input-shape 1,3,48,48"  # where nothing differs
    outcome = run(f"diff {line} --plot depth.{suffix}", expect=None)
    assert f"wrote depth.{suffix}" in outcome.err
    assert (cwd / f"depth.{suffix}").stat().st_size > 5000


def test_one_module_object_cannot_be_both(run, cwd, monkeypatch):
    (cwd / "held.py").write_text("from torch import nn\nnet = nn.Sequential(nn.Conv2d(3, 4, 3))\n")
    monkeypatch.syspath_prepend(cwd)
    outcome = run("diff held:net --b-dtype bfloat16 --input-shape 1,3,8,8", expect=4)
    assert "'held:net' returns the same module each time" in outcome.err
    # A file is run anew, so it makes two.
    run("diff held.py:net --b-dtype bfloat16 --input-shape 1,3,8,8 --tolerance 0.1", expect=None)
