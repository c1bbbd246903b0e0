"""What an objective must hold: weights that move, modules that are held, outputs that see what they may."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelscope_cli.watching.bookkeeping import _has_teacher
from tests.watching.conftest import codes, fit

STEPS = 12


def guesses(model) -> torch.Tensor:
    """Return the loss of a new batch, of which nothing can be learnt."""
    return functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,)))


# Who holds what


@pytest.mark.parametrize("is_held", [False, True])
def test_layers_in_a_python_list(recorded, is_held) -> None:
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = [nn.Linear(6, 6), nn.Linear(6, 6)], nn.Linear(6, 3)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x)

    def script():
        model = Listed()
        listed = [p for layer in model.layers for p in layer.parameters()] if is_held else []
        fit(model, lambda: guesses(model), held=[*model.parameters(), *listed])

    assert codes(recorded(script)) == ([] if is_held else ["MS712"])


@pytest.mark.parametrize("what", ["all held", "head left out", "judged by another"])
def test_a_head_that_only_a_trained_part_feeds_is_to_be_held(recorded, what) -> None:
    def script():
        body, head = nn.Linear(6, 6), nn.Linear(6, 3)
        x = torch.randn(16, 6)

        def loss():
            if what == "judged by another":  # what it is run on as well is not of the trained part
                return functional.mse_loss(head(body(x)), head(x).detach())
            return guesses(lambda x: head(body(x)))

        fit(body, loss, held=[*body.parameters(), *(head.parameters() if what == "all held" else ())])

    assert ("MS712" in codes(recorded(script))) == (what == "head left out")


@pytest.mark.parametrize("kind", ["held", "left out", "by hand", "in evaluation"])
def test_a_parameter_of_the_loss_alone(recorded, kind) -> None:
    def script():
        model, scale = nn.Linear(6, 3), nn.ParameterDict({"log": torch.zeros(())})
        if kind == "in evaluation":
            scale.eval()

        def by_hand(step):
            if kind == "by hand":
                scale["log"].data -= 0.1 * scale["log"].grad

        held = [*model.parameters(), *(scale.parameters() if kind == "held" else ())]
        fit(model, lambda: guesses(model) * (-scale["log"]).exp() + scale["log"], held=held, after=by_hand)

    assert ("MS712" in codes(recorded(script))) == (kind == "left out")


@pytest.mark.parametrize("is_held", [True, False])
def test_a_critic_whose_optimizer_holds_the_generator(recorded, is_held) -> None:
    def script():
        generator, critic = nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        made = torch.optim.Adam(generator.parameters())
        judged = torch.optim.Adam((critic if is_held else generator).parameters())
        for _ in range(STEPS):
            real, false = torch.randn(16, 2) + 2, generator(torch.randn(16, 3))
            judged.zero_grad()
            (critic(false.detach()).mean() - critic(real).mean()).backward()
            judged.step()
            made.zero_grad()
            (-critic(false).mean()).backward()
            made.step()

    found = codes(recorded(script))
    assert ("MS712" in found, "MS714" in found) == (not is_held, False)


# Gradients that are cleared, kept or repeated


def closing(kind, clears, is_outside=False, **options):
    """Train by a closure, with gradients that are cleared in it, before the step, or never."""
    model = nn.Linear(6, 3)
    optimizer = kind(model.parameters(), lr=0.05, **options)

    def closure():
        if clears:
            optimizer.zero_grad()
        loss = guesses(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        if is_outside:
            optimizer.zero_grad()
        optimizer.step(closure)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SGD])
def test_a_closure_that_clears_no_gradients(recorded, kind) -> None:
    options = {"max_iter": 4} if kind is torch.optim.LBFGS else {}
    cleared = recorded(lambda: closing(kind, True, **options))
    assert ("MS713" in codes(cleared), cleared.steps) == (False, STEPS)
    assert codes(recorded(lambda: closing(kind, False, **options)))[0] == "MS713"
    outside = codes(recorded(lambda: closing(kind, False, is_outside=True, **options)))
    assert ("MS713" in outside) == (kind is torch.optim.LBFGS)  # which calls it several times a step


@pytest.mark.parametrize(
    ("clears", "share", "is_lost"), [("each", 4, True), ("once", 4, False), ("each", 1, False)]
)
def test_gradients_of_all_but_one_part_are_cleared(clears, share, is_lost, recorded) -> None:
    """A loss that is not divided is that of a pass of its own, as in adversarial training."""

    def script():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for n in range(4 * STEPS):
            if clears == "each" or n % 4 == 0:
                optimizer.zero_grad()
            (guesses(model) / share).backward()
            if n % 4 == 3:
                optimizer.step()

    assert ("MS714" in codes(recorded(script))) == is_lost


def test_a_loss_by_its_derivatives_alone(recorded) -> None:
    def script():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(60):
            x = torch.randn(32, 6)
            loss = functional.cross_entropy(model(x), x[:, :3].argmax(1))
            gradients = torch.autograd.grad(loss, model.parameters())
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

    record = recorded(script)
    assert len(record.loss[0].value) == 60
    assert record.verdict == "nothing wrong"


# Work that is lost


@pytest.mark.parametrize(
    ("kind", "is_remade", "is_found"),
    [(torch.optim.Adam, False, True), (torch.optim.Adam, True, False), (torch.optim.SGD, False, False)],
    ids=["each epoch", "each fold", "each task"],
)
def test_the_first_weights_are_loaded_again(kind, is_remade, is_found, recorded) -> None:
    def script():
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        first, optimizer = copy.deepcopy(model.state_dict()), kind(model.parameters(), lr=0.01)
        for _ in range(6):
            model.load_state_dict(first)
            optimizer = kind(model.parameters(), lr=0.01) if is_remade else optimizer
            for _ in range(5):
                optimizer.zero_grad()
                guesses(model).backward()
                optimizer.step()

    assert ("MS747" in codes(recorded(script))) == is_found


def test_two_optimizers_of_one_line_for_the_same_parameters(recorded) -> None:
    def script():
        first, judge = nn.Linear(6, 4), nn.Linear(4, 1)
        steppers = [torch.optim.Adam(judge.parameters()) for _ in range(2)]
        for _ in range(20):
            for optimizer in steppers:
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(
                    judge(first(torch.randn(8, 6))), torch.ones(8, 1)
                ).backward()
                optimizer.step()

    record = recorded(script)
    assert record.steps == 20
    (found,) = [one for one in record.findings if one.code == "MS712"]
    assert "Adam#2 holds only parameters that another optimizer also holds" in found.message


@pytest.mark.parametrize(("each", "length", "is_found"), [(25, 60, True), (1, 60, False), (1, 10**7, True)])
def test_a_warm_up_that_is_stepped_by_epoch_or_far_longer_than_the_run(
    each, length, is_found, recorded
) -> None:
    def script():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / length, 1.0))
        for step in range(100):
            optimizer.zero_grad()
            guesses(model).backward()
            optimizer.step()
            if step % each == each - 1:
                schedule.step()

    record = recorded(script, every=10)  # the schedule is gone when the script has returned
    assert [one.used for one in record.facts.schedules] == [99 // each]
    assert ("MS758" in codes(record)) == is_found


def test_the_peak_of_a_cycle_is_its_base(recorded) -> None:
    def script():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, 100, div_factor=1e6)
        for _ in range(3):
            guesses(model).backward()
            optimizer.step()
            schedule.step()

    assert [one.base for one in recorded(script).facts.schedules] == [0.5]


# Copies of a model that stay as they were


@pytest.mark.parametrize("kind", ["frozen", "updated", "late", "teacher", "beside"])
def test_an_average_that_is_never_updated(recorded, kind) -> None:
    def script():
        model = nn.Linear(6, 3)
        other = copy.deepcopy(model)
        x, y = torch.randn(32, 6), torch.randint(3, (32,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for i in range(40):
            optimizer.zero_grad()
            with torch.no_grad():
                targets = other(x) if kind == "teacher" else model(x).detach()
            (functional.cross_entropy(model(x), y) + functional.mse_loss(model(x), targets)).backward()
            optimizer.step()
            if kind == "updated" or (kind == "late" and i > 20):
                other.weight.data.lerp_(model.weight.data, 0.1)
            if i % 8 == 7 and kind != "teacher":
                with torch.no_grad():
                    functional.cross_entropy(other(x), y)
                    if kind == "beside":
                        functional.cross_entropy(model(x), y)

    assert ("MS763" in codes(recorded(script))) == (kind == "frozen")


@pytest.mark.parametrize("name", ["self.target_net", "updated target", "reference"])
def test_a_target_network_that_is_never_updated(recorded, name) -> None:
    class Agent:
        def __init__(self):
            self.net = nn.Linear(6, 3)
            setattr(self, "reference" if name == "reference" else "target_net", copy.deepcopy(self.net))
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

        def learn(self):
            other = getattr(self, "reference" if name == "reference" else "target_net")
            with torch.no_grad():
                goal = torch.randn(8) + 0.9 * other(torch.randn(8, 6)).amax(1)
            loss = functional.mse_loss(self.net(torch.randn(8, 6)).amax(1), goal)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    agents = []  # alive until the end

    def script():
        agents.append(agent := Agent())
        for n in range(510):
            agent.learn()
            if name == "updated target" and n == 400:
                agent.target_net.load_state_dict(agent.net.state_dict())

    assert ("MS763" in codes(recorded(script, every=50))) == (name == "self.target_net")


def test_a_momentum_encoder_inside_the_model_makes_its_targets():
    encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    teacher = copy.deepcopy(encoder).requires_grad_(False)
    frozen = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 4))
    assert _has_teacher(list(nn.ModuleDict({"encoder": encoder, "teacher": teacher}).parameters()))
    assert not _has_teacher(list(frozen.parameters()))
    assert not _has_teacher(list(encoder.parameters()))


# What is computed of the outputs


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "kl_div", "cross_entropy"])
def test_the_best_constant_costs_what_torch_says(watching, name, reduction) -> None:
    """Of a batch that is large, by the criterion itself."""
    targets = 2 * torch.randn(4000, 1) if name.endswith("_loss") else torch.randn(4000, 3).softmax(1)
    best = targets.mean(0, keepdim=True) if name != "l1_loss" else targets.median(0, keepdim=True)[0]
    best = best.log() if name in ("kl_div", "cross_entropy") else best
    guess = best.expand_as(targets).clone().requires_grad_()
    cost = getattr(functional, name)(guess, targets, reduction=reduction).item()
    model = nn.Linear(1, 1)

    def loss():
        criterion = getattr(functional, name)
        return criterion(guess, targets, reduction=reduction) + 0 * model(torch.ones(1, 1)).sum()

    heard = watching(lambda: fit(model, loss, held=[*model.parameters(), guess], steps=1, lr=0.0))
    (figures,) = [sums.row() for report in heard.reports for sums in report.criteria.values()]
    assert figures[8] == pytest.approx(cost / (4000 if reduction == "sum" else 1), rel=0.02)


@pytest.mark.parametrize("is_collapsing", [False, True])
def test_directions_that_become_one(recorded, is_collapsing) -> None:
    def script():
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

        def loss():
            x = torch.randn(32, 16)
            u, v = (functional.normalize(model(x + 0.3 * torch.randn_like(x)), dim=1) for _ in range(2))
            near = 1 - (u * v).sum(1).mean()
            return near if is_collapsing else near + torch.pdist(u).square().mul(-2).exp().mean().log()

        fit(model, loss, steps=120, kind=torch.optim.Adam, lr=5e-3)

    assert ("MS757" in codes(recorded(script))) == is_collapsing


@pytest.mark.parametrize(
    ("kind", "margin", "noise", "decay", "ends"),
    [
        ("triplets", 0.5, 0.3, 0.0, "learning"),
        ("triplets", 0.0, 1.5, 0.0, "MS757"),
        ("triplets", 0.5, 1.0, 3.0, "MS757"),
        ("pairs", 0.5, 0.3, 0.0, "nothing wrong"),
        ("pairs", 0.5, 1.0, 3.0, "MS757"),
    ],
)
def test_a_loss_that_stays_where_one_point_has_it(recorded, kind, margin, noise, decay, ends) -> None:
    """At the margin, or the logarithm of the batch: not what falls to it has learnt, but what falls below it."""

    def script():
        model, centres = nn.Linear(16, 8), torch.randn(8, 16)

        def of(labels):
            return model(centres[labels] + noise * torch.randn(len(labels), 16))

        def loss():
            y = torch.randperm(8)
            a, b, c = of(y), of(y), of(y.roll(1))
            if kind == "pairs":
                return functional.cross_entropy(a @ b.T, torch.arange(8)) + decay * a.square().sum(1).mean()
            far = (a - b).square().sum(1) - (a - c).square().sum(1) + margin
            return far.relu().mean() + decay * a.square().sum(1).mean()

        fit(model, loss, steps=240, lr=0.02)

    record = recorded(script)
    assert ends in (*codes(record), record.verdict)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["weights of a mixture", "scores of a list"])
def test_what_sums_to_one_over_the_samples(recorded, kind, dim) -> None:
    def script():
        if kind == "weights of a mixture":
            model, x, y = nn.Linear(6, 8), torch.randn(16, 6), torch.randn(16, 1)
        else:
            model, x, y = nn.Linear(6, 1), torch.randn(16, 9, 6), None

        def loss():
            if y is None:
                return -(x[..., 0].softmax(1) * model(x).squeeze(-1).log_softmax(dim)).sum(1).mean()
            scores, mean = model(x).chunk(2, 1)
            return -torch.logsumexp(scores.log_softmax(dim) - (y - mean).square(), 1).mean()

        fit(model, loss, lr=0.01)

    assert ("MS759" in codes(recorded(script))) == (dim == 0)


@pytest.mark.parametrize("kind", ["of others", "own", "of moments", "centred reward"])
def test_a_loss_that_is_no_higher_for_the_outputs_of_other_samples(recorded, kind) -> None:
    """A loss written by hand, whose targets belong to other samples where `kind` says so."""

    def script():
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

        def loss():
            x = torch.randn(32, 4)
            y = x[:, :1] * x[:, 1:2] + 0.1 * torch.randn(32, 1)
            if kind == "centred reward":
                return (model(x).log_softmax(1)[:, 0] * torch.randn(32)).mean()
            mean, log_scale = model(x).chunk(2, 1)
            if kind == "of moments":  # it compares no sample with another
                return (mean.mean() - y.mean()).square() + (mean.std() - y.std()).square()
            y = y[torch.randperm(32)] if kind == "of others" else y
            return (log_scale + (y - mean).abs() * (-log_scale).exp()).mean()

        fit(model, loss, steps=200, kind=torch.optim.Adam, lr=5e-3)

    assert ("MS756" in codes(recorded(script))) == (kind == "of others")


class Pooled(nn.Module):
    """Adds to each position what it gets from the whole set, or by mistake from the whole batch."""

    def __init__(self, dims, is_flat=False):
        super().__init__()
        self.dims, self.is_flat = dims, is_flat
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.inner(x).tanh()
        if self.is_flat:  # attention, to one number for each sample
            return self.outer((h[..., :1].softmax(self.dims[0]) * h).sum(1)).squeeze(1)
        return self.outer(h + h.mean(self.dims, keepdim=True))


def test_a_loss_that_is_computed_again_warns_once(recorded) -> None:
    def script():
        model = nn.Linear(4, 1)
        fit(model, lambda: functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8)), steps=36)

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        recorded(script)
    assert len([one for one in given if "target size" in str(one.message)]) == 36


VIEWS = ["two views", "the same view", "no mask", "positions", "zeros", "dropout"]


@pytest.mark.parametrize("kind", VIEWS)
def test_a_contrastive_loss_that_compares_samples_with_themselves(recorded, kind) -> None:
    """By cross-entropy over a similarity matrix; `dropout` makes views of the same input."""

    def script():
        model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.3 if kind == "dropout" else 0))

        def loss():
            x = torch.randn(8, 16)
            other = x if kind in ("the same view", "dropout") else x + 0.1 * torch.randn_like(x)
            z = functional.normalize(model(torch.cat([x, other])), dim=1) * (kind != "zeros")
            if kind == "positions":
                return functional.cross_entropy(5 * z[:8] @ z[8:].T, torch.arange(8))
            scores = 5 * z @ z.T
            scores = (
                scores if kind == "no mask" else scores.masked_fill(torch.eye(16, dtype=torch.bool), -1e9)
            )
            return functional.cross_entropy(scores, torch.arange(16).roll(8))

        fit(model, loss, steps=3)

    found = [one.message for one in recorded(script).findings if one.code == "MS759"]
    words = {"the same view": "both views are the same image", "no mask": "each sample with itself"}.get(kind)
    assert (words in found[0]) if words else not found


@pytest.mark.parametrize(("is_flat", "dims"), [(True, (0,)), (True, (1,)), (False, (0, 1)), (False, (1,))])
def test_sets_that_are_pooled_over_the_batch(recorded, is_flat, dims) -> None:
    def script():
        model = Pooled(dims, is_flat)
        fit(model, lambda: model(torch.randn(16, 5, 4)).square().mean(), lr=0.01)

    assert ("MS759" in codes(recorded(script))) == (0 in dims)
