"""A part that is frozen on purpose is accused of nothing, and what moves in it is told."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 12


class Body(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))


class Net(nn.Module):
    def __init__(self, has_dropout=False):
        super().__init__()
        self.body, self.head = Body(), nn.Sequential(nn.Dropout(0.2 * has_dropout), nn.Linear(8, 3))

    def forward(self, x):
        return self.head(self.body(x))


def train(model, parameters, after=lambda model: None):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(STEPS):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
        after(model)


def moving(record):
    return [one.message for one in record.run.warnings if one.code == "moving-norms"]


def codes(record):
    return {one.code for one in record.findings}


@pytest.mark.parametrize(
    ("frozen", "has_dropout", "is_accused"),
    [("body", False, False), ("body", True, True), ("body.1", False, True), ("", False, True)],
)
def test_evaluation_mode_is_a_fault_only_in_the_part_that_learns(recorded, frozen, has_dropout, is_accused):
    def script():
        model = Net(has_dropout).eval()
        if frozen:
            model.get_submodule(frozen).requires_grad_(False)
        train(model, [one for one in model.parameters() if one.requires_grad])

    record = recorded(script)
    assert ("MS718" in codes(record)) == is_accused
    assert not moving(record)
    messages = [one.message for one in record.findings if one.code == "MS718"]
    assert all(("BatchNorm1d" in message) == (not frozen) for message in messages)


def test_norms_of_a_frozen_part_in_training_mode_are_told(recorded):
    def script():
        model = Net()
        model.body.requires_grad_(False)
        train(model, model.head.parameters())

    record = recorded(script)
    (message,) = moving(record)
    assert "a frozen batch norm of Net change: body.1; call .eval()" in message


def thaw(model):
    model.body.requires_grad_(True)


@pytest.mark.parametrize("how", ["in evaluation mode", "thawed", "without statistics", "of a judge"])
def test_norms_that_are_trained_or_do_not_move_are_not(recorded, how):
    def script():
        model = Net()
        model.body.requires_grad_(False)
        if how == "without statistics":
            model.body[1] = nn.BatchNorm1d(8, track_running_stats=False).requires_grad_(False)
        if how == "in evaluation mode":
            model.body.eval()
        if how == "of a judge":
            judge, model = model.requires_grad_(False), Net()
            return train(lambda x: model(x) + judge(x), model.parameters())
        return train(model, model.parameters(), thaw if how == "thawed" else lambda _: None)

    assert moving(recorded(script)) == []


def test_an_optimizer_of_the_frozen_part_alone(recorded):
    def script():
        model = Net()
        model.body.requires_grad_(False)
        train(model, model.body.parameters())

    (found,) = [one for one in recorded(script).findings if one.code == "MS712"]
    assert found.layer == "head.1.weight"
    assert found.message.endswith("all parameters in the optimizer have requires_grad=False")
    assert found.hint.startswith("pass the optimizer [p for p in model.parameters() if p.requires_grad]")


def test_of_what_is_in_no_optimizer_the_last_layer_is_named_first(recorded):
    def script():
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        train(model, model[2].parameters())

    (found,) = [one for one in recorded(script).findings if one.code == "MS712"]
    assert found.layer == "4.weight"
    assert "also 0.weight" in found.message


@pytest.mark.parametrize("is_left", [False, True])
def test_passes_in_training_mode_without_labels_are_not_judged(recorded, is_left):
    def script():
        model = Net(has_dropout=True)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(60):
            x = torch.randn(64, 6)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
        model.train(is_left)
        with torch.no_grad():
            model(torch.randn(16, 6))

    record = recorded(script)
    assert record.findings == ()
    said = "the evaluation (its forward passes ran in training mode, and so did its BatchNorm1d and Dropout layers"
    assert (said in record.reason) == is_left
