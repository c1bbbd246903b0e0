"""Public functions give of a model on an accelerator what they give of it on the CPU, wherever the images are."""

from pathlib import Path

import pytest
from stand_in_runs import ROUNDING, Python, differences

PROGRAM = """
import copy
import warnings
from safetensors.torch import load_file
import modelscope_cli as ms
from modelscope_cli import testing

sys.path.insert(0, "demo")
from tiny_resnet import TinyResNet

dtype, there, images_at = getattr(torch, sys.argv[1]), *sys.argv[2:]
base = TinyResNet().eval()
base.load_state_dict(load_file("demo/tiny_resnet.safetensors"))
base = base.to(dtype)
changed = copy.deepcopy(base)
with torch.no_grad():
    changed.head.weight.mul_(1.1)
NOISE, STAR, LABELS = torch.randn(4, 3, 48, 48).to(dtype), "demo/star.png", torch.tensor([1, 2, 3, 4])
LOADER = [(NOISE.float(), LABELS)] * 3

def observed(model, x):
    with ms.observe(model, "block*") as seen:
        for _ in range(3):
            model(x.to(next(model.parameters())))
    return seen.record().to_dict()

def hooked(model, x):
    halve = ("forward", "block2", lambda module, args, output: output / 2)
    with ms.hook(model, "zero[3]@conv", "noise=0.1@block1", halve, "grad:scale=2@head") as active:
        scores = model(x.to(next(model.parameters())))
        scores.sum().backward()
    gradient = model.head.weight.grad.float().norm().item()
    return [scores.float().tolist(), gradient, [vars_of(one) for one in active.reports]]

def vars_of(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}

def watched(model, x):
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)
    out = f"watched {next(model.parameters()).device.type}"
    with ms.watch(model, optimizer, every=1, out=out, force=True) as loop:
        for _ in range(4):
            optimizer.zero_grad()
            scores = model(x.to(next(model.parameters())))
            torch.nn.functional.cross_entropy(scores.float(), LABELS.to(scores.device)).backward()
            optimizer.step()
    return loop.record().to_dict()

def asserted(model, x):
    testing.assert_same(model, copy.deepcopy(model), x)
    try:
        testing.assert_same(model, copy.deepcopy(changed).to(next(model.parameters()).device), x)
    except AssertionError as error:
        return str(error)

CALLS = {
    "load": lambda model, x: ms.load(model).info.class_name,
    "summary": lambda model, x: ms.summary(model, x, measure=("field",)),
    "summary of a training step": lambda model, x: ms.summary(
        model, x, train=True, optimizer="sgd").training.peak_bytes,
    "stats": lambda model, x: ms.stats(model, x, batch=2),
    "stats, quantiles": lambda model, x: ms.stats(model, x, columns=["name", "p1", "p50"], batch=2),
    "stats in train mode": lambda model, x: ms.stats(model, x, mode="train", hook="zero@block1"),
    "featuremaps": lambda model, x: ms.featuremaps(model, x[:1], layer="block3"),
    "predict": lambda model, x: ms.predict(model, x, truth=[1, 2, 3, 4], batch=2),
    "doctor": lambda model, x: ms.doctor(model, "demo/shapes/ring", size=48),
    "explain": lambda model, x: ms.explain(model, x[:1]),
    "explain, every method": lambda model, x: ms.explain(model, STAR, method="all", receipt="none", size=48),
    "grads": lambda model, x: ms.grads(model, x, clip_norm=0.1, batch=2),
    "grads of another loss": lambda model, x: ms.grads(model, x, loss="mse", freeze="block1*", mode="train"),
    "ablate": lambda model, x: ms.ablate(model, x, batch=2),
    "ablate channels": lambda model, x: ms.ablate(model, x, method="mean", by_channel=True, layer="block1.conv1"),
    "check": lambda model, x: ms.check(model, x),
    "diff of two models": lambda model, x: ms.diff(
        model, copy.deepcopy(changed).to(next(model.parameters()).device), x),
    "diff of two devices": lambda model, x: ms.diff(model, copy.deepcopy(changed), x),
    "diff of weights": lambda model, x: ms.diff(model, copy.deepcopy(changed)),
    "diff of modes": lambda model, x: ms.diff(model, model, x, b_mode="train"),
    "lrfind": lambda model, x: ms.lrfind(model.float(), LOADER, steps=3),
    "train": lambda model, x: ms.train(model.float(), LOADER, steps=3),
    "observe": observed,
    "hook": hooked,
    "watch": watched,
    "testing": asserted,
}
found = {}
for name, call in CALLS.items():
    for device, at in (("cpu", "cpu"), (there, images_at)):
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = call(copy.deepcopy(base).to(device), NOISE.to(at))
        found.setdefault(name, []).append(result.to_dict() if hasattr(result, "to_dict") else result)
print(json.dumps(found))
"""


@pytest.mark.parametrize(("dtype", "settings", "has_images_there"), [
    ("bfloat16", {}, True), ("float32", {"has_float64": False}, False),
])  # fmt: skip
def test_every_function_gives_what_it_gives_on_the_cpu(
    python: Python,
    accelerator: str,
    demo: Path,
    dtype: str,
    settings: dict[str, bool],
    has_images_there: bool,
) -> None:
    there = "stand:1" if accelerator == "stand" else accelerator
    images_at = there if has_images_there else "cpu"
    outcome = python(PROGRAM, dtype, there, images_at, cwd=demo.parent, **settings)
    assert outcome.code == 0, outcome.err
    found = outcome.json
    rounding = max(ROUNDING[dtype], 1e-3)  # of updates that training divides by small numbers
    apart = {name: list(differences(*both, rounding))[:3] for name, both in found.items()}
    assert {name: gaps for name, gaps in apart.items() if gaps} == {}
    assert len(found["stats"][0]["layers"]) > 20
