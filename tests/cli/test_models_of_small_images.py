"""A model that takes no images of 224 x 224 runs at the usual size that it takes, and this is told."""

import pytest

CLASS = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {layers}

    def forward(self, x):
        {forward}
"""
LENET = (
    "self.conv1, self.conv2 = nn.Conv2d({c}, 6, 5), nn.Conv2d(6, 16, 5); self.fc = nn.Linear({n}, 10)",
    "x = F.max_pool2d(self.conv1(x).relu(), 2); x = F.max_pool2d(self.conv2(x).relu(), 2); return self.fc({flat})",
)
PERCEPTRON = "self.fc1, self.fc2 = nn.Linear({n}, 64), nn.Linear(64, 10)"
FLAT = {
    "view": "x.view(-1, {n})",
    "reshape": "x.reshape(len(x), -1)",
    "flatten": "torch.flatten(x, 1)",
    "size": "x.view(x.size(0), -1)",
}


def shape_of_input(document):
    (shape,) = document["input"]["shape"]
    return shape


def written(cwd, layers, forward):
    (cwd / "net.py").write_text(CLASS.format(layers=layers, forward=forward))


def lenet(cwd, channels, n, flat):
    written(cwd, *(part.format(c=channels, n=n, flat=FLAT[flat].format(n=n)) for part in LENET))


@pytest.mark.parametrize(
    ("channels", "n", "side", "flat"),
    [(1, 256, 28, "view"), (3, 400, 32, "flatten"), (3, 2704, 64, "size"), (1, 7056, 96, "reshape"),
     (3, 400, 32, "view"), (1, 2704, 64, "view")],
)  # fmt: skip
def test_convolutions_and_a_linear_layer(run, cwd, channels, n, side, flat):
    lenet(cwd, channels, n, flat)
    done = run("stats net.py:Net --json")
    assert f"size: {side} x {side}, because forward() fails at 224 x 224" in done.err
    assert shape_of_input(done.json) == [1, channels, side, side]


@pytest.mark.parametrize(("n", "side"), [(784, 28), (3072, 32), (12288, 64), (4096, 64)])
def test_linear_layers_alone(run, cwd, n, side):
    written(cwd, PERCEPTRON.format(n=n), "return self.fc2(self.fc1(x.flatten(1)).relu())")
    done = run("predict net.py:Net {star} --json")
    assert f"size: {side} x {side}" in done.err
    assert shape_of_input(done.json)[1:] == [n // side**2, side, side]
    noise = run("stats net.py:Net --json")  # which needs no image
    assert shape_of_input(noise.json) == [1, n]
    assert "size:" not in noise.err


@pytest.mark.parametrize(
    "line",
    ["summary net.py:Net", "grads net.py:Net {star}", "explain net.py:Net {star} --receipt none",
     "check net.py:Net --select MS1", "featuremaps net.py:Net {star}", "diff net.py:Net {star} --b-dtype bfloat16"],
)  # fmt: skip
def test_in_every_command(run, cwd, line):
    lenet(cwd, 1, 256, "view")
    assert "size: 28 x 28" in run(line, expect=None).err


@pytest.mark.parametrize("words", ["--size 32", "--input-shape 1,1,28,28", "--input x=1,1,28,28"])
def test_what_is_typed_wins(run, cwd, words):
    lenet(cwd, 1, 256 if "28" in words else 400, "view")
    assert "size: " not in run(f"stats net.py:Net {words}").err


def test_the_usual_size_is_kept_where_it_fits(run, cwd):
    written(cwd, "self.conv = nn.Conv2d(3, 10, 3)", "return self.conv(x).mean((2, 3))")
    done = run("stats net.py:Net --json")
    assert "size: " not in done.err
    assert shape_of_input(done.json) == [1, 3, 224, 224]


def test_a_size_that_nobody_uses_is_only_a_hint(run, cwd):
    lenet(cwd, 1, 16 * 54 * 54, "flatten")  # 53 for 224: rather a mistake
    assert "--size 228" in run("stats net.py:Net", expect=4).err


def test_rows_that_are_not_images_are_another_size(run, cwd):
    layers = "self.conv, self.fc = nn.Conv2d(1, 4, 1), nn.Linear(3136, 10)"
    written(cwd, layers, "return self.fc(self.conv(x).view(-1, 3136))")  # 224 x 224 gives 64 rows
    assert "size: 28 x 28" in run("stats net.py:Net").err


@pytest.mark.parametrize("head", ["", "self.fc = nn.Linear(4, 10)"])
def test_patches_as_rows_do_not_change_the_size(run, cwd, head):
    forward = "x = self.conv(x).flatten(2).transpose(1, 2).reshape(-1, 4); return "
    written(cwd, f"self.conv = nn.Conv2d(3, 4, 16, 16); {head}", forward + ("self.fc(x)" if head else "x"))
    assert "size: " not in run("stats net.py:Net").err


def test_a_forward_that_needs_values_is_left_as_it_is(run, cwd):
    written(
        cwd, "self.conv = nn.Conv2d(3, 4, 3)", "return self.conv(x).mean((2, 3)) * (1 + (x.sum().item() > 0))"
    )
    assert "size: " not in run("stats net.py:Net").err
