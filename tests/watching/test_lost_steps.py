"""Work that is lost: weights loaded again, gradients cleared, a warm-up that never ends, targets that stay."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelscope_cli.watching.bookkeeping import _has_teacher

STEPS = 12


def codes(record) -> list[str]:
    return [one.code for one in record.findings]


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
                functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
                optimizer.step()

    assert ("MS747" in codes(recorded(script))) == is_found


@pytest.mark.parametrize(
    ("clears", "share", "is_lost"), [("each", 4, True), ("once", 4, False), ("each", 1, False)]
)
def test_gradients_of_all_but_one_part_are_cleared(clears, share, is_lost, recorded) -> None:
    """A loss that is not divided is that of a pass of its own, as in adversarial training."""

    def script():
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for n in range(4 * STEPS):
            if clears == "each" or n % 4 == 0:
                optimizer.zero_grad()
            (functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))) / share).backward()
            if n % 4 == 3:
                optimizer.step()

    assert ("MS714" in codes(recorded(script))) == is_lost


@pytest.mark.parametrize(("each", "is_found"), [(25, True), (1, False)])
def test_a_warm_up_by_steps_that_is_stepped_by_epoch(each, is_found, recorded) -> None:
    def script():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 60, 1.0))
        for step in range(200):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
            optimizer.step()
            if step % each == each - 1:
                schedule.step()

    assert ("MS758" in codes(recorded(script, every=10))) == is_found


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
