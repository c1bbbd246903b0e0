"""Healthy networks that begin as nothing on purpose are quiet; what is dead for good is an error."""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Branch(nn.Module):
    """A residual block whose branch ends in `last`."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down, self.last = nn.Linear(16, 64), nn.Linear(64, 16), last

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.down(F.gelu(self.up(self.norm(x)))))


class Scale(nn.Module):
    def __init__(self, value: float, *shape: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full(shape, value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Adapted(nn.Module):
    """LoRA: Hu et al. 2021, B begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.a, self.b = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def zero(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def zero_gamma() -> nn.Module:
    norm = nn.LayerNorm(16)
    nn.init.zeros_(norm.weight)
    return norm


def network(*middle: nn.Module, head: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *middle, head or nn.Linear(16, 4))


BEGINNINGS = {
    "layer scale": lambda: network(*(Branch(Scale(1e-6, 16)) for _ in range(3))),
    "scale of a map": lambda: network(Branch(Scale(1e-5, 1, 16))),
    "rezero": lambda: network(Branch(Scale(0.0)), Branch(Scale(0.0, 1))),
    "zero gamma": lambda: network(Branch(zero_gamma()), Branch(zero_gamma())),
    "lora": lambda: network(Adapted(), nn.GELU()),
    "zero head": lambda: network(nn.GELU(), nn.Linear(16, 16), head=zero(nn.Linear(16, 4))),
    "zero head and zero gamma": lambda: network(Branch(zero_gamma()), head=zero(nn.Linear(16, 4))),
    "zero output of a branch": lambda: network(Branch(zero(nn.Linear(16, 16)))),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_zero_initialised_layers_have_no_finding_and_the_model_is_unchanged(name):
    model = BEGINNINGS[name]()
    before = copy.deepcopy(model.state_dict())
    record = ms.check(model, noise(300, 8), fail_on="warning")
    record.assert_passed()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def found(model, x=None, **keywords):
    record = ms.check(model, noise(300, 8) if x is None else x, **keywords)
    return {(one.code, one.severity, one.layer): one for one in record.findings}


def test_two_zero_layers_in_a_row_are_reported_as_dead_for_good():
    model = network(zero(nn.Linear(16, 16)), nn.ReLU(), zero(nn.Linear(16, 16)))
    assert ("MS302", "error") in {place[:2] for place in found(model, select="MS302")}
    assert {place[:2] for place in found(model) if place[1] == "error"} == {("MS202", "error")}  # the cause


def test_zero_weights_are_named_once_and_not_each_dead_layer_after_them():
    net = network(nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    for layer in net[::2]:
        nn.init.zeros_(layer.bias)
    for bias in (0.0, -0.1):  # with the second the layer itself outputs no zeros
        zero(net[2])
        nn.init.constant_(net[2].bias, bias)
        (one,) = (one for one in ms.check(net, noise(100, 8)).findings if one.severity == "error")
        assert (one.code, one.layer) == ("MS202", "2")
        assert one.message == "all its weights are zero, so the output of 3, 5 is always zero"


def test_dead_layers_after_a_dead_one_are_counted():
    net = network(nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    for layer in net[::2]:
        nn.init.zeros_(layer.bias)
    nn.init.constant_(net[0].bias, -100.0)
    (one,) = ms.check(net, noise(100, 8), select="MS202").findings
    assert one.layer == "1"
    assert one.message == "the layer is dead: its output is always zero; so is that of 2 ReLUs after it"


def test_a_dead_layer_is_an_error_and_some_dead_channels_are_a_warning():
    dead, half = network(nn.ReLU()), network(nn.ReLU())
    nn.init.constant_(dead[0].bias, -100.0)
    nn.init.constant_(half[0].bias[:12], -100.0)
    assert found(dead, select="MS202")["MS202", "error", "1"].value == 1
    assert found(half, noise(1000, 8), select="MS202")["MS202", "warning", "1"].value == 12 / 16


def test_dead_channels_are_not_judged_where_more_images_may_activate_them():
    half, whole = (nn.Sequential(nn.Conv2d(1, 16, 1), nn.ReLU(), nn.Flatten()) for _ in range(2))
    for model, n in ((half, 12), (whole, 0)):
        nn.init.constant_(model[0].bias[:n], -100.0)
        nn.init.constant_(model[0].bias[n:], 1.0)
    reasons = {
        (model, n): next(
            rule.reason for rule in ms.check(model, noise(n, 1, 8, 8)).rules if rule.code == "MS202"
        )
        for model in (half, whole)
        for n in (2, 16)
    }
    few = "12 of 16 channels of 1 are zero in 2 images: give 16 to tell whether they are dead"
    too_few = "no ReLU channel has 1000 values: give 100 images"
    assert list(reasons.values()) == [few, None, too_few, None]
    assert found(half, noise(16, 1, 8, 8), select="MS202")


def test_a_constant_output_is_an_error_also_for_a_single_image():
    model = network(head=Scale(0.0, 16))
    model[1].requires_grad_(False)
    for n in (1, 2):
        assert ("MS604", "error", "1") in found(model, noise(n, 8), select="MS6")
    assert found(network(), noise(1, 8), select="MS604") == {}
    with pytest.raises(CannotRunError, match="MS604 was not judged"):  # the images are all the same
        found(network(), noise(1, 8).expand(4, 8), select="MS604")


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.scores, self.boxes = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 3)
        self.idle = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.body(x)
        self.idle(y)
        return {"scores": self.scores(y), "boxes": self.boxes(y)}


def test_a_layer_is_untrained_only_if_no_output_depends_on_it():
    assert list(found(Heads(), select="MS4")) == [("MS402", "warning", "idle")]


class ByWeight(nn.Module):
    """Uses the weights of layers without calling them."""

    def __init__(self, is_frozen: bool = False) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"used": nn.Linear(8, 8), "idle": nn.Linear(8, 8)})
        self.embed, self.tied = nn.Linear(8, 4), nn.Linear(8, 4)
        self.tied.weight = self.embed.weight
        self.tied.bias = None
        self.inner["used"].requires_grad_(not is_frozen)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(F.linear(x, self.inner["used"].weight))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_not_called_is_only_said_of_what_is_not_used_either(is_frozen):
    assert list(found(ByWeight(is_frozen), select="MS401")) == [("MS401", "warning", "inner.idle")]


class Masks(nn.Module):
    def __init__(self, draw) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(8, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.draw(x))


def mask(x: Tensor) -> Tensor:
    return x * (torch.rand(x.shape) > 0.75)


def drop(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def shuffle(x: Tensor) -> Tensor:
    return x[:, torch.randperm(8)]


@pytest.mark.parametrize(
    ("draw", "severity", "source"),
    [(mask, "warning", "torch.rand"), (shuffle, "warning", "torch.randperm"), (drop, "error", "dropout")],
)
def test_intended_randomness_is_a_warning_that_names_its_source(draw, severity, source):
    finding = found(Masks(draw), select="MS602")["MS602", severity, None]
    line = inspect.getsourcelines(draw)[1] + 1
    assert f"the model calls {source}" in finding.message or f"functional.{source}" in finding.message
    assert finding.message.endswith(f"at test_beginnings.py:{line}")


class Skips(nn.Module):
    """Stochastic depth: Huang et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.drop_path, self.norm = nn.Linear(8, 8), DropPath(), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.drop_path(self.branch(x)))


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0 if self.training else x


def test_a_branch_that_is_left_out_at_random_is_not_dead():
    assert found(Skips(), select="MS3") == {}


def test_adjacent_tiny_layers_are_one_finding():
    layers = [nn.Linear(8, 8, bias=False) for _ in range(4)]
    layers[1].weight.data.mul_(1e-9)
    model = nn.Sequential(*layers, nn.BatchNorm1d(8))
    model(noise(4, 8))  # its statistics are not fresh: it has been trained
    (finding,) = found(model.eval(), select="MS205").values()
    assert finding.layer == "1"
    assert "after it" in finding.message


def test_heads_that_see_no_object_are_not_called_dead():
    model, shape = "ssdlite320_mobilenet_v3_large", (2, 3, 128, 128)
    record = ms.check(model, input_shape=shape, select="MS3", weights="none", device="cpu")
    record.assert_passed()
    reasons = {rule.code: rule.reason for rule in record.rules}
    assert reasons["MS301"] is reasons["MS303"] is None
    assert reasons["MS302"] == "one synthetic object reaches only a few of the heads of a detection model"


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(8, affine=True), nn.BatchNorm2d(8), nn.GroupNorm(2, 8)])
def test_a_norm_whose_shifts_differ_was_changed_by_training(norm):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    images = noise(8, 3, 16, 16)
    with pytest.raises(CannotRunError, match="no norm was changed by training"):
        ms.check(model, images, select="MS209")
    nn.init.normal_(norm.bias)
    assert not ms.check(model, images, select="MS209").unjudged
