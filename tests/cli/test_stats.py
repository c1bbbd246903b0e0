"""`modelscope stats`: the numbers against NumPy in float64, streaming, and what they reveal."""

import io
import sys

import numpy as np
import pytest
from collected import outputs_of
from PIL import Image
from tolerance import close


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


def test_every_number_is_numpys(run, outputs, samples):
    truth = outputs(samples / "star.png", checkpoint="sick.safetensors")
    document = run("stats {star} {sick} --json").json
    leaves = [row["name"] for row in document["layers"]]
    assert "block1" not in leaves
    assert [row["order"] for row in document["layers"]] == sorted(row["order"] for row in document["layers"])
    for row in document["layers"]:
        x = truth[row["name"], row["call"]]
        assert row["shape"] == list(x.shape)
        assert row["numel"] == x.size
        assert is_true(row["mean"], x.mean())
        assert is_true(row["std"], x.std())
        assert is_true(row["rms"], np.sqrt((x**2).mean()))
        assert (row["min"], row["max"]) == (x.min(), x.max())
        assert is_true(row["zero_fraction"], (x == 0).mean())
        assert is_true(row["near_zero_fraction"], (np.abs(x) < np.float32(0.05)).mean())
        assert row["channels"] == x.shape[1]
        assert row["dead_channels"] == (np.abs(x).reshape(*x.shape[:2], -1).sum((0, 2)) == 0).sum()
        assert sum(row["histogram"]["counts"]) == x.size
        assert (row["nan_count"], row["inf_count"]) == (0, 0)


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
    assert loud.err != quiet.err


@pytest.mark.parametrize("key", ["p101", "q50", "p", "p-1"])
def test_what_is_not_a_quantile_is_an_unknown_column(run, key):
    said = run(f"stats {{star}} {{healthy}} --columns name,{key}", expect=2).err
    assert "unknown column" in said
    assert " p50," in said


@pytest.mark.parametrize(("low", "high", "is_noted"), [
    (0, 255, True), (12, 90, True), (0, 1, False), (-90, 250, False), (0, 300, False),
])  # fmt: skip
def test_values_of_bytes_are_noted(run, cwd, low, high, is_noted):
    np.save("images.npy", np.linspace(low, high, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8))
    told = run("stats {tiny} images.npy").err
    assert (f"values from {low} to {high}: unless the model scales them, divide by 255" in told) == is_noted
