"""Commands give on an accelerator what they give on the CPU, within the rounding of the dtype."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from stand_in_runs import ROUNDING, Compare

MODEL = ("demo/tiny_resnet.py:TinyResNet", "--checkpoint", "demo/tiny_resnet.safetensors")
# The folder has 6 images, two batches.
INPUTS = {
    "image": ("demo/star.png", "--size", "48"),
    "folder": ("demo/shapes/star", "demo/shapes/ring", "--size", "48", "--batch", "4"),
    "noise": ("--input-shape", "2,3,48,48"),
}
COMMANDS = {
    "summary": ("summary", *MODEL),
    "stats": ("stats", *MODEL),
    "grads": ("grads", *MODEL, "--out", "out"),
    "predict": ("predict", *MODEL),
    "featuremaps": ("featuremaps", *MODEL, "--layer", "block3", "--out", "out"),
    "explain": ("explain", *MODEL, "--out", "out"),
    "ablate": ("ablate", *MODEL, "--out", "out"),
    "diff": ("diff", *MODEL, "--b-checkpoint", "demo/sick.safetensors"),
    "check": ("check", *MODEL),
}
# Receipts are tried with one image; noise is the same input to every command, and maps are of one image.
RUNS = [
    *((name, "image", "bfloat16") for name in COMMANDS),
    *((name, "folder", "float32") for name in COMMANDS if name != "featuremaps"),
    *((name, "noise", "bfloat16") for name in ("stats", "grads", "check", "diff")),
    ("featuremaps", "image", "float32"),
]


@pytest.mark.parametrize(("name", "given", "dtype"), RUNS)
def test_a_command_gives_what_it_gives_on_the_cpu(
    compare: Compare, name: str, given: str, dtype: str
) -> None:
    receipt = ("--receipt", "none") if (name, given) == ("explain", "folder") else ()
    words = (*COMMANDS[name], *INPUTS[given], *receipt, "--dtype", dtype, "--json", "--device")
    compare(*words, rounding=ROUNDING[dtype])


def test_diff_finds_another_order_of_classes_on_another_device(compare: Compare, demo: Path) -> None:
    weights = load_file(demo / "tiny_resnet.safetensors")
    for name in ("head.weight", "head.bias"):
        weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, demo / "flipped.safetensors")
    words = (*COMMANDS["diff"][:-1], "demo/flipped.safetensors", "--b-device", "cpu", *INPUTS["noise"])
    compare(*words, "--json", "--device", rounding=ROUNDING["float32"])


@pytest.mark.parametrize("words", [("lrfind", "--steps", "12"), ("train", "--steps", "4")])
def test_a_training_is_that_of_the_cpu(compare: Compare, words: tuple[str, ...]) -> None:
    compare(
        *words,
        MODEL[0],
        "--size",
        "32",
        "--pictures",
        "60",
        "--out",
        "out",
        "--json",
        "--device",
        rounding=1e-3,
    )
