"""`modelscope prune`: the report agrees with itself, with torch, and with the file it saves."""

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn.utils import prune as torch_prune

TWO = "{star} {composition} {squeezenet}"


def test_before_is_what_predict_says_and_after_what_the_saved_file_says(run, cwd, samples):
    source = samples / "shapes_squeezenet1_1.safetensors"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    document = run(f"prune {TWO} --amount 0.4 --sweep '' --save-weights cut.safetensors --json").json
    assert hashlib.sha256(source.read_bytes()).hexdigest() == digest
    assert document["file"] == "cut.safetensors"
    assert document["file_bytes"] == (cwd / "cut.safetensors").stat().st_size
    assert document["file_bytes"] >= source.stat().st_size  # zeros make nothing smaller

    assert run(f"predict {TWO} --json").json["predictions"] == document["before"]
    again = "predict {star} {composition} -m squeezenet1_1 -c cut.safetensors --json"
    assert run(again).json["predictions"] == document["after"]  # labels and all, bit for bit

    own, cut = load_file(source), load_file(cwd / "cut.safetensors")
    assert own.keys() == cut.keys()
    for name, weight in own.items():
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(weight)
        if weight.ndim > 1:
            torch_prune.l1_unstructured(layer, "weight", 0.4)
        assert torch.equal(layer.weight, cut[name])
    with safe_open(cwd / "cut.safetensors", "pt") as file:
        pruning = json.loads(file.metadata()["pruning"])
    assert (pruning["amount"], pruning["method"], pruning["zeros"]) == (
        0.4,
        "l1",
        document["totals"]["zeros"],
    )
    assert pruning["sha256_of_source"] == digest

    twice = run("prune {star} -m squeezenet1_1 -c cut.safetensors --amount 0.4 --sweep '' --json").json
    assert twice["totals"]["zeros_before"] == twice["totals"]["zeros"] == document["totals"]["zeros"]
    assert twice["sweep"][0]["max_logit_change"] == 0


@pytest.mark.parametrize("model", ["mobilenet_v3_small -w none", "{TINY} -w none --dtype bfloat16"])
def test_saved_weights_load_again(run, cwd, model):
    small = "--input-shape 1,3,64,64 --sweep ''"
    run(f"prune -m {model} {small} --save-weights cut.safetensors --global")
    model = model.replace(" -w none", "")
    document = run(f"prune -m {model} {small} -c cut.safetensors --amount 0 --json").json
    assert document["totals"]["zeros_before"] >= 0.29 * document["totals"]["numel"]


def test_zero_and_nothing_more(run):
    (row,) = run("prune {star} {healthy} --amount 0 --sweep 0").rows
    assert row == {
        "amount": "0.0",
        "sparsity": "0.0",
        "zeros": "0",
        "agreement": "1.0",
        "kl_divergence": "0.0",
        "max_logit_change": "0.0",
    }


def test_channels_by_their_activation(run):
    line = "prune {star} {harbour} {healthy} --by-channel --sweep '' --json"
    by_activation = run(f"{line} --method activation --layer conv --batch 1").json
    assert by_activation["structured"]
    for row in by_activation["layers"]:
        n_channels = row["shape"][0]
        assert row["zeros"] == round(0.3 * n_channels) * row["numel"] // n_channels


def test_an_attention_keeps_what_is_not_seen(run):
    line = "prune {star} -m vit_b_16 -w none --num-classes 4 --method activation --by-channel --sweep ''"
    outcome = run(f"{line} --layer 'encoder.layers.encoder_layer_0' --json")
    assert "not pruned, because the output of their layers was not observed: 2 (" in outcome.err
    rows = {f"{row['name'].rpartition('_0.')[2]}.{row['parameter']}": row for row in outcome.json["layers"]}
    assert (
        rows["self_attention.in_proj_weight"]["zeros"] == rows["self_attention.out_proj.weight"]["zeros"] == 0
    )
    assert rows["mlp.0.weight"]["zeros"] == round(0.3 * 3072) * 768
    # Without pretrained weights its head is zero.
    assert [notice["code"] for notice in outcome.json["warnings"]] == ["unranked_weights", "undecided"]


def test_nothing_is_left_of_a_run_that_fails(run, cwd):
    code = "from torch import nn\nclass Maps(nn.Conv2d):\n"
    (cwd / "maps.py").write_text(
        f"{code}    def forward(self, x):\n        return super().forward(x).argmax(1)\n"
    )
    before = list(cwd.iterdir())
    line = "prune {star} -m maps.py:Maps --model-arg in_channels=3 --model-arg out_channels=4"
    outcome = run(f"{line} --model-arg kernel_size=3 --save-weights cut.safetensors", expect=4)
    assert "the model returns tensors of int64, which cannot be compared" in outcome.err
    assert [file for file in cwd.iterdir() if file.name != "__pycache__"] == before
