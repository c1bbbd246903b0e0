"""What the functions between outputs and the loss tell: labels, a teacher that is trained, targets out of reach."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

STEPS, FEW_STEPS = 60, 40  # what is written by hand is read from step 32 on


def _labelled() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 4, (32,))
    return functional.one_hot(labels, 4) * 2 + 0.3 * torch.randn(32, 4), labels


def _net(n: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, n))


def _by_gather(scores, labels):
    return -scores.log_softmax(1).gather(1, labels[:, None]).mean()


def _by_index(scores, labels):
    return -scores.log_softmax(1)[range(len(labels)), labels].mean()


def _focal(scores, labels):
    p = torch.take_along_dim(scores.softmax(1), labels[:, None], 1)
    return (-((1 - p) ** 2) * p.log()).mean()


def _smoothed(scores, labels):
    logarithms = scores.log_softmax(1)
    targets = torch.full_like(logarithms, 0.02).scatter_(1, labels[:, None], 0.94)
    return -(targets * logarithms).sum(1).mean()


def _reversed(scores, labels):
    return (functional.one_hot(labels, 4).float() * scores.softmax(1)).sum(1).mean()


def _of_largest(scores, labels):
    return -scores.log_softmax(1).gather(1, scores.argmax(1, keepdim=True)).mean()


@pytest.mark.parametrize("criterion", [_by_gather, _by_index, _focal, _smoothed, _reversed, _of_largest])
def test_the_accuracy_of_a_loss_written_by_hand(recorded, criterion):
    def train():
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            images, labels = _labelled()
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()

    record = recorded(train)
    seen = [one for one in record.facts.criteria if one.is_training]
    if criterion is _of_largest:
        assert not seen  # it is no label
    elif criterion is _reversed:
        found = record.findings[0]
        assert found.code == "MS722"
        assert found.message.startswith(
            "the loss falls, but not the cross-entropy with the labels, which rises"
        )
        assert "accuracy 0.0 %" in found.message
    else:
        assert (seen[0].classes, record.verdict) == (4, "nothing wrong")
        assert seen[0].series.accuracy[-1] > 0.9


def test_the_actions_of_a_policy_gradient_are_no_labels(recorded):
    def train():
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        for _ in range(FEW_STEPS):
            images, labels = _labelled()
            with torch.no_grad():
                actions = model(images).softmax(1).multinomial(1)
            advantage = (actions[:, 0] == labels).float() - 0.5
            optimizer.zero_grad()
            (-model(images).log_softmax(1).gather(1, actions)[:, 0] * advantage).mean().backward()
            optimizer.step()

    assert not recorded(train).facts.criteria


@pytest.mark.parametrize(
    ("how", "has_labels"), [("loaded", False), ("evaluation", False), ("loaded", True), ("both new", False)]
)
def test_a_teacher_in_the_optimizer(recorded, how, has_labels):
    """One with a loss of its own on the labels learns with the other: both are students."""

    def train():
        teacher, student = _net(), _net()
        if how == "loaded":
            teacher.load_state_dict(_net().state_dict())
        teacher.train(how != "evaluation")
        optimizer = torch.optim.SGD([*student.parameters(), *teacher.parameters()], lr=0.1)
        for _ in range(FEW_STEPS):
            images, labels = _labelled()
            goal, scores = teacher(images), student(images)
            loss = functional.kl_div(scores.log_softmax(1), goal.softmax(1), reduction="batchmean")
            loss = loss + functional.cross_entropy(scores, labels)
            if has_labels:
                loss = loss + functional.cross_entropy(goal, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    found = [one for one in recorded(train).findings if one.code == "MS737"]
    assert len(found) == (how != "both new" and not has_labels)
    assert all("is only compared with student" in one.message for one in found)


def test_towers_that_are_compared_across_the_batch_are_no_teachers(recorded):
    def train():
        images, texts = _net(), _net()
        images.load_state_dict(_net().state_dict())
        optimizer = torch.optim.SGD([*images.parameters(), *texts.parameters()], lr=0.1)
        for _ in range(FEW_STEPS):
            x, _ = _labelled()
            scores = images(x) @ texts(x).T
            optimizer.zero_grad()
            (scores.logsumexp(1) - scores.diagonal()).mean().backward()
            optimizer.step()

    assert not [one for one in recorded(train).findings if one.code == "MS737"]


@pytest.mark.parametrize(
    ("activation", "scale", "shift", "is_out"),
    [
        (nn.Sigmoid(), 1.0, 0.0, True),
        (nn.Sigmoid(), 0.3, -2.0, True),
        (nn.Sigmoid(), 0.1, 0.5, False),
        (nn.Tanh(), 5.0, 0.0, True),
        (nn.Tanh(), 0.4, 0.0, False),
        (nn.ReLU(), 1.0, -3.0, True),
        (nn.ReLU(), 1.0, 4.0, False),
        (nn.Identity(), 5.0, 0.0, False),
    ],
)
def test_targets_out_of_the_reach_of_the_last_activation(recorded, activation, scale, shift, is_out):
    """A criterion of torch is looked at from the first step on, however short the run."""

    def loss(x, y):
        return functional.l1_loss(x, y)

    found = _out_of_range(recorded, loss, activation, scale, shift, steps=4)
    assert len(found) == is_out
    assert all(one.since_step == 0 and "is compared with targets from" in one.message for one in found)


@pytest.mark.parametrize("is_out", [False, True])
def test_targets_out_of_reach_in_a_loss_written_by_hand(recorded, is_out):
    def loss(x, y):
        return ((y - x) ** 2).mean()

    found = _out_of_range(recorded, loss, nn.Sigmoid(), 1.0 if is_out else 0.1, 0.5, steps=FEW_STEPS)
    assert len(found) == is_out


def _out_of_range(recorded, criterion, activation, scale, shift, steps):
    def train():
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), activation)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(steps):
            x = torch.randn(64, 4)
            optimizer.zero_grad()
            criterion(model(x), x * scale + shift).backward()
            optimizer.step()

    return [one for one in recorded(train).findings if one.code == "MS721"]


def test_counts_are_compared_with_a_rate_not_with_its_logarithm(recorded):
    def counted(x, y):
        return functional.poisson_nll_loss(x, y.abs())

    assert not _out_of_range(recorded, counted, nn.Tanh(), 5.0, 0.0, steps=4)


def test_a_plateau_is_named_whose_mode_lets_the_learning_rate_fall(recorded):
    def train():
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)  # marked
        for _ in range(FEW_STEPS):
            images, labels = _labelled()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step(loss.item())

    (found,) = [one for one in recorded(train).findings if one.code == "MS719"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (line,) = [n for n, one in enumerate(lines, 1) if one.endswith("  # marked")]
    assert found.place.endswith(f"test_hand_written.py:{line}")
    assert "mode='min'" in found.hint


@pytest.mark.parametrize("kind", [list, dict, nn.ModuleList])
def test_modules_in_a_plain_list(recorded, kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]
            self.blocks = dict(enumerate(blocks)) if kind is dict else kind(blocks)
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            for one in self.blocks.values() if kind is dict else self.blocks:
                x = one(x).relu()
            return self.head(x)

    def train():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            images, labels = _labelled()
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    hints = [one.hint for one in recorded(train).findings if one.code == "MS712"]
    wanted = {list: ["make Net.blocks an nn.ModuleList"], dict: ["make Net.blocks an nn.ModuleDict"]}
    assert [hint.partition(",")[0] for hint in hints] == wanted.get(kind, [])
