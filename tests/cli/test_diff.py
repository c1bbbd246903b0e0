"""`modelscope diff`: what A and B may be, what is found, and the exit code that a build can fail on."""

import pytest


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
        assert "both give an input" in outcome.err


def test_one_module_object_cannot_be_both(run, cwd, monkeypatch):
    (cwd / "held.py").write_text("from torch import nn\nnet = nn.Sequential(nn.Conv2d(3, 4, 3))\n")
    monkeypatch.syspath_prepend(cwd)
    outcome = run("diff held:net --b-dtype bfloat16 --input-shape 1,3,8,8", expect=4)
    assert "'held:net' returns the same module each time" in outcome.err
    # A file is run anew, so it makes two.
    run("diff held.py:net --b-dtype bfloat16 --input-shape 1,3,8,8 --tolerance 0.1", expect=None)
