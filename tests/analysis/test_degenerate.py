"""Scores that say nothing are said to be that, and those of healthy networks are not, however sure they are."""

import shlex

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.run import DEGENERATE
from modelscope_cli.report.registry import view_of
from modelscope_cli.shell.app import run as run_argv

SIZE = 16


class Head(nn.Module):
    """A small network with scores of classes; `scale` multiplies them, `ending` is called with them."""

    def __init__(self, classes=5, scale=1.0, ending=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.head = nn.Linear(8, classes)
        self.scale = scale
        self.ending = ending or nn.Identity()

    def forward(self, x):
        return self.ending(self.scale * self.head(self.conv(x).relu().mean((2, 3))))


class Pixels(nn.Module):
    """Scores of classes for each pixel."""

    def __init__(self, classes=4, scale=1.0, ending=None):
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 1)
        self.scale = scale
        self.ending = ending or nn.Identity()

    def forward(self, x):
        return self.ending(self.scale * self.conv(x))


class Given(nn.Module):
    """Returns the same scores for every image, which depend on it only as far as autograd is concerned."""

    def __init__(self, scores):
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, x):
        return self.scores.expand(len(x), -1) + 0 * x.sum()


class Deep(nn.Module):
    """Batch norms that never saw a batch, and residual branches: the values grow from block to block."""

    def __init__(self, blocks=24, last=1):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            for _ in range(blocks)
        )
        self.pool = nn.AdaptiveAvgPool2d(last)
        self.head = nn.Linear(16 * last * last, 10)
        with torch.no_grad():
            for block in self.blocks:
                block[0].weight.mul_(4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.pool(x).flatten(1))


def filled(module, value, names=None):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if names is None or name in names:
                parameter.fill_(value)
    return module


def dead(classes=5):
    """No unit is active, and the biases of the head are all that is left."""
    module = Head(classes)
    filled(module, -30.0, ["conv.bias"])
    with torch.no_grad():
        module.head.bias.copy_(30.0 * torch.arange(classes))
    return module


def images(n=1, dtype=torch.float32):
    return torch.randn(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)


def noise(seed=1):
    grey = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) * 60 + 128
    return Image.fromarray(grey.clamp(0, 255).byte().numpy()).convert("RGB")


def trained(module, loss, targets, x, most=2000, rate=0.02, until=1e-4):
    """Train on a few images until the loss is as small as a probability of 99.99 % makes it."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(module.parameters(), rate)
    for _ in range(most):
        value = loss(module(x), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if value < until:
            break
    assert value < until
    return module.eval()


def codes(record):
    return [one.code for one in record.run.warnings if one.code in DEGENERATE]


def seeded(make):
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_scores_count_as_saturated_where_autograd_loses_the_gradient(dtype, classes):
    generator = np.random.default_rng(classes)
    seen = set()
    for margin in (0.5, 2, 4, 5, 6, 8, 10, 12, 14, 16, 18, 22, 30, 60):
        numbers = generator.normal(0, 0.5, classes)
        numbers[1] = np.max(numbers) + margin
        scores = torch.tensor(numbers).to(dtype)[None]
        leaf = scores.clone().requires_grad_()
        F.cross_entropy(leaf, torch.tensor([1])).backward()
        # In NumPy: the gradient is p, and for the class itself minus the sum of all others.
        shares = np.exp(scores[0].double().numpy() - float(scores.max()))
        rest = np.delete(shares, 1).sum()
        p = shares / (1 + rest)
        p[1] = -rest / (1 + rest)
        lost = np.linalg.norm(leaf.grad[0].double().numpy() - p) / np.linalg.norm(p)
        is_told = codes(ms.grads(Given(scores), images(dtype=dtype))) == ["saturated_scores"]
        seen.add(is_told)
        if float(leaf.grad[0, 1]) == 0:
            assert is_told, margin
        if lost < 0.25:
            assert not is_told, margin
    assert seen == {True, False}


HEALTHY = {
    "fresh": lambda: (Head(), images(4)),
    "fresh pixels": lambda: (Pixels(), images(2)),
    "sure": lambda: (trained(Head(3), F.cross_entropy, torch.tensor([0, 1, 2]), images(3)), images(3)),
    "sure, of one image": lambda: (
        trained(Head(3), F.cross_entropy, torch.tensor([0, 1, 2]), images(3)),
        images(3)[:1],
    ),
    "the same image twice": lambda: (Head(), images(1).repeat(2, 1, 1, 1)),
    "masked classes": lambda: (Given(torch.tensor([[0.0, 2.0, -1e9]])), images()),
}
HEALTHY_APART = {
    "fresh with an ending": lambda: (Head(ending=nn.Softmax(1)), images(2)),
    "sure pixels": lambda: (
        trained(Pixels(2), F.cross_entropy, (images(2)[:, 0] > 0).long(), images(2), rate=0.5, until=0.02),
        images(2),
    ),
    "sure labels": lambda: (
        trained(Head(3), F.binary_cross_entropy_with_logits, torch.eye(3), images(3)),
        images(3),
    ),
    "sure, one of several images saturated": lambda: (Steep(), images(2)),
    "log-probabilities": lambda: (Head(ending=nn.LogSoftmax(1)), images(2)),
    "an embedding": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2)), images(2)),
    "sure in bfloat16": lambda: (
        Given(torch.tensor([[0.0, 4.0]], dtype=torch.bfloat16)),
        images(dtype=torch.bfloat16),
    ),
}


class Steep(Head):
    """The first image is saturated, and the second is not."""

    def forward(self, x):
        scores = super().forward(x)
        return scores * torch.tensor([1e5, 1.0])[: len(x), None]


@pytest.mark.parametrize("kind", [*HEALTHY, *HEALTHY_APART])
@pytest.mark.parametrize("command", ["grads", "predict", "ablate"])
def test_scores_of_healthy_networks_are_not_called_degenerate(kind, command):
    module, x = seeded({**HEALTHY, **HEALTHY_APART}[kind])
    if command != "grads" and kind == "an embedding":
        return  # which are refused
    if kind == "sure labels":
        more = {"grads": {"loss": "bce"}, "predict": {"scores": "sigmoid"}}.get(command)
        if more is None:
            return  # which take them for scores of one class, of which the softmax is saturated
    else:
        more = {"batch": 2} if command == "grads" and len(x) == 2 else {}
    is_stub = command == "predict" and isinstance(module, Given)  # which is told to ignore its image
    expected = ["same_for_all_images"] if is_stub else []
    assert codes(getattr(ms, command)(module, x, **more)) == expected


# What the warning of `grads` has to be.
SICK = {
    "scaled": (lambda: (Head(scale=1e5), images()), "saturated_scores"),
    "dead, with biases": (lambda: (dead(), images()), "saturated_scores"),
    "pixels": (lambda: (Pixels(scale=1e6), images()), "saturated_scores"),
    "ends in softmax": (lambda: (Head(scale=1e5, ending=nn.Softmax(1)), images()), "saturated_scores"),
    "bfloat16": (
        lambda: (Given(torch.tensor([[0, 7.0, 1]]).bfloat16()), images().bfloat16()),
        "saturated_scores",
    ),
    "head of zeros": (lambda: (filled(Head(), 0.0, ["head.weight", "head.bias"]), images()), "undecided"),
    "zero embedding": (
        lambda: (filled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), 0.0), images()),
        "undecided",
    ),
    "NaN": (lambda: (filled(Head(), float("nan"), ["head.bias"]), images()), "nonfinite_scores"),
}
SICK_APART = {
    "several images": (lambda: (Head(scale=1e6), images(3)), "saturated_scores"),
    "two classes": (lambda: (Head(2, scale=1e5), images()), "saturated_scores"),
    "ends in sigmoid": (lambda: (Head(scale=1e5, ending=nn.Sigmoid()), images()), "saturated_scores"),
    "pixels, ends in sigmoid": (
        lambda: (Pixels(1, scale=1e7, ending=nn.Sigmoid()), images()),
        "saturated_scores",
    ),
    "float16": (lambda: (Given(torch.tensor([[0, 12.0, 1]]).half()), images().half()), "saturated_scores"),
    "pixels of zeros": (lambda: (filled(Pixels(), 0.0), images()), "undecided"),
    "the same for all images": (
        lambda: (filled(dead(3), 1.0, ["head.weight"]), images(2)),
        "saturated_scores",
    ),
    "the same and not sure": (
        lambda: (filled(Head(), -30.0, ["conv.bias"]), images(2)),
        "same_for_all_images",
    ),
    "zeros for two images": (
        lambda: (filled(Head(), 0.0, ["head.weight", "head.bias"]), images(2)),
        "undecided",
    ),
    "infinite": (lambda: (filled(Head(), float("inf"), ["head.bias"]), images()), "nonfinite_scores"),
    "NaN pixels": (lambda: (filled(Pixels(), float("nan"), ["conv.bias"]), images()), "nonfinite_scores"),
}


@pytest.mark.parametrize("kind", [*SICK, *SICK_APART])
def test_gradients_of_degenerate_scores_are_said_to_say_nothing(kind):
    make, code = {**SICK, **SICK_APART}[kind]
    module, x = seeded(make)
    record = ms.grads(module, x, batch=len(x))
    assert codes(record) == [code]
    assert "normal gradient" not in view_of(record).headline(record)


@pytest.mark.parametrize("change", [{"target": 0}, {"loss": "logit"}, {"loss": "mean"}])
def test_a_loss_that_keeps_its_gradient_beside_saturated_scores_is_not_called_degenerate(change):
    module = seeded(lambda: dead(3))  # which predicts the last class
    assert codes(ms.grads(module, images())) == ["saturated_scores"]
    assert codes(ms.grads(module, images(), **change)) == []


@pytest.mark.parametrize("command", ["grads", "predict", "ablate", "explain"])
@pytest.mark.parametrize(("scale", "code"), [(1e6, "saturated_scores"), (0.0, "undecided")])
def test_every_command_says_so(command, scale, code, tmp_path):

    module = seeded(lambda: Head(scale=scale))
    file = tmp_path / "noise.png"
    noise().save(file)
    if command == "explain" and not scale:
        with pytest.raises(CannotRunError, match="exactly zero everywhere"):
            ms.explain(module, str(file), size=SIZE)
        return
    more = {"receipt": "none"} if command == "explain" else {}
    record = getattr(ms, command)(module, str(file), size=SIZE, **more)
    assert codes(record) == [code]
    assert record.to_dict()["warnings"]
    # The gradients of saturated scores are zero because the output explodes.
    first = "large_scores" if (command, code) == ("grads", "saturated_scores") else code
    assert view_of(record).headline(record) == next(n.message for n in record.run.warnings if n.code == first)


def test_one_value_that_is_on_or_off_is_judged_by_its_sigmoid():
    module = seeded(lambda: Head(1, scale=1e6))
    assert codes(ms.predict(module, images(2), scores="sigmoid")) == ["saturated_scores"]
    assert codes(ms.predict(module, images(2), scores="sigmoid", hook="scale=1e-6@head")) == []


FILE = """
import sys
sys.path.insert(0, {folder!r})
from test_degenerate import *

def scaled(): return seeded(lambda: Head(scale=1e5))
class Sharp(nn.Module):
    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.inside = Deep(24, 2)
    def forward(self, x):
        return self.inside(x)
def made(): return Sharp()
class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = Given(torch.tensor([[0.0, 8.0, 1.0]]))
    def forward(self, x):
        return self.inside(x)
class Dropped(nn.Module):
    # saturated in eval mode, not in train mode
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8, eps=1e-12)
        self.norm.running_var.fill_(1e-12)
        self.head = nn.Linear(8, 5)
    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
"""


def run(line, capsys):
    code = run_argv(shlex.split(line))
    return code, capsys.readouterr().err


@pytest.mark.parametrize("command", ["grads", "predict", "ablate", "explain --receipt none"])
@pytest.mark.parametrize("name", ["Sharp", "made"])
def test_random_weights_get_statistics_with_which_the_scores_say_something(
    command, name, tmp_path, monkeypatch, capsys, undrawn
):
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(FILE.format(folder=str(Path(__file__).parent)))
    noise().save("noise.png")
    code, said = run(f"{command} models.py:{name} noise.png --size {SIZE} --out out", capsys)
    assert code == 0
    said = " ".join(said.split())
    assert "the batch norms use the statistics of the first batch" in said
    assert "each probability rounds" not in said
    assert codes(ms.grads(seeded(lambda: Deep(24, 2)).eval(), images())) == ["saturated_scores"]


def test_the_statistics_are_those_of_the_batch(tmp_path, monkeypatch):
    """Up to the correction of a variance of 512 values: batch norm normalises without it, and keeps it with it."""
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(FILE.format(folder=str(Path(__file__).parent)))
    module = ms.load("models.py:Sharp").module
    with torch.no_grad():
        expected = module.train()(images(2))
    record = ms.predict("models.py:Sharp", images(2), top=10)
    assert "first_batch_statistics" in [one.code for one in record.run.warnings]
    for one, scores in zip(record.predictions, expected, strict=True):
        found = torch.tensor([guess.logit for guess in sorted(one.top, key=lambda guess: guess.index)])
        assert float((found - scores).norm() / scores.norm()) < 0.02


def test_the_batch_norms_of_a_module_that_was_handed_over_stay(tmp_path):
    module = seeded(lambda: Deep(24, 2)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    ms.grads(module, images())
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


class Named(Head):
    def forward(self, x):
        return {"features": self.conv(x).mean((2, 3)), "logits": super().forward(x)}


class Pair(Head):
    def forward(self, x):
        return super().forward(x), self.conv(x)


class TwoInputs(Head):
    def forward(self, image, side):
        return super().forward(image) * side.mean()


def tiny(factor=1.0, weights="tiny_resnet.safetensors"):
    from pathlib import Path

    samples = Path(__file__).parents[2] / "samples"
    loaded = ms.load(f"{samples}/tiny_resnet.py:TinyResNet", checkpoint=samples / weights)
    with torch.no_grad():
        loaded.module.head.weight.mul_(factor)
    return loaded.module


def star():
    from pathlib import Path

    return str(Path(__file__).parents[2] / "samples" / "star.png")


# Model, inputs, further keywords of `grads`, and the code that its warning has to have.
FURTHER = {
    "sample": lambda: (tiny(), star(), {}, None),
    "sample in train mode": lambda: (tiny(), star(), {"mode": "train"}, None),
    "sick sample": lambda: (tiny(weights="sick.safetensors"), star(), {}, "saturated_scores"),
    "sick sample in train mode": lambda: (tiny(weights="sick.safetensors"), star(), {"mode": "train"}, None),
    "sample in bfloat16": lambda: (tiny().bfloat16(), star(), {}, None),
    "scaled sample": lambda: (tiny(100), star(), {}, "saturated_scores"),
    "by a hook": lambda: (Head(), images(), {"hook": "scale=1e6@head"}, "saturated_scores"),
    "by name": lambda: (Named(scale=1e6), images(), {"loss": "cross-entropy"}, "saturated_scores"),
    "features have no weights of their own": lambda: (Named(scale=1e6), images(), {}, "saturated_scores"),
    "in a pair": lambda: (Pair(scale=1e6), images(), {"loss": "cross-entropy"}, "saturated_scores"),
    "log-probabilities": lambda: (Head(scale=1e6, ending=nn.LogSoftmax(1)), images(), {}, "saturated_scores"),
    "nll": lambda: (Head(scale=1e6, ending=nn.LogSoftmax(1)), images(), {"loss": "nll"}, "saturated_scores"),
    "bce": lambda: (Head(scale=1e6), images(), {"loss": "bce"}, "saturated_scores"),
    "bce with one label in doubt": lambda: (
        Given(torch.tensor([[30.0, 30.0, 30.0, 1e-3]])),
        images(),
        {"loss": "bce"},
        None,
    ),
    "bce of another class": lambda: (
        Given(torch.tensor([[30.0, -30.0]])),
        images(),
        {"loss": "bce", "target": 1},
        None,
    ),
    "clipped": lambda: (Head(scale=1e6), images(), {"clip": 1.0}, "saturated_scores"),
    "frozen": lambda: (Head(scale=1e6), images(), {"train_only": "head"}, "saturated_scores"),
    "a dict": lambda: (
        TwoInputs(scale=1e6),
        {"image": images(), "side": torch.ones(1, 2)},
        {},
        "saturated_scores",
    ),
    "two images of which one is not": lambda: (Steep(), images(2), {"batch": 2}, None),
    "a sure pixel among others": lambda: (
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(size=(SIZE, SIZE))),
        images(),
        {"output_kind": "segmentation"},
        None,
    ),
    "mean": lambda: (Head(scale=1e6), images(), {"loss": "mean"}, None),
    "probabilities and their mean": lambda: (
        Head(scale=1e6, ending=nn.Softmax(1)),
        images(),
        {"loss": "mean"},
        "saturated_scores",
    ),
    "one value": lambda: (Head(1), images(), {}, None),
    "volumes of pixels": lambda: (Pixels(scale=1e7), images(2), {}, "saturated_scores"),
}


@pytest.mark.parametrize("kind", FURTHER)
def test_gradients_of_further_kinds(kind):
    module, x, keywords, code = seeded(FURTHER[kind])
    assert codes(ms.grads(module, x, **keywords)) == ([code] if code else [])
