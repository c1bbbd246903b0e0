"""What the recorder sees, held against torch's own numbers."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from tolerance import A_NETWORK, close
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optim


def net():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def step(model, optimizer, x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def test_figures_of_a_step_are_torchs_own(watching):
    seen = {}

    def script():
        model, x = net(), torch.randn(32, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hidden = model[0](x).detach()
        weight = model[0].weight.detach().clone()
        seen["loss"] = step(model, optimizer, x).item()
        seen["relu"] = hidden.clamp_min(0).numpy().astype(float)
        seen["grad"] = model[0].weight.grad.norm().item()
        seen["weight"] = weight.norm().item()
        seen["ratio"] = ((model[0].weight.detach() - weight).norm() / weight.norm()).item()

    heard = watching(script)
    (report,) = heard.reports
    moments = heard.sums("1").moments
    assert moments.mean == close(seen["relu"].mean())
    assert moments.std == close(seen["relu"].std())
    assert moments.n_zero == int((seen["relu"] == 0).sum())
    assert moments.n_near_zero == int((np.abs(seen["relu"]) < 0.05).sum())
    assert sum(heard.sums("1").counts) == moments.n == 32 * 16
    assert report.loss == close(seen["loss"])
    assert report.lr == [0.1]
    assert report.parameters[0][1] == "0.weight"
    assert report.parameters[0][3] == close((seen["grad"], seen["weight"], seen["ratio"]))


def test_gradient_at_an_output_is_what_retain_grad_gives(watching):
    seen = {}

    def script():
        model, x = net(), torch.randn(8, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hidden = model[0](x)
        hidden.retain_grad()
        model[2](model[1](hidden)).square().mean().backward()
        seen["norm"] = hidden.grad.norm().item()
        model.zero_grad()
        step(model, optimizer, x)

    heard = watching(script)
    assert math.sqrt(heard.sums("0").grad_squares) == close(seen["norm"])


def test_accumulated_passes_count_as_one_step_of_the_whole_batch(watching):
    whole, halves = torch.randn(2, 16, 6), []

    def at_once():
        model = net()
        step(model, torch.optim.SGD(model.parameters(), lr=0.1), whole.flatten(0, 1))

    def in_parts():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for half in whole:
            loss = model(half).square().mean() / 2
            halves.append(loss.item())
            loss.backward()
        optimizer.step()

    one, two = watching(at_once), watching(in_parts)
    assert len(two.reports) == 1
    assert two.reports[0].loss == close(sum(halves))
    for name in "012":
        a, b = one.sums(name), two.sums(name)
        assert a.counts == b.counts
        assert a.moments.mean == close(b.moments.mean, scale=0.01)
        assert a.moments.m2 == close(b.moments.m2)
        assert a.grad_squares == close(b.grad_squares)


def test_evaluation_passes_are_not_part_of_a_step(watching):
    def script():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model(torch.full((4, 6), 100.0))
        model.eval()
        model(torch.full((4, 6), 100.0))
        model.train()
        step(model, optimizer, torch.randn(4, 6))

    assert watching(script).sums("0").moments.n == 4 * 16


def test_reused_layer_has_a_row_for_each_call(watching):
    class Reuse(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.b(self.relu(self.a(x))))

    def script():
        model = Reuse()
        step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(64, 4))

    heard = watching(script)
    assert [row[1:] for row in heard.names()] == [("a", 0), ("relu", 0), ("b", 0), ("relu", 1)]
    assert heard.sums("a").moments.n_zero == 0  # looked at before the in-place ReLU rewrote it


def test_several_models_and_optimizers_are_kept_apart(watching):
    def script():
        first, second = net(), net()
        one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)
        for _ in range(3):
            step(first, one, torch.randn(4, 6))
            step(second, two, torch.randn(4, 6))

    heard = watching(script)
    assert [(r.optimizer, r.step) for r in heard.reports[:3]] == [("SGD", 0), ("Adam", 0), ("SGD", 1)]
    assert {row[0] for r in heard.reports if r.optimizer == "SGD" for row in r.layers} == {"Sequential"}
    assert {row[0] for r in heard.reports if r.optimizer != "SGD" for row in r.layers} == {"Sequential#2"}


@pytest.mark.parametrize(
    ("is_in_a_list", "labels"), [(False, {"coder", "judge"}), (True, {"Sequential", "Sequential#2"})]
)
def test_modules_of_torch_of_one_class_have_the_names_of_their_variables(watching, is_in_a_list, labels):
    def script():
        coder, judge = net(), net()
        both = [coder, judge]
        optimizer = torch.optim.SGD([*coder.parameters(), *judge.parameters()], lr=0.1)
        if is_in_a_list:
            del coder, judge
        for _ in range(2):
            x = torch.randn(4, 6)
            loss = sum(one(x).sum() for one in both) if is_in_a_list else (coder(x) + judge(x)).sum()
            loss.backward()
            optimizer.step()

    heard = watching(script)
    assert {row[0] for r in heard.reports for row in r.layers} == labels


def test_optimizer_that_calls_its_parent_or_another_steps_once(watching):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    def script():
        model = net()
        step(model, Twice(model.parameters(), lr=0.1), torch.randn(4, 6))

    assert [r.step for r in watching(script).reports] == [0]


def test_learning_rate_is_that_of_the_step(watching):
    def script():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(3):
            step(model, optimizer, torch.randn(4, 6))
            schedule.step()

    assert [r.lr for r in watching(script).reports] == [[1.0], [0.5], [0.25]]


AMP = {
    "plain": lambda scaler, loss: scaler.scale(loss),
    "divided": lambda scaler, loss: scaler.scale(2 * loss) / 2,
}


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("kind", AMP)
def test_gradient_scaler_unscaled_figures_and_skipped_steps(watching, kind, is_fused):
    seen = {"losses": []}

    def script():
        model, x = net(), torch.randn(8, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=is_fused)
        hidden = model[0](x)
        hidden.retain_grad()
        model[2](model[1](hidden)).square().mean().backward()
        seen["grad"], seen["hidden"] = model[0].weight.grad.norm().item(), hidden.grad.norm().item()
        model.eval()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for factor in (math.inf, 1.0):
            model.train()
            optimizer.zero_grad()
            loss = model(x).square().mean() * factor
            seen["losses"].append(loss.item())
            AMP[kind](scaler, loss).backward()
            scaler.step(optimizer)
            scaler.update()

    heard = watching(script)
    (report,) = heard.reports
    assert report.loss == close(seen["losses"][1])  # the loss of the step that was skipped is no part of it
    assert report.parameters[0][3][0] == close(seen["grad"], A_NETWORK)
    assert heard.sums("0").moments.n == 8 * 16
    assert math.sqrt(heard.sums("0").grad_squares) == close(seen["hidden"], A_NETWORK)
    assert [event[1] for event in heard.events] == ["skipped", "loss"]


def test_scaled_losses_of_two_optimizers_are_kept_apart(watching):
    losses = []

    def script():
        models = net(), net()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        both = [model(torch.randn(8, 6)).square().mean() for model in models]
        losses.extend(loss.item() for loss in both)
        for optimizer, scaled in zip(optimizers, scaler.scale(both), strict=True):
            scaled.backward()
            scaler.step(optimizer)
        scaler.update()

    heard = watching(script)
    assert [(r.optimizer, r.loss) for r in heard.reports] == [
        ("SGD", close(losses[0])),
        ("SGD#2", close(losses[1])),
    ]
    assert heard.events == []


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_a_closure_counts_once_with_the_gradients_it_made(watching, kind):
    seen = {}

    def script():
        model, x = net(), torch.randn(8, 6)
        options = {"SGD": {}, "LBFGS": {"max_iter": 4}}[kind]
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)

        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        seen["loss"] = optimizer.step(closure).item()
        seen["grad"] = model[0].weight.grad.norm().item()

    heard = watching(script)
    (report,) = heard.reports
    assert report.loss == close(seen["loss"])
    assert report.parameters[0][3][0] == close(seen["grad"])
    assert heard.sums("0").moments.n == 8 * 16


def test_a_step_that_raised_hides_none_that_come(watching):
    def script():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        step(model, optimizer, torch.randn(4, 6))

    assert [r.step for r in watching(script).reports] == [0]


def test_a_model_that_is_never_stepped_is_not_recorded_for_ever(watching):
    def script():
        model, teacher = net(), net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(600):
            teacher(torch.randn(1, 6)).sum().backward()
        step(model, optimizer, torch.randn(4, 6))

    student, teacher = watching(script).recorder.registry.models[::-1]
    assert (student.passes, teacher.passes) == ([0, 0], [600, 0])
    assert {sums.row()().moments.n for sums in teacher.sums.values()} == {512 * 16, 512 * 3}
    assert all(len(sums.moments) < 16 for sums in teacher.sums.values())


def test_exception_in_a_forward_leaves_nothing_open(watching):
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 2)

        def forward(self, x, is_broken=False):
            return self.b(self.a(x)[:, :3] if is_broken else self.a(x))

    def script():
        model = Fragile()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 6), is_broken=True)
        step(model, optimizer, torch.randn(4, 6))

    heard = watching(script)
    assert [row[1] for row in heard.names()] == ["a", "b"]
    assert not heard.recorder._passes._pass.open


def test_users_hooks_pickles_and_copies_work_and_nothing_is_left(watching):
    fired = []

    def script():
        model = net()
        model[0].register_forward_hook(lambda *_: fired.append(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer, torch.randn(4, 6))
        twin = copy.deepcopy(model)
        del twin[0]._forward_hooks
        twin[0]._forward_hooks = {}
        torch.save(twin, io.BytesIO())

    before = torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.GradScaler.scale
    watching(script)
    assert fired == [1]
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert not optim._global_optimizer_pre_hooks
    assert not optim._global_optimizer_post_hooks
    assert before == (torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.GradScaler.scale)


def test_strange_values_are_counted(watching):
    def script():
        model = nn.Sequential(nn.Identity(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.tensor([[math.nan, 1.0, 0.0], [math.inf, -math.inf, 2.0]])
        F.mse_loss(model(x), torch.zeros(2, 1)).backward()
        optimizer.step()

    moments = watching(script).sums("0").moments
    assert (moments.n, moments.n_nan, moments.n_inf, moments.n_zero) == (3, 1, 2, 1)
    assert moments.mean == 1.0
