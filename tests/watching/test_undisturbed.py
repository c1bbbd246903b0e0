"""Many ways to train, each to the same bits with and without somebody looking."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 4)
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        run = self._inside
        x = checkpoint(run, x, use_reentrant=False) if self.is_checkpointed else run(x)
        return self.head(x.mean((2, 3)))

    def _inside(self, x):
        x = self.drop(self.relu(self.bn(self.conv(x))))
        return nn.functional.dropout(torch.tanh(x), 0.1) + x


def train(kind):
    torch.manual_seed(0)
    model = Net(is_checkpointed=kind == "checkpointed")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "amp")
    for i in range(8):
        x, labels = torch.randn(6, 3, 12, 12), torch.randint(4, (6,))
        with torch.autocast("cpu", enabled=kind == "amp"):
            loss = nn.functional.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        if kind != "accumulation" or i % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return {**model.state_dict(), "rng": torch.get_rng_state()}


@pytest.mark.parametrize("kind", ["plain", "amp", "accumulation", "checkpointed"])
def test_weights_and_random_numbers_are_the_same_to_the_last_bit(watching, kind):
    bare, watched = train(kind), {}
    heard = watching(lambda: watched.update(train(kind)))
    assert [key for key in bare if not torch.equal(bare[key], watched[key])] == []
    assert len(heard.reports) == (4 if kind == "accumulation" else 8)
    assert all(report.parameters and report.layers for report in heard.reports)
    assert heard.events == []


def adversaries():
    critic, generator = Net(), nn.Linear(5, 3 * 12 * 12)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (critic, generator)]
    labels = torch.arange(6) % 4
    for i in range(8):
        fakes = generator(torch.randn(6, 5)).view(6, 3, 12, 12)
        optimizers[i % 2].zero_grad(set_to_none=i % 3 == 0)
        loss = nn.functional.cross_entropy(critic(fakes if i % 2 else fakes.detach()), labels)
        (-loss if i % 2 else loss).backward()
        optimizers[i % 2].step()
    return critic, generator


def with_a_closure():
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for _ in range(3):
        x = torch.randn(6, 3, 12, 12)

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return (model,)


def evaluated_in_between():
    """Criteria as modules, one summed by hand, frozen parts, a replaced head, a NaN that is born late."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.head = nn.Linear(8, 1)
    model.conv.weight.requires_grad_(False)
    smooth, binary = nn.CrossEntropyLoss(label_smoothing=0.1), nn.BCEWithLogitsLoss()
    for i in range(12):
        x, y = torch.randn(6, 3, 12, 12), torch.rand(6)
        out = model(x)
        loss = smooth(out.repeat(1, 4), torch.arange(6) % 4) + binary(out[:, 0], y.round())
        loss = loss + nn.functional.mse_loss(out[:, 0], y) + (out - y).square().sum()
        loss = loss * (torch.nan if i == 10 else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            nn.functional.cross_entropy(model(x).repeat(1, 4), torch.arange(6) % 4)
        model.train(i % 4 > 0)
    return (model,)


class Doubled(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def losses_by_hand():
    """Outputs that are exchanged between samples in recorded steps, in losses with everything that has a state."""
    model, head, mean = Net(), nn.Linear(4, 4), torch.zeros(4)
    norm = nn.BatchNorm1d(4)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters(), *norm.parameters()], lr=0.01)
    for i in range(60):
        with torch.device("cpu"):
            out = model(torch.randn(6, 3, 12, 12))
        y = torch.randn(6, 4)
        kinds = [
            lambda out, y: (out - y).abs().mean(),
            lambda out, y: nn.functional.dropout(out - y).square().mean(),
            lambda out, y: (norm(out) - head(out)).square().mean() + (out[:, 0] * y[:, 0]).sum(),
            lambda out, y: ((out + torch.randn_like(out)) * y).sum().square(),
            lambda out, y: Doubled.apply(out.clone().mul_(y)).logsumexp(1).mean(),
            lambda out, y: (out - mean.mul_(0.9).add_(0.1 * out.detach().mean(0))).square().sum(),
            lambda out, y: torch.autograd.grad((out * y).sum(), out, create_graph=True)[0].sum() + out.var(),
        ]
        optimizer.zero_grad()
        kinds[i % len(kinds)](out, y).backward()
        optimizer.step()
    assert not torch.overrides._get_current_function_mode_stack()
    return model, head, norm


@pytest.mark.parametrize("run", [adversaries, with_a_closure, evaluated_in_between, losses_by_hand])
def test_whole_loops_are_left_as_they_are(watching, run):
    states = []

    def script():
        models = run()
        states.append([*(value for model in models for value in model.state_dict().values())])
        states[-1].append(torch.get_rng_state())

    torch.manual_seed(0)
    script()
    heard = watching(script)
    bare, watched = states
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(bare, watched, strict=True))
    assert heard.reports


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_not_collected_inside_recorded_passes_and_as_before_between_them(watching, is_on):
    class Looking(nn.Linear):
        def forward(self, x):
            inside.append(gc.isenabled())
            return super().forward(x)

    inside, between = [], []
    model = Looking(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        for _ in range(6):
            between.append(gc.isenabled())
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.ones(4, 3))
        model(torch.ones(4, 3))  # recorded, and no step follows

    (gc.enable if is_on else gc.disable)()
    try:
        watching(train)
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
    assert between == [is_on] * 6
    assert inside[1:7] == [False] * 5 + [is_on]
