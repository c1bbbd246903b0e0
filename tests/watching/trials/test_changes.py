"""Each change does one thing: the training becomes the one in which a person had changed that line."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.data import DataLoader, TensorDataset
from watching.trials.conftest import batches, changed, network, usual_step

from modelscope_cli.watching.trials import catalogue, data, gradients, modes, optimizers
from modelscope_cli.watching.trials.criterion_changes import expected_input, no_label_smoothing, usual_logits

NEAR = {"rtol": 1e-5, "atol": 1e-6}  # a dozen steps in float32


def equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("factor", [0.1, 10])
def test_a_rate_is_that_of_the_twin(train, factor):
    with changed(optimizers.rate_times(factor)) as noted:
        found = train(lambda p: SGD(p, lr=0.02, momentum=0.5))
    equal(found, train(lambda p: SGD(p, lr=0.02 * factor, momentum=0.5)))
    assert noted.n == 12


def test_a_schedule_does_not_see_the_other_rate():
    optimizer = SGD(network().parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with changed(optimizers.rate_times(100)):
        for _ in range(3):
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize(
    ("make", "peak"),
    [
        (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.1), 0.1),
        (
            lambda o: torch.optim.lr_scheduler.OneCycleLR(
                o, max_lr=0.3, total_steps=100, cycle_momentum=False
            ),
            0.3,
        ),
        (lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, cooldown=0), 0.1),
    ],
)
def test_a_constant_rate_is_the_highest_of_the_schedule(train, make, peak):
    schedules = []

    def scheduled(p):
        optimizer = SGD(p, lr=0.1)
        schedules.append(make(optimizer))
        return optimizer

    def step(model, optimizer, x, y):
        usual_step(model, optimizer, x, y)
        is_plateau = isinstance(schedules[-1], torch.optim.lr_scheduler.ReduceLROnPlateau)
        schedules[-1].step(*[1.0] * is_plateau)  # no better than before

    with changed(optimizers.constant_rate):
        found = train(scheduled, step)
    torch.testing.assert_close(found, train(lambda p: SGD(p, lr=peak)), **NEAR)


def test_weight_decay_is_gone(train):
    with changed(optimizers.no_weight_decay):
        found = train(lambda p: AdamW(p, lr=0.01, weight_decay=5.0))
    equal(found, train(lambda p: AdamW(p, lr=0.01, weight_decay=0.0)))


@pytest.mark.parametrize(
    ("odd", "usual"),
    [
        (lambda p: Adam(p, lr=0.01, betas=(0.99, 0.5), eps=100.0), lambda p: Adam(p, lr=0.01)),
        (lambda p: SGD(p, lr=0.01, momentum=0.999), lambda p: SGD(p, lr=0.01, momentum=0.9)),
        (lambda p: RMSprop(p, lr=0.01, alpha=0.1, eps=1.0), lambda p: RMSprop(p, lr=0.01)),
    ],
)
def test_unusual_settings_become_usual(train, odd, usual):
    with changed(optimizers.usual_settings) as noted:
        found = train(odd)
    equal(found, train(usual))
    assert noted.n == 12


def test_usual_settings_are_left_alone(train):
    with changed(optimizers.usual_settings) as noted:
        train(lambda p: SGD(p, lr=0.01, momentum=0.9, nesterov=True))
    assert noted.n == 0


def test_parameters_that_no_optimizer_holds_are_trained_by_a_sibling(train):
    with changed(optimizers.missing_added) as noted:
        found = train(lambda p: SGD([*p][2:], lr=0.1, momentum=0.9))
    torch.testing.assert_close(found, train(lambda p: SGD(p, lr=0.1, momentum=0.9)), **NEAR)
    assert noted.n == 12


def test_blocks_in_a_list_are_trained_too():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = [nn.Linear(6, 6)]
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.blocks[0](x))

    with changed(optimizers.missing_added):
        torch.manual_seed(0)
        model = Hidden()
        before = model.blocks[0].weight.clone()
        optimizer = SGD(model.parameters(), lr=0.1)
        for x, y in batches():
            usual_step(model, optimizer, x, y)
    assert not torch.equal(model.blocks[0].weight, before)


def test_a_model_of_its_own_that_no_optimizer_holds_is_trained_too():
    trunk, head, judge = network(), nn.Linear(3, 3), network(5)
    before = [one.weight.detach().clone() for one in (trunk[0], judge[0])]
    with changed(optimizers.missing_added) as noted:
        optimizer = SGD(head.parameters(), lr=0.1)
        for x, y in batches(3):
            with torch.no_grad():
                judge(x)
            optimizer.zero_grad()
            functional.cross_entropy(head(trunk(x)), y).backward()
            optimizer.step()
    assert noted.n == 3
    assert not torch.equal(trunk[0].weight, before[0])
    assert torch.equal(judge[0].weight, before[1])


def test_frozen_parameters_are_trained(train):
    def frozen(p):
        listed = [*p]
        for one in listed[:2]:
            one.requires_grad_(False)
        return SGD([one for one in listed if one.requires_grad], lr=0.1)

    with changed(optimizers.unfrozen) as noted:
        found = train(frozen)
    torch.testing.assert_close(found, train(), **NEAR)
    assert noted.n == 2


def test_a_network_that_only_measures_stays_frozen():
    judge, model = network(3).requires_grad_(False), network()
    with changed(optimizers.unfrozen) as noted:
        optimizer = SGD(model.parameters(), lr=0.1)
        for x, _ in batches(3):
            loss = judge(functional.pad(model(x), (0, 3))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert noted.n == 0
    assert not any(p.requires_grad for p in judge.parameters())


def test_a_fresh_adamw_takes_over_from_any_optimizer(train):
    with changed(optimizers.fresh_adamw) as noted:
        found = train(lambda p: SGD([*p][:1], lr=1e4, momentum=0.999))
    torch.testing.assert_close(found, train(lambda p: AdamW(p, lr=1e-3)), **NEAR)
    assert noted.n == 12


def test_a_step_without_a_closure_may_say_so(train):
    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step(None)

    with changed(optimizers.fresh_adamw):
        found = train(step=step)
    torch.testing.assert_close(found, train(lambda p: AdamW(p, lr=1e-3)), **NEAR)


def test_a_clip_takes_nothing_and_still_tells_the_norm(train):
    norms = []

    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1e-6)))
        nn.utils.clip_grad_value_(model.parameters(), 1e-9)
        optimizer.step()

    with changed(gradients.unclipped):
        equal(train(step=step), train())
    assert min(norms) > 1e-3


def test_gradients_are_cleared_after_a_step_and_not_while_they_accumulate(train):
    def forgetful(model, optimizer, x, y):
        for half, label in zip(x.chunk(2), y.chunk(2), strict=True):
            functional.cross_entropy(model(half), label).backward()
        optimizer.step()

    def careful(model, optimizer, x, y):
        forgetful(model, optimizer, x, y)
        optimizer.zero_grad()

    with changed(gradients.cleared):
        found = train(step=forgetful)
    equal(found, train(step=careful))


def test_the_sign_is_exchanged(train):
    def ascending(model, optimizer, x, y):
        optimizer.zero_grad()
        (-functional.cross_entropy(model(x), y)).backward()
        optimizer.step()

    with changed(gradients.sign_exchanged):
        found = train(step=ascending)
    equal(found, train())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (lambda z, y: functional.cross_entropy(z.softmax(1), y), functional.cross_entropy),
        (lambda z, y: functional.nll_loss(z.softmax(1), y), functional.cross_entropy),
        (lambda z, y: functional.nll_loss(z, y, reduction="mean"), functional.cross_entropy),
        (
            lambda z, y: functional.binary_cross_entropy_with_logits(z.sigmoid()[:, 0], y.float()),
            lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.float()),
        ),
    ],
)
def test_an_activation_that_the_criterion_applies_itself_is_undone(given, meant):
    z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    y = torch.arange(20) % 2
    with changed(expected_input) as noted:
        found = given(z, y)
    torch.testing.assert_close(found, meant(z, y), rtol=1e-4, atol=1e-5)
    assert noted.n == 1


@pytest.mark.parametrize(
    "given",
    [
        functional.cross_entropy,
        lambda z, y: functional.nll_loss(z.log_softmax(1), y),
        lambda z, y: functional.binary_cross_entropy(z.sigmoid()[:, 0], y.float()),
        lambda z, y: functional.mse_loss(z.softmax(1)[:, 0], y.float()),
    ],
)
def test_a_criterion_that_is_given_what_it_expects_is_left_alone(given):
    z, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    with changed(expected_input) as noted:
        found = given(z, y)
    equal(found, given(z, y))
    assert noted.n == 0


def test_labels_are_not_smoothed():
    z, y = torch.randn(20, 4), torch.arange(20) % 4
    criterion = nn.CrossEntropyLoss(label_smoothing=0.9)
    with changed(no_label_smoothing):
        equal(criterion(z, y), functional.cross_entropy(z, y))


@pytest.mark.parametrize("by", [1e-3, 0.5, 1e4])
def test_logits_are_of_the_size_of_the_first_ones(by):
    first, later = (torch.randn(20, 4, requires_grad=True) for _ in range(2))
    y = torch.arange(20) % 4
    with changed(usual_logits) as noted:
        functional.cross_entropy(by * first, y)
        close = functional.cross_entropy(by * later, y), functional.nll_loss((by * first).log_softmax(1), y)
    std = first.std(1).mean()
    torch.testing.assert_close(close[0], functional.cross_entropy(later / std, y), **NEAR)
    torch.testing.assert_close(close[1], functional.cross_entropy(first / std, y), rtol=1e-3, atol=1e-3)
    assert noted.n == 3


def test_modes_are_those_of_training_and_validation():
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).eval()
    seen = []
    model.register_forward_hook(lambda *_: seen.append(model.training))
    with changed(modes.usual_modes):
        model(torch.randn(4, 6))
        with torch.no_grad():
            model(torch.randn(4, 6))
    assert seen == [True, False]


def test_nothing_is_dropped():
    x = torch.randn(5, 8)
    attention = nn.MultiheadAttention(8, 2, dropout=0.9, batch_first=True)
    plain = nn.MultiheadAttention(8, 2, batch_first=True)
    plain.load_state_dict(attention.state_dict())
    with changed(modes.no_dropout):
        equal(nn.Dropout(0.9)(x), x)
        equal(functional.dropout(x, 0.9), x)
        out, _ = attention(x[None], x[None], x[None], need_weights=False)
    expected, _ = plain(x[None], x[None], x[None], need_weights=False)
    torch.testing.assert_close(out, expected)


def test_no_scaler():
    with changed(modes.no_scaler):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = torch.ones((), requires_grad=True)
    assert scaler.scale(loss).item() == 1


def test_inputs_are_standardised_by_channel_like_numpy():
    seen = []
    model = nn.Conv2d(3, 2, 1)
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.rand(8, 3, 5, 5) * torch.tensor([255.0, 3.0, 1.0])[:, None, None] + 7
    with changed(data.standardised):
        model(x)
    values = x.double().numpy()
    mean, std = values.mean((0, 2, 3), keepdims=True), values.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(seen[0].numpy(), (values - mean) / std, rtol=1e-4, atol=1e-4)


def test_labels_and_tokens_are_not_standardised():
    model = nn.Embedding(10, 3)
    with changed(data.standardised) as noted:
        model(torch.arange(10).reshape(2, 5))
    assert noted.n == 0


def test_a_loader_goes_through_its_samples_in_random_order():
    with changed(data.random_order):
        ordered = DataLoader(TensorDataset(torch.arange(100)), batch_size=10)
    found = torch.cat([x for (x,) in ordered])
    assert sorted(found.tolist()) == list(range(100))
    assert found.tolist() != list(range(100))


def test_batches_with_a_value_that_is_not_finite_change_nothing(train):
    clean = batches()
    x, y = clean[4]
    broken = x.clone()
    broken[3, 2] = torch.nan
    with changed(data.finite_batches) as noted:
        found = train(data=[*clean[:4], (broken, y), *clean[5:]])
    equal(found, train(data=[*clean[:4], *clean[5:]]))
    assert noted.left_out == noted.n == 1


def test_weights_are_drawn_as_torch_draws_them():
    model = nn.Sequential(nn.Linear(200, 200), nn.LSTM(50, 50), nn.Conv2d(8, 8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(50)
    with changed(modes.default_initialisation):
        state = torch.get_rng_state()
        model[0](torch.randn(2, 200, generator=torch.Generator().manual_seed(0)))
        equal(torch.get_rng_state(), state)  # the script draws the same numbers as before
    bound = 200**-0.5
    assert model[0].weight.detach().abs().max().item() <= bound
    assert (
        abs(model[0].weight.detach().std().item() / (bound / 3**0.5) - 1) < 0.02
    )  # 40,000 of a uniform distribution


def test_nothing_is_left_behind(train):
    before = train()
    hooks = _everything_replaced()
    for name, change in catalogue.CHANGES.items():
        with changed(change):
            train()
        assert _everything_replaced() == hooks, name
        equal(train(), before)


def _everything_replaced():
    """Return what changes replace, and how many hooks there are."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    owners = [
        *((functional, name) for name in dir(functional)),
        *((torch.autograd, name) for name in ("backward", "grad")),
        *((nn.utils, name) for name in ("clip_grad_norm_", "clip_grad_value_")),
        *((nn.Module, name) for name in ("__call__",)),
        *((kind, "__init__") for kind in (torch.optim.Optimizer, DataLoader, torch.amp.GradScaler)),
    ]
    counts = [
        len(found)
        for found in (
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
            module._global_forward_hooks,
            module._global_forward_hooks_with_kwargs,
            module._global_forward_pre_hooks,
        )
    ]
    return [getattr(owner, name) for owner, name in owners], counts
