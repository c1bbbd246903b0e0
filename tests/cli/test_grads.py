"""`modelscope grads`: the tables, the folder it leaves, and what it says."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tolerance import A_NETWORK, close

FIGURES = {"grad_norm", "grad_mean", "grad_std", "grad_abs_max"}
PARAMETER = FIGURES | {"name", "layer", "shape", "numel", "trainable", "grad_min", "grad_max"}
PARAMETER |= {"zero_fraction", "nan_count", "inf_count", "weight_norm", "grad_to_weight"}
PARAMETER |= {"norm_before_clip", "clipped_fraction"}
FILES = ["activations.csv", "gradient_flow.png", "parameters.csv", "report.html", "report.json"]


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def by_hand(loaded, samples):
    """Return a function that gives the loss of the healthy sample model for one image, and all its gradients."""

    def differentiate(name="star.png", target=None):
        module, args = loaded(
            name,
            model=f"{samples}/tiny_resnet.py:TinyResNet",
            checkpoint=samples / "tiny_resnet.safetensors",
        )
        scores = module(*args)
        label = scores.argmax(1) if target is None else torch.tensor([target])
        parameters = dict(module.named_parameters())
        loss = F.cross_entropy(scores, label)
        return loss.item(), dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))

    return differentiate


def test_the_table_is_what_autograd_gives(run, by_hand):
    loss, grads = by_hand(target=3)
    outcome = run("grads {star} {healthy} -t 3 --no-save")
    assert outcome.column("name") == list(grads)
    for row, grad in zip(outcome.rows, grads.values(), strict=True):
        assert float(row["norm"]) == close(grad.double().norm().item())
        assert float(row["min"]) == grad.min().item()
        assert float(row["max"]) == grad.max().item()
        assert float(row["zero"]) == (grad == 0).double().mean().item()
        assert row["shape"] == "x".join(map(str, grad.shape))
    document = run("grads {star} {healthy} -t 3 --no-save --json").json
    assert document["loss"]["value"] == close(loss)
    assert document["loss"]["target"].startswith("3")


def test_several_images_are_several_passes(run, by_hand):
    pictures = ("star.png", "harbour.jpg", "composition.jpg")
    each = [by_hand(name)[1] for name in pictures]
    document = run("grads {star} {harbour} {composition} {healthy} --no-save --json").json
    assert (document["passes"], document["images"]) == (3, 3)
    for row in document["parameters"]:
        raw = np.stack([grads[row["name"]].double().numpy() for grads in each])
        assert row["grad_norm"] == close(np.linalg.norm(raw.mean(0)), A_NETWORK)
        assert row["noise"] == close(np.sqrt(raw.var(0, ddof=1).sum()), A_NETWORK)
    together = run("grads {star} {harbour} {composition} {healthy} --no-save --json --batch 3").json
    assert (together["passes"], together["images"]) == (1, 3)
    for row, one in zip(together["parameters"], document["parameters"], strict=True):
        assert row["noise"] is None
        assert row["grad_norm"] == close(one["grad_norm"], 10 * A_NETWORK)


def test_a_fresh_head_is_fine_tuned(run):
    line = (
        "grads -m resnet18 -w none --size 64 --train-only fc --num-classes 10 --mode train --no-save --json"
    )
    outcome = run(line)
    document = outcome.json
    trained = [row["name"] for row in document["parameters"] if row["trainable"]]
    assert trained == ["fc.weight", "fc.bias"]
    assert document["totals"]["trainable_params"] == 5130
    assert document["totals"]["frozen_params"] == 11_689_512 - 513_000
    saving = document["saving"]
    assert saving["kept_bytes"] < saving["kept_bytes_unfrozen"] / 100
    assert saving["backward_ms"] < saving["backward_ms_unfrozen"]
    assert len(document["batch_norm"]) == 20
    assert "20 frozen batch norms still update their running statistics" in outcome.err
    shown = run(line.replace("--json", "-f table")).out
    assert "freezing saves" in shown
    assert "5,130 parameters" in shown


NAN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3))
        nn.init.constant_(self[0].bias, torch.nan)
"""


def test_a_loss_that_is_nan_is_said_and_strict_json(run, cwd):
    (cwd / "nan.py").write_text(NAN)
    outcome = run("grads -m nan.py:Net --json")
    assert "warning: the loss is nan, so no gradient is meaningful\n" in outcome.err
    document = outcome.json
    assert document["loss"]["value"] is None
    assert {row["mark"] for row in document["parameters"]} == {"non-finite"}
    assert [row["nan_count"] for row in document["parameters"]] == [12, 3]
    assert names(cwd / "runs" / "grads-nan.py-Net") == FILES  # drawn and written all the same
