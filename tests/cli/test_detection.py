"""Detection models on one image: every hint leads to a result, and random weights are said to be random."""

import shlex

import pytest
from pasting import pasted
from torchvision.models import get_model

SSD = (
    "ssdlite320_mobilenet_v3_large -w none"  # its last feature map is 1 x 1, which batch norm cannot train on
)
FEW_BOXES = "fasterrcnn_mobilenet_v3_large_320_fpn -w none"  # which detects nothing


@pytest.mark.parametrize("line", [
    f"check {SSD} {{star}}",
    f"grads {FEW_BOXES} {{star}} --mode eval --no-save",
    *(pytest.param(line, marks=pytest.mark.slow) for line in (
        f"grads {SSD} {{star}} --no-save",
        f"grads {SSD} {{star}} {{harbour}} --no-save",
        f"grads {SSD} {{star}} --mode eval --no-save",
        f"grads {SSD} {{star}} --mode eval --target 2 --no-save",
        f"grads {FEW_BOXES} {{star}} --mode train --target box:0 --no-save",
    )),
])  # fmt: skip
def test_hints_do_not_lead_in_a_circle(run, samples, line):
    typed = line.format(star=samples / "star.png", harbour=samples / "harbour.jpg")
    seen = set()
    while (outcome := run(typed, expect=None)).code not in (0, 1):
        message, _, hint = outcome.err.rpartition("error: ")[2].partition("\n\nhint: ")
        (first, *_) = pasted(hint.strip(), shlex.split(typed), message, {})
        typed = shlex.join(first.line)
        assert typed not in seen
        seen.add(typed)
    assert len(seen) <= 2


def test_statistics_that_saw_no_batch_are_not_said_to_be_of_other_inputs(run):
    rules = {one["code"]: one for one in run(f"check {SSD} {{star}} --mode eval --json").json["rules"]}
    module = get_model("ssdlite320_mobilenet_v3_large", weights=None, weights_backbone=None)
    assert all(not value.any() for name, value in module.named_buffers() if name.endswith("running_mean"))
    assert rules["MS208"]["reason"] == "the batch norms have not seen a batch yet"


def test_what_random_weights_predict_is_said_to_mean_nothing(run):
    words = "random: the predictions say nothing about the images"
    assert words in run(f"predict {SSD} {{star}} -f table").out
    assert words not in run("predict {healthy} {star} -f table").out
