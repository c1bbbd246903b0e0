"""`modelscope prune`: the report agrees with itself, with torch, and with the file it saves."""

import hashlib
import json

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

    assert run(f"predict {TWO} --top 5 --json").json["predictions"] == document["before"]
    again = "predict {star} {composition} -m squeezenet1_1 -c cut.safetensors --top 5 --json"
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
