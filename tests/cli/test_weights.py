"""`modelscope weights`: what is in a checkpoint, against torch, NumPy and safetensors."""

import os
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tolerance import close
from torch.distributions import Normal


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(0)
    tied = torch.randn(4, 6, generator=generator)
    broken = torch.randn(50, generator=generator)
    broken[:3] = torch.tensor([np.nan, np.inf, -np.inf])
    return {
        "encoder.embed": tied,
        "encoder.bias": torch.zeros(5),
        "decoder.embed": tied,
        "decoder.broken": broken,
        "decoder.half": torch.randn(7, 3, generator=generator).half(),
        "decoder.steps": torch.tensor(12),
        "decoder.turned": torch.randn(3, 8, generator=generator).T,
        "nothing": torch.empty(0),
        "spectrum": torch.ones(3, dtype=torch.complex64),
    }


@pytest.fixture
def checkpoint(state, cwd):
    torch.save({"model": state, "epoch": 3, "optimizer": {"lr": 0.1}}, "best.pth")
    return "best.pth"


def test_tensors_whose_values_are_not_read_are_not_said_to_be_finite(run, cwd):
    kinds = {"c": torch.full((1,), torch.nan * 1j), "s": torch.tensor([0, torch.nan]).to_sparse()}
    kinds |= {"w": torch.ones(3), "none": torch.ones(0)}
    for names, said in {
        "cw": "no NaN, no infinity; 1 of 2 tensors not checked\n",
        "csw": "no NaN, no infinity; 2 of 3 tensors not checked\n",
        "s": "float32; 1 of 1 tensor not checked\n",
        "w": "float32; no NaN, no infinity\n",
    }.items():
        torch.save({name: kinds[name] for name in names}, "some.pt")
        assert said in run("weights some.pt --stats -f table").out


def test_statistics_are_numpys(run, state, checkpoint):
    for row in run(f"weights {checkpoint} --stats --json").json["tensors"]:
        tensor = state[row["name"]]
        if tensor.is_complex() or not tensor.numel():
            assert row["problem"]
            assert row["mean"] is None
            continue
        values = tensor.double().numpy()
        finite = values[np.isfinite(values)]
        expected = {
            "mean": finite.mean(),
            "std": finite.std(),
            "min": finite.min(),
            "max": finite.max(),
            "abs_max": np.abs(finite).max(),
            "zero_fraction": (values == 0).mean(),
            "nan_count": np.isnan(values).sum(),
            "inf_count": np.isinf(values).sum(),
        }
        assert {key: row[key] for key in expected} == close(expected, scale=0.01)


def test_broken_values_are_told_beside_the_rows(run, checkpoint):
    told = run(f"weights {checkpoint} --stats").err
    assert re.search(r"values: decoder.broken: \d+ NaN or infinite", told)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("1.running_var", -0.2, "a variance of -0.2"),
        ("0.weight", 1e6, "one of 1e+06 beside far smaller ones"),
        ("0.weight", -3e7, "one of -3e+07 beside far smaller ones"),
        ("0.weight", 2.0, ""),  # twenty times the others is seen in sound models
        ("1.bias", 1e6, ""),  # all others are zero: a choice of one
        ("1.running_mean", -0.2, ""),
    ],
)
def test_values_that_no_sound_model_has_are_told(run, tmp_path, name, change, words):
    state = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16)).state_dict()
    state[name].view(-1)[3] = change
    torch.save(state, tmp_path / "w.pt")
    told = run(f"weights {tmp_path}/w.pt --stats").err
    assert (f"values: {name}: {words}" in told) is bool(words)
    assert ("values:" in told) is bool(words)


def test_a_tree_adds_up(run, state, checkpoint):
    rows = {row["name"]: row for row in run(f"weights {checkpoint} --depth 1").rows}
    assert list(rows) == ["encoder", "decoder", "nothing", "spectrum"]
    assert int(rows["encoder"]["numel"]) == 29
    total = run(f"weights {checkpoint} --json").json["totals"]
    assert sum(int(row["bytes"]) for row in rows.values()) == total["bytes"]
    assert sum(int(row["tensors"]) for row in rows.values()) == total["tensors"]
    assert "encoder.embed" in run(f"weights {checkpoint} --depth 2").column("name")


def test_convert_writes_what_safetensors_reads(run, state, checkpoint):
    outcome = run(f"weights {checkpoint} --convert safe.safetensors")
    assert "wrote safe.safetensors" in outcome.err
    copy = load_file("safe.safetensors")
    assert copy.keys() == state.keys()
    for name, tensor in state.items():
        assert copy[name].dtype == tensor.dtype
        assert torch.equal(torch.nan_to_num(copy[name]), torch.nan_to_num(tensor))
    run(f"weights {checkpoint} -l encoder --convert part.safetensors")
    assert load_file("part.safetensors").keys() == {"encoder.embed", "encoder.bias"}


def test_convert_runs_no_foreign_code_and_names_it(run, state, cwd):
    torch.save({"state_dict": state, "args": Namespace(lr=1), "noise": Normal(0.0, 1.0)}, "foreign.pt")
    outcome = run("weights foreign.pt --convert safe.safetensors")
    assert (
        "unknown classes, no calls: an unrestricted torch.load would import torch.distributions.normal.Normal"
        in outcome.err
    )
    assert load_file("safe.safetensors").keys() == state.keys()


@pytest.mark.filterwarnings("ignore")
def test_convert_refuses_what_only_torch_can_read(run, cwd):
    torch.save({"q": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, "quantized.pt")
    assert "'q' is quantized" in run("weights quantized.pt --convert safe.safetensors", expect=4).err
    assert sorted(os.listdir()) == ["quantized.pt"]
    assert "quantized: its values are not read" in run("weights quantized.pt --stats --format table").out
