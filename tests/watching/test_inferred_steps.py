"""Steps that no optimizer of torch.optim tells of: written by hand, another library's, compiled."""

import pytest
import torch
from tolerance import close
from torch import nn
from torch.utils.checkpoint import checkpoint

from modelscope_cli import watch

LR = 0.1


def through_data(parameter):
    parameter.data -= LR * parameter.grad


def new_data(parameter):
    parameter.data = parameter.data - LR * parameter.grad


def in_place(parameter):
    with torch.no_grad():
        parameter.sub_(LR * parameter.grad)


def copied(parameter):
    with torch.no_grad():
        parameter.copy_(parameter - LR * parameter.grad)


BY_HAND = [through_data, new_data, in_place, copied]


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def train(update=None, n=4, n_accumulated=1):
    """Train by hand, or without `update` by torch's own SGD; return the weights."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR) if update is None else None
    for _ in range(n):
        for _ in range(n_accumulated):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
            loss.backward()
        if optimizer is not None:
            optimizer.step()
        else:
            for parameter in model.parameters():
                update(parameter)
        model.zero_grad()
        with torch.no_grad():
            model.eval()(torch.randn(2, 6))  # evaluation in between
        model.train()
    return {**model.state_dict(), "rng": torch.get_rng_state()}


@pytest.mark.parametrize("n_accumulated", [1, 3])
@pytest.mark.parametrize("update", BY_HAND)
def test_a_step_by_hand_shows_what_a_step_of_sgd_shows(watching, update, n_accumulated):
    theirs = watching(lambda: train(n_accumulated=n_accumulated))
    ours = watching(lambda: train(update, n_accumulated=n_accumulated))
    assert [(r.optimizer, r.step, r.lr) for r in ours.reports] == [("inferred", i, []) for i in range(4)]
    for a, b in zip(ours.reports, theirs.reports, strict=True):
        assert a.loss == close(b.loss)
        assert [row[:4] for row in a.layers] == [row[:4] for row in b.layers]
        for one, other in zip(a.layers, b.layers, strict=True):
            assert one[4].moments.n == other[4].moments.n
            assert one[4].moments.mean == close(other[4].moments.mean)
            assert one[4].grad_squares == close(other[4].grad_squares)
        assert [row[:2] for row in a.parameters] == [row[:2] for row in b.parameters]
        for one, other in zip(a.parameters, b.parameters, strict=True):
            assert one[3] == close(other[3])
    assert ours.recorder.n_steps == 4


@pytest.mark.parametrize("update", [new_data, in_place])
def test_weights_and_random_numbers_are_the_same_to_the_last_bit(watching, update):
    bare, watched = train(update), {}
    watching(lambda: watched.update(train(update)))
    assert [key for key in bare if not torch.equal(bare[key], watched[key])] == []


def test_a_compiled_step_of_an_optimizer_is_seen(watching):
    def script():
        torch._dynamo.reset()
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(3):
            model(torch.randn(4, 6)).square().mean().backward()
            step()
            model.zero_grad()

    heard = watching(script)
    assert [(r.optimizer, r.step) for r in heard.reports] == [("inferred", i) for i in range(3)]
    assert all(row[3][2] for row in heard.reports[1].parameters)


def test_a_model_trained_in_evaluation_mode_has_its_steps(watching):
    def script():
        model = Net().eval()
        for _ in range(2):
            model(torch.randn(4, 6)).square().mean().backward()
            for parameter in model.parameters():
                through_data(parameter)

    assert len(watching(script).reports) == 2


def test_updates_while_the_backward_pass_runs_are_steps(watching):
    def script():
        model = Net()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(through_data)
        for _ in range(3):
            model(torch.randn(4, 6)).square().mean().backward()
            model.zero_grad()

    assert len(watching(script).reports) == 2  # before the first nobody had looked


def test_weights_that_are_no_longer_finite_are_still_stepped(watching):
    def script():
        model = Net()
        for factor in (1.0, torch.nan, 1.0):
            (model(torch.randn(4, 6)).square().mean() * factor).backward()
            for parameter in model.parameters():
                through_data(parameter)

    assert [r.step for r in watching(script).reports] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["teacher", "average", "first step skipped", "moved"])
def test_a_training_by_torchs_optimizers_has_no_other_steps(watching, kind):
    def script():
        model, other = Net(), Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for i in range(4):
            loss = model(torch.randn(4, 6)).square().mean()
            if kind == "teacher":
                loss = loss + other(torch.randn(4, 6)).square().mean()
            if kind == "first step skipped" and i == 0:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            if kind in ("teacher", "average"):
                other.load_state_dict(model.state_dict())
                other(torch.randn(2, 6))
            if kind == "moved":
                model.double().float()

    heard = watching(script)
    assert {r.optimizer for r in heard.reports} == {"SGD"}


def test_a_model_without_an_optimizer_takes_no_label(watching):
    def script():
        teacher, model = Net(), Net()
        for _ in range(2):
            (model(torch.randn(4, 6)) - teacher(torch.randn(4, 6))).square().mean().backward()
            for parameter in model.parameters():
                through_data(parameter)

    heard = watching(script)
    assert [(r.optimizer, r.step) for r in heard.reports] == [("inferred", 0), ("inferred", 1)]
    assert {row[0] for row in heard.reports[0].parameters} == {"Net"}


def test_a_backward_pass_inside_another_is_not_counted(watching):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = Net(), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(checkpoint(self.inner, x, use_reentrant=True))

    heard = watching(lambda: Checkpointed()(torch.randn(4, 6, requires_grad=True)).sum().backward())
    assert heard.recorder.losses.n_backward == 1


def test_a_record_says_how_often_backward_ran_and_that_nothing_changed(recorded):
    def script():
        model = Net()
        for _ in range(3):
            model(torch.randn(4, 6)).square().mean().backward()

    seen = recorded(script)
    assert (seen.steps, seen.facts.backwards) == (0, 3)
    assert seen.run.warnings == ()
    assert (
        seen.reason
        == "no step was seen: 3 backward passes ran, but no parameter or leaf in their graphs has changed"
    )
    trained = recorded(lambda: train(through_data))
    assert (trained.steps, trained.facts.backwards, trained.run.warnings) == (4, 4, ())
    assert {row.optimizer for row in trained.parameters} == {"inferred"}


@pytest.mark.parametrize(("n", "steps"), [(1, 1), (4, 2), (4, 9)])
def test_a_loop_with_steps_by_hand_stops_where_it_was_asked_to(n, steps):
    model, n_done = Net(), 0
    with watch(model, steps=steps) as watched:
        for _ in range(n):
            model(torch.randn(4, 6)).square().mean().backward()
            assert watched.record().steps == n_done
            for parameter in model.parameters():
                through_data(parameter)
            n_done += 1
    assert (n_done, watched.record().steps) == (min(n, steps), min(n, steps))
    assert watched.record().exit_code == 0


def train_tensors(update, n=24, left_out=(), keeps_gradients=False):
    """Train two tensors of no module by hand."""
    x, y = torch.randn(n, 8, 6), torch.randint(3, (n, 8))
    w, v = torch.randn(6, 16, requires_grad=True), torch.randn(16, 3, requires_grad=True)
    for i in range(n):
        nn.functional.cross_entropy((x[i] @ w).tanh() @ v, y[i]).backward()
        for name, tensor in (("w", w), ("v", v)):
            if name not in left_out:
                update(tensor)
            if not keeps_gradients:
                tensor.grad = None
    return w, v


@pytest.mark.parametrize("update", [new_data, in_place])
def test_tensors_of_no_module_are_trained_as_a_module_is(recorded, update):
    torch.manual_seed(0)
    bare, rng = train_tensors(update), torch.get_rng_state()
    watched = []
    record = recorded(lambda: watched.extend(train_tensors(update)))
    assert all(map(torch.equal, bare, watched))
    assert torch.equal(rng, torch.get_rng_state())
    assert (record.steps, record.findings) == (24, ())
    assert [(row.model, row.name, row.optimizer) for row in record.parameters] == [
        ("Tensors", "v", "inferred"),
        ("Tensors", "w", "inferred"),
    ]
    assert all(all(row.series.update_ratio) for row in record.parameters)


def test_tensors_that_are_left_out_or_never_cleared_are_named(recorded):
    (found, *_) = recorded(lambda: train_tensors(through_data, left_out=("w",))).findings
    assert (found.code, found.layer) == ("MS712", "w")
    found, *_ = recorded(lambda: train_tensors(through_data, keeps_gradients=True)).findings
    assert (found.code, found.value) == ("MS713", 15)


def test_leaves_that_are_made_anew_by_each_step_are_followed(recorded):
    def script():
        w = torch.randn(6, 3, requires_grad=True)
        for _ in range(24):
            noise = torch.randn(8, 6, requires_grad=True)  # other data each time, not what a step made
            nn.functional.cross_entropy(noise @ w, torch.randint(3, (8,))).backward()
            w = (w - LR * w.grad).detach().requires_grad_()

    record = recorded(script)
    assert record.steps == 23  # the last one is followed by no loss
    assert all(next(row for row in record.parameters if row.name == "w").series.update_ratio)


def test_an_energy_that_is_sampled_is_not_a_loss_that_fails(recorded):
    def script():
        x = torch.zeros(2, requires_grad=True)
        for _ in range(200):
            x.square().sum().backward()
            x.data += -0.02 * x.grad + 0.2 * torch.randn(2)
            x.grad = None

    record = recorded(script)
    assert (record.steps, record.findings) == (200, ())
