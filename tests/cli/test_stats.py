"""`modelscope stats`: the numbers against NumPy in float64, streaming, and what they reveal."""

import io
import sys

import numpy as np
import pytest
import torch
from collected import outputs_of
from PIL import Image
from tolerance import A_NETWORK, close


@pytest.fixture(scope="module")
def outputs(loaded, samples):
    """Return a function that runs a model by hand: `{(name, call): float64 array}` over some pictures."""

    def collect(*pictures, model="tiny_resnet.py:TinyResNet", checkpoint="tiny_resnet.safetensors"):
        source = f"{samples}/{model}" if ":" in model else model
        network, args = loaded(*pictures, model=source, checkpoint=samples / checkpoint)
        return {key: output.double().numpy() for key, output in outputs_of(network, *args).items()}

    return collect


@pytest.fixture
def pictures(cwd):
    """Five small pictures that differ."""
    folder = cwd / "pictures"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(5):
        pixels = generator.integers(0, 60 * (index + 1) - 44, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


def is_true(value, truth):
    return value == close(truth, scale=0.01)


@pytest.mark.parametrize("state", ["healthy", "sick"])
def test_every_number_is_numpys(run, outputs, samples, state):
    checkpoint = "tiny_resnet.safetensors" if state == "healthy" else "sick.safetensors"
    truth = outputs(samples / "star.png", checkpoint=checkpoint)
    document = run(f"stats {{star}} {{{state}}} --near-zero 0.1 --json").json
    leaves = [row["name"] for row in document["layers"]]
    assert "block1" not in leaves
    assert [row["order"] for row in document["layers"]] == sorted(row["order"] for row in document["layers"])
    for row in document["layers"]:
        x = truth[row["name"], row["call"]]
        assert row["shape"] == list(x.shape)
        assert row["numel"] == x.size
        assert is_true(row["mean"], x.mean())
        assert is_true(row["std"], x.std())
        assert is_true(row["mad"], np.abs(x - x.mean()).mean())
        assert is_true(row["rms"], np.sqrt((x**2).mean()))
        assert (row["min"], row["max"]) == (x.min(), x.max())
        assert is_true(row["zero_fraction"], (x == 0).mean())
        assert is_true(row["near_zero_fraction"], (np.abs(x) < np.float32(0.1)).mean())
        assert row["channels"] == x.shape[1]
        assert row["dead_channels"] == (np.abs(x).reshape(*x.shape[:2], -1).sum((0, 2)) == 0).sum()
        assert sum(row["histogram"]["counts"]) == x.size
        assert (row["nan_count"], row["inf_count"]) == (0, 0)


def test_batches_of_any_size_give_the_same_numbers(run, pictures):
    whole, pairs = (
        run(f"stats {pictures} {{healthy}} --size 64 --batch {n} -l type:Conv2d --json -q").json
        for n in (5, 2)
    )
    assert whole["images"] == pairs["images"] == 5
    assert [row["shape"][0] for row in (whole["layers"][0], pairs["layers"][0])] == [5, 2]
    for one, other in zip(whole["layers"], pairs["layers"], strict=True):
        for key in ["mean", "std", "mad", "min", "max", "rms", "zero_fraction", "near_zero_fraction"]:
            assert other[key] == close(one[key], A_NETWORK, scale=0.01)
        for key in ["name", "numel", "nan_count", "inf_count", "channels", "dead_channels"]:
            assert other[key] == one[key]
        assert sum(other["histogram"]["counts"]) == sum(one["histogram"]["counts"]) == one["numel"]


def test_only_what_the_columns_need_is_computed(run):
    row = run("stats {star} {tiny} -l bn --columns name,mean,std --json").json["layers"][0]
    assert row["mean"] is not None
    for key in ["mad", "zero_fraction", "near_zero_fraction", "dead_channels", "histogram"]:
        assert row[key] is None
    outcome = run("stats {star} {tiny} -l bn --columns dead,mad,name")
    assert list(outcome.rows[0]) == ["dead", "mad", "name"]
    assert "" not in outcome.rows[0].values()


def test_near_zero_is_the_threshold_that_was_asked_for(run):
    shares = [
        float(run(f"stats {{star}} {{healthy}} -l bn --near-zero {t}").column("near_zero")[0])
        for t in (0, 0.01, 1, 1e9)
    ]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert "|x| < 0.01\n" in run("stats {star} {healthy} -l bn --near-zero 0.01 --format table").out


def test_values_that_are_not_finite_are_counted(run, cwd):
    x = torch.zeros(1, 3, 64, 64)
    x[0, 0, 0, 0], x[0, 1, 0, 0], x[0, 2, 0, 0] = torch.nan, torch.inf, -torch.inf
    torch.save(x, cwd / "x.pt")
    (cwd / "same.py").write_text(
        "from torch import nn\ndef same():\n    return nn.Sequential(nn.Identity())\n"
    )
    line = "stats x.pt --model same.py:same -w none"
    (row,) = run(f"{line} --json").json["layers"]
    assert (row["nan_count"], row["inf_count"], row["numel"]) == (1, 2, x.numel())
    assert (row["mean"], row["std"], row["min"], row["max"], row["zero_fraction"]) == (0, 0, 0, 0, 1)
    table = run(f"{line} --format table").out
    assert "NaN" in table
    assert "inf" in table
    assert "NaN" not in run("stats {star} {tiny} -l bn --format table").out


def test_standard_input(run, samples, monkeypatch):
    expected = run("stats {star} {tiny} -l bn").rows
    content = io.TextIOWrapper(io.BytesIO((samples / "star.png").read_bytes()))
    monkeypatch.setattr(sys, "stdin", content)
    outcome = run("stats - {tiny} -l bn --json")
    assert outcome.json["input"]["files"] == ["-"]
    assert [str(row["mean"]) for row in outcome.json["layers"]] == [row["mean"] for row in expected]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    outcome = run("stats - {tiny}", expect=4)
    assert "error: '-' is empty" in outcome.err


def test_a_torchvision_name_without_network_gets_random_weights_and_a_warning(run):
    outcome = run("stats {star} --model squeezenet1_1 -l features.0 --json")
    assert outcome.json["model"]["weights"] == {
        **outcome.json["model"]["weights"],
        "requested": "auto",
        "resolved": "random",
    }
    assert "warning: 'squeezenet1_1' has random weights" in outcome.err
    explicit = run("stats {star} --model squeezenet1_1 -w none -l features.0 --json")
    assert "warning" not in explicit.err
    assert explicit.json["layers"] == outcome.json["layers"]


def test_quiet_leaves_the_result_and_the_warnings(run):
    loud, quiet = (
        run(f"stats {{star}} --model squeezenet1_1 -l features.0 {option}") for option in ("", "-q")
    )
    assert quiet.out == loud.out
    assert quiet.err == "".join(
        line for line in loud.err.splitlines(keepends=True) if line.startswith("warning: ")
    )
    assert (
        loud.err.splitlines()[0] == "device: cpu (auto; no cuda, mps or xpu here)"
        or torch.cuda.is_available()
    )


def test_the_table_of_attention_has_a_row_a_head(run, cwd):
    (cwd / "own.py").write_text(
        "from torchvision.models import VisionTransformer\n"
        "def vit():\n"
        "    return VisionTransformer(64, 16, 2, 2, 16, 32, num_classes=3)\n"
    )
    line = "stats {star} {harbour} -m own.py:vit -w none --size 64 --table attention"
    rows = run(f"{line} --json").json["attention"]
    assert [(row["call"], row["head"]) for row in rows] == [(0, 0), (0, 1)] * 2
    assert [row["ceiling"] for row in rows] == close([float(np.log(17))] * 4)
    assert all(0 < row["entropy_min"] <= row["entropy"] <= row["entropy_max"] < np.log(17) for row in rows)
    table = run(line)
    assert table.column("name") == [row["name"] for row in rows]
    assert table.column("share") == [str(row["entropy"] / row["ceiling"]) for row in rows]
    assert run("stats {star} -m own.py:vit -w none --size 64 --json").json["attention"] == []
    refused = run("stats {star} -m own.py:vit -w none --size 64 --table attention --columns mean", expect=2)
    assert "mean" in refused.err
    refused = run("stats {star} -m own.py:vit -w none --size 64 --table attention -l conv_proj", expect=4)
    assert "error: no attention in the selected layers" in refused.err


def test_quantiles_need_no_other_figure_and_are_computed_only_on_request(run):
    rows = run("stats {star} {healthy} --columns p50 --json -q").json["layers"]
    assert all(list(row["quantiles"]) == ["p50"] for row in rows)
    assert {row["mad"] for row in rows} == {None}
    assert {row["quantiles"] for row in run("stats {star} {healthy} --json -q").json["layers"]} == {None}


@pytest.mark.parametrize("key", ["p101", "q50", "p", "p-1"])
def test_what_is_not_a_quantile_is_an_unknown_column(run, key):
    said = run(f"stats {{star}} {{healthy}} --columns name,{key}", expect=2).err
    assert "unknown column" in said
    assert ",p50," in said


def test_dead_channels_by_index(run, outputs, samples):
    truth = outputs(samples / "star.png", checkpoint="sick.safetensors")
    document = run("stats {star} {sick} --table channels --json -q").json
    for row in document["layers"]:
        by_channel = np.moveaxis(truth[row["name"], row["call"]], 1, 0).reshape(row["channels"], -1)
        assert row["channel_zeros"] == (by_channel == 0).sum(1).tolist()
        assert row["dead_indices"] == np.flatnonzero(~by_channel.any(1)).tolist()
    once = sum(row["dead_channels"] - row["dead_inherited"] for row in document["layers"])
    table = run("stats {star} {sick} --table channels --format table")
    assert f"dead channels   {once} (zero at every position of every image)" in table.out
    assert "from a single image" in table.out
    relu = next(row for row in document["layers"] if row["name"] == "relu")
    assert relu["dead_channels"] == 14
    assert "0..13" in table.out
    shares = run("stats {star} {sick} --table channels --columns name,zeros,which --format tsv").column(
        "zeros"
    )
    assert len(shares[0].split(",")) == 16
