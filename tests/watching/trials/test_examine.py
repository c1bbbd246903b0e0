"""The gradient of a layer beside differences, and samples learnt by heart."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models import mobilenet_v3_small, resnet18
from watching.trials.conftest import batches, changed, network, usual_step

from modelscope_cli.watching.trials.examine import Slopes, by_heart, gradients_beside_differences


class WrongSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.tanh() ** 2 - 1)


class Rounded(torch.autograd.Function):  # straight-through
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.fixture(autouse=True)
def the_same_weights():
    """Of random nets a few have slopes that rounding hides, which nothing is said about."""
    torch.manual_seed(0)


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def found_in(model, x):
    """Return the slopes that differ."""
    with changed(gradients_beside_differences) as noted:
        for _ in range(2):
            model(x)
    return [Slopes(**note["found"]) for note in noted.notes if "layer" in note.get("found", {})]


def test_a_backward_with_the_wrong_sign_is_named():
    model = nn.Sequential(nn.Linear(6, 8), Applied(WrongSign.apply), nn.Linear(8, 3))
    (wrong,) = found_in(model, torch.randn(16, 6))
    assert (wrong.layer, wrong.is_wrong) == ("1", True)
    assert "-1 times the slope" in wrong.words


def test_a_detached_part_is_named():
    model = nn.Sequential(
        nn.Linear(6, 8), Applied(lambda x: torch.from_numpy(x.detach().numpy() ** 2)), nn.Linear(8, 3)
    )
    (wrong,) = found_in(model, torch.randn(16, 6))
    assert (wrong.layer, wrong.is_wrong) == ("1", True)
    assert "blocks the gradient" in wrong.words


def test_a_straight_through_estimate_is_not_wrong():
    model = nn.Sequential(nn.Linear(6, 8), Applied(Rounded.apply), nn.Linear(8, 3))
    assert not any(one.is_wrong for one in found_in(model, torch.randn(16, 6)))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)),
            (2, 3, 9, 9),
        ),
        (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(1)), (5, 6)),
        (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
        (nn.LSTM(6, 7, batch_first=True), (2, 4, 6)),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)),
            (2, 3, 9, 9),
        ),
        (resnet18(num_classes=5), (1, 3, 64, 64)),
        (mobilenet_v3_small(num_classes=5), (1, 3, 64, 64)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_layers_of_torch_agree(model, x):
    torch.manual_seed(0)
    assert found_in(model, torch.randn(x)) == []


def test_inputs_full_of_zeros_and_ties_agree():
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(1, 2, 3))
    assert found_in(model, torch.zeros(2, 1, 12, 12)) == []


def test_the_model_is_not_changed():
    model, x = network(), torch.randn(4, 6)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    found_in(model, x)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert not x.requires_grad


def test_eight_samples_are_learnt_by_heart_whatever_the_labels_and_the_recipe():
    model = network()
    losses = []

    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    with changed(by_heart) as noted:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for x, y in batches(600):
            step(model, optimizer, x, y)
    assert noted.n == 599  # from the first step of AdamW on
    assert losses[-1] < 0.3 * losses[0]


def test_sequences_keep_their_labels_and_pairings_are_not_touched():
    embed = nn.Embedding(9, 9)
    x, given = torch.randint(0, 9, (12, 5)), []
    with changed(by_heart) as noted:
        for tokens in (x, torch.randint(0, 9, (12, 5))):
            handle = embed.register_forward_pre_hook(lambda _, args: given.append(args[0]))
            functional.cross_entropy(embed(tokens).flatten(0, 1), tokens.flatten())
            handle.remove()
        assert torch.equal(given[0], given[1])
        assert torch.equal(given[0][:8], x[:8])
        alone = embed(torch.arange(9))
        cost = functional.cross_entropy(alone, torch.arange(9))  # each sample is a class of its own
    assert cost.item() == functional.cross_entropy(alone, torch.arange(9)).item()
    assert noted.n == 0  # no optimizer has stepped


def test_the_labels_of_the_repeated_samples_are_theirs():
    seen = []
    model = network()
    first, second = batches(2)
    with changed(by_heart):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in (first, second):
            usual_step(model, optimizer, x, y)
            model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    torch.testing.assert_close(seen[-1], first[0][torch.arange(16) % 8])
