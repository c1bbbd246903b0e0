"""Commands give on an accelerator what they give on the CPU, within the rounding of the dtype."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from stand_in_runs import Python

ROUNDING = {"float32": 1e-4, "bfloat16": 2**-5}  # relative, after the operations of a small network
# What says where and when a document was made.
ELSEWHERE = {"argv", "device", "elapsed_ms", "seconds", "images_per_second", "path", "sha256", "fingerprint"}

MODEL = ("demo/tiny_resnet.py:TinyResNet", "--checkpoint", "demo/tiny_resnet.safetensors")
INPUTS = {
    "image": ("demo/star.png",),
    "folder": ("demo/shapes/star", "demo/shapes/ring"),
    "noise": ("--input-shape", "2,3,48,48"),
}
COMMANDS = {
    "diff": ("diff", *MODEL, "--b-checkpoint", "demo/sick.safetensors"),
}


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


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_what_it_gives_on_the_cpu(command: Python, name: str, dtype: str, given: str) -> None:
    assert command("demo").code == 0
    words = (*COMMANDS[name], *INPUTS[given], "--dtype", dtype, "--json")
    there = command(*words, "--device", "stand")
    here = command(*words, "--device", "cpu")
    assert there.code == here.code, there.err
    assert list(differences(here.json, there.json, ROUNDING[dtype])) == []
