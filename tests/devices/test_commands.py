"""Commands give on an accelerator what they give on the CPU, within the rounding of the dtype."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from stand_in_runs import Python

ROUNDING = {"float32": 1e-4, "bfloat16": 2**-5}  # relative, after the operations of a small network
# What says where and when a document was made.
ELSEWHERE = {"argv", "device", "elapsed_ms", "seconds", "images_per_second", "feeding", "out_dir"}

MODEL = ("demo/tiny_resnet.py:TinyResNet", "--checkpoint", "demo/tiny_resnet.safetensors")
INPUTS = {
    "image": ("demo/star.png", "--size", "48"),
    "folder": ("demo/shapes/star", "demo/shapes/ring", "--size", "48"),
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
    "prune": ("prune", *MODEL, "--sweep", "0.5", "--out", "out"),
    "diff": ("diff", *MODEL, "--b-checkpoint", "demo/sick.safetensors"),
    "check": ("check", *MODEL),
}
# Inputs that a command refuses, or of which it prints no single document.
NOT_TAKEN = {"predict": ["noise"], "featuremaps": ["folder"]}


def differences(a: Any, b: Any, rounding: float, path: str = "") -> Iterator[str]:
    """Yield the paths at which two documents differ by more than rounding, with both values."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a.keys() - ELSEWHERE:
            yield from differences(a[key], b[key], rounding, f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for n, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, rounding, f"{path}[{n}]")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=rounding, abs_tol=rounding * 1e-2):
            yield f"{path}: {a} and {b}"
    elif a != b:
        yield f"{path}: {a} and {b}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run(
        [sys.executable, "-m", "modelscope_cli", "demo"], cwd=folder, check=True, capture_output=True
    )
    return folder / "demo"


RUNS = [
    (name, given, dtype)
    for given, dtype in (
        ("image", "float32"),
        ("image", "bfloat16"),
        ("folder", "float32"),
        ("noise", "bfloat16"),
    )
    for name in COMMANDS
    if given not in NOT_TAKEN.get(name, ())
]


Compare = Callable[..., None]


@pytest.fixture
def compare(command: Python, demo: Path, tmp_path: Path) -> Compare:
    """Return a function that runs a command on both devices and compares what it prints as JSON."""

    def compare_it(*words: str, rounding: float) -> None:
        results = []
        for device in ("cpu", "stand"):
            folder = tmp_path / device
            folder.mkdir()
            (folder / "demo").symlink_to(demo)
            results.append(command(*words, device, cwd=folder))
        here, there = results
        assert there.code == here.code, there.err
        assert list(differences(here.json, there.json, rounding)) == []

    return compare_it


@pytest.mark.parametrize(("name", "given", "dtype"), RUNS)
def test_a_command_gives_what_it_gives_on_the_cpu(
    compare: Compare, name: str, given: str, dtype: str
) -> None:
    words = (*COMMANDS[name], *INPUTS[given], "--dtype", dtype, "--json", "--device")
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
    compare(*words, MODEL[0], "--size", "32", "--out", "out", "--json", "--device", rounding=1e-3)


SCRIPT = """
import sys
import torch
from tiny_resnet import TinyResNet

torch.manual_seed(0)
device = sys.argv[1]
model = TinyResNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
for _ in range(4):
    images, labels = torch.randn(8, 3, 32, 32).to(device), torch.randint(10, (8,)).to(device)
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_watch_of_a_script_records_what_it_records_on_the_cpu(compare: Compare, demo: Path) -> None:
    (demo / "script.py").write_text(SCRIPT)
    compare("watch", "--every", "1", "--out", "out", "--json", "demo/script.py", rounding=1e-3)
