"""Train mode: what batch norm does to its running statistics, told beforehand and then undone."""

from collections.abc import Callable

import pytest
import torch
from PIL import Image
from tolerance import A_NETWORK, close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.records.check import Accuracy
from modelscope_cli.records.check_evidence import BatchNormState, Evidence, TrainMode
from modelscope_cli.records.run import Share
from modelscope_cli.records.stats import BatchNormDrift
from modelscope_cli.rules.registry import choose_rules
from modelscope_cli.rules.rule import judge


class Net(nn.Module):
    """Batch norm before and after a layer, its running statistics somewhere else than its input's."""

    def __init__(self, momentum: float | None = 0.1, n_tracked: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn = nn.BatchNorm2d(6, momentum=momentum)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(216, 8), nn.BatchNorm1d(8, momentum=momentum))
        for norm in (self.bn, self.head[2]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            norm.num_batches_tracked.fill_(n_tracked)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bn(self.conv(x)).relu())


def images(n: int, size: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, 8, 8, generator=generator) * 2 + 1 for _ in range(n)]


def moved(norm: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return how far a forward really moves the mean, in the unit of the report."""
    mean, var = norm.running_mean.double().clone(), norm.running_var.double().clone()
    run()
    return (norm.running_mean.double() - mean) / (var + norm.eps).sqrt()


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


@pytest.mark.parametrize(("momentum", "n_tracked"), [(0.1, 0), (0.5, 3), (None, 0), (None, 4), (1.0, 0)])
def test_moves_are_what_a_forward_in_train_mode_does(measure, unchanged, momentum, n_tracked):
    model, (x,) = Net(momentum, n_tracked), images(1)
    model.eval()
    check = unchanged(model)
    found = measure(model, x, is_training=True)
    check()
    assert [row.name for row in found.batch_norm] == ["bn", "head.2"]
    for row in found.batch_norm:
        twin = Net(momentum, n_tracked)
        norm = twin.get_submodule(row.name)
        mean_move = moved(norm, lambda twin=twin: twin(x))
        share = 1 / (n_tracked + 1) if row.momentum is None else row.momentum
        assert share * row.mean_gap == close(rms(mean_move), A_NETWORK)
        assert row.momentum == momentum
        assert row.channels == norm.num_features


def test_gap_and_ratio_compare_the_batch_with_the_running_values(measure):
    model, (x,) = Net(), images(1)
    bn = model.bn
    y = model.conv(x).detach().double().transpose(0, 1).flatten(1)
    row = measure(model, x, is_training=True).batch_norm[0]
    scale = bn.running_var.double() + bn.eps
    ratio = (y.var(1, correction=0) + bn.eps) / scale
    assert row.mean_gap == close(rms((y.mean(1) - bn.running_mean) / scale.sqrt()))
    assert row.var_ratio == close(float(ratio.log().mean().exp()))
    assert row.var_ratio_min == close(float(ratio.min()))
    assert row.var_ratio_max == close(float(ratio.max()))


def test_several_batches_are_averaged_and_measured_against_what_was_found(measure, unchanged):
    model, passes = Net(), images(3)
    check = unchanged(model)
    found = measure(model, *passes, is_training=True).batch_norm[0]
    check()
    each = [measure(model, x, is_training=True).batch_norm[0] for x in passes]
    means = torch.stack([model.conv(x).detach().double().mean((0, 2, 3)) for x in passes]).mean(0)
    scale = model.bn.running_var.double() + model.bn.eps
    expected = rms((means - model.bn.running_mean) / scale.sqrt())
    assert found.mean_gap == close(expected)
    assert min(row.var_ratio_max for row in each) <= found.var_ratio_max
    assert found.var_ratio_max <= max(row.var_ratio_max for row in each)


def test_eval_mode_and_layers_without_running_statistics_have_no_drift(measure):
    (x,) = images(1)
    assert measure(Net(), x).batch_norm == ()
    model = Net()
    model.bn = nn.BatchNorm2d(6, track_running_stats=False)
    assert [row.name for row in measure(model, x, is_training=True).batch_norm] == ["head.2"]


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("freeze", "named"), [(("bn",), ["bn"]), (("type:BatchNorm*",), ["bn", "head.2"]), (("conv",), [])]
)
def test_a_frozen_batch_norm_that_still_moves_is_called_out(measure, unchanged, freeze, named, is_training):
    model, (x,) = Net(), images(1)
    check = unchanged(model)
    found = measure(model, x, freeze=freeze, is_training=is_training)
    check()
    assert [row.name for row in found.batch_norm if row.is_frozen] == (named if is_training else [])
    messages = [notice.message for notice in found.warnings]
    if not named or not is_training:
        assert messages == []
        return
    (message,) = messages
    said = (
        "1 frozen batch norm still updates its"
        if len(named) == 1
        else "2 frozen batch norms still update their"
    )
    assert message.startswith(f"{said} running statistics")
    assert ", ".join(named) in message


def settled(momentum, n_batches):
    """Return a network whose batch norms have seen that many batches of the same kind."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.Flatten(), nn.Linear(800, 4)),
    )
    for norm in (model[1], model[4]):
        nn.init.normal_(norm.bias)
    for _ in range(n_batches):
        model(torch.randn(32, 3, 14, 14))
    return model.eval()


@pytest.mark.parametrize(("momentum", "n_batches", "covered"), [
    *[(1e-4, 180, "1.8 %"), (1e-3, 100, "9.5 %"), (0.1, 5, "41.0 %")],
    *[(0.1, 60, None), (0.01, 300, None), (0.3, 20, None), (None, 3, None)],
])  # fmt: skip
def test_statistics_that_have_not_arrived_are_one_finding(momentum, n_batches, covered):
    findings = ms.check(settled(momentum, n_batches), torch.randn(40, 3, 14, 14), select="MS207").findings
    assert [one.layer for one in findings] == (["1"] if covered else [])
    for one in findings:
        assert f"{n_batches} batches at momentum {momentum:g} replace only {covered} of them" in one.message
        assert one.message.endswith("; also 4")


def test_a_counter_of_another_training_is_not_believed():
    model = settled(0.1, 60)
    model[1].num_batches_tracked.fill_(2)
    assert ms.check(model, torch.randn(40, 3, 14, 14), select="MS207").findings == ()


@pytest.mark.parametrize(("n_eval", "n_train", "var_ratio", "is_told"), [
    *[(15, 28, 4.0, True), (15, 40, 0.2, True), (15, 28, 1.1, True)],
    *[(30, 34, 4.0, False), (36, 20, 4.0, False), (15, 19, 4.0, False)],
])  # fmt: skip
def test_less_accuracy_by_running_statistics_is_a_finding(n_eval, n_train, var_ratio, is_told):
    drift = BatchNormDrift("bn", "BatchNorm2d", 1, 0, 8, 0.1, 0.1, var_ratio, var_ratio / 2, var_ratio * 2)
    evidence = Evidence(
        batch_norms=(BatchNormState("bn", 8, 0, 0, False),),
        accuracy=Accuracy(Share.of(n_eval, 40), 40, 0.25, "a"),
        train=TrainMode((drift,), 1.0, 40, norms_right=Share.of(n_train, 40)),
        is_real=True,
    )
    findings, _ = judge(choose_rules(["MS207"], []), {}, evidence)
    told = f"accuracy {2.5 * n_eval:.1f} % in eval mode, {2.5 * n_train:.1f} % with the norms in train mode"
    assert [one.message.endswith(told) for one in findings] == [True] * is_told


class ByColour(nn.Module):
    """Tells the colour of an image from its mean, less that of the batch: by code of its own, or by a norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.mean((2, 3)))


class Centred(ByColour):
    def forward(self, x):
        mean = x.mean((2, 3))
        return self.norm(mean - mean.mean(0) if self.training else mean)


class Flipped(ByColour):
    def forward(self, x):
        return super().forward(x if self.training else x.flip(1))


def seen():
    norm = nn.BatchNorm1d(3)
    norm.num_batches_tracked.fill_(100)
    norm.running_mean.fill_(0.1)
    return norm


LESS = "accuracy 33.3 % in eval mode, 100.0 % with"


@pytest.mark.parametrize(("model", "code", "words"), [
    (Centred(nn.Identity()), "MS603", f"the model (Centred) reads self.training; {LESS} only this code in"),
    (ByColour(seen()), "MS207", f"; {LESS} the norms in train mode"),
    (Flipped(seen()), "MS603", f"nor the code explain on their own; {LESS} the whole model in train mode"),
])  # fmt: skip
def test_what_is_right_only_in_train_mode_is_found_by_trial(model, code, words, tmp_path):
    for colour in (colours := ["red", "green", "blue"]):
        (tmp_path / colour).mkdir()
        pixel = [200 * (one == "red") + 40 * (one == colour) for one in colours]  # all are mostly red
        for n in range(12):
            Image.new("RGB", (8, 8), tuple(value + n for value in pixel)).save(tmp_path / colour / f"{n}.png")
    rules = ["MS207", "MS603", "MS605"]
    images = {"size": 8, "batch": 36, "mean": (0, 0, 0), "std": (1, 1, 1), "labels": colours}
    record = ms.check(model, tmp_path, select=rules, **images)
    told = {one.code: one.message for one in record.findings}
    assert words in told[code]
    assert not any(LESS in message for other, message in told.items() if other != code)
