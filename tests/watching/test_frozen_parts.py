"""A part that is frozen on purpose is accused of nothing, and what moves in it is told; copies, and heads."""

import copy

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
    said = "the evaluation (its forward passes, with BatchNorm1d and Dropout layers, ran in training mode"
    assert (said in record.reason) == is_left


@pytest.mark.parametrize("is_held", [False, True])
def test_the_passes_of_a_teacher_are_no_validation(recorded, is_held):
    def script():
        teacher, student = nn.Linear(6, 3).eval(), Net()
        held = [*student.parameters(), *teacher.parameters()] if is_held else student.parameters()
        optimizer = torch.optim.Adam(held, 0.01)
        for _ in range(STEPS):
            x = torch.randn(16, 6)
            with torch.no_grad():
                wanted = teacher(x)
                F.cross_entropy(wanted, x[:, :3].argmax(1))
            optimizer.zero_grad()
            scores = student(x)
            (F.cross_entropy(scores, x[:, :3].argmax(1)) + F.mse_loss(scores, wanted)).backward()
            optimizer.step()

    record = recorded(script)
    assert is_held or {one.is_training for one in record.facts.criteria} == {True}
    assert ("validation" in record.facts.time.seconds) == is_held
    messages = [one.message for one in record.findings if one.code == "MS715"]
    assert ["Linear runs under no_grad() only, as a teacher does" in one for one in messages] == [
        True
    ] * is_held


@pytest.mark.parametrize("how", ["all", "parameters", "parameters, and no validation", "swa"])
def test_an_average_without_the_statistics_of_batch_norms(recorded, how):
    def script():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        if how == "swa":
            average = torch.optim.swa_utils.AveragedModel(model)
        x, y = torch.randn(16, 6), torch.arange(16) % 3
        for n in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if how == "swa":
                average.update_parameters(model)
            else:
                pairs = [*zip(average.parameters(), model.parameters(), strict=True)]
                if how == "all":
                    pairs += zip(average.buffers(), model.buffers(), strict=True)
                for a, b in pairs:
                    a.copy_(b.detach())
            if n % 4 == 3 and how == "swa":
                torch.optim.swa_utils.update_bn([x], average)
                average.eval()
            if n % 4 == 3 and "no" not in how:
                with torch.no_grad():
                    F.cross_entropy(average(x), y)

    found = [one.code for one in recorded(script).findings]
    assert ("MS763" in found) is (how == "parameters")


@pytest.mark.parametrize(
    ("label", "kind"), [(0, "RoIHeads"), (1, "RoIHeads"), (0, "RetinaNetHead"), (None, "RoIHeads")]
)
def test_boxes_of_the_background_of_a_detector_of_torchvision(recorded, label, kind):
    def forward(self, features, proposals, shapes, targets):
        return self.linear(features)

    heads = type(kind, (nn.Module,), {"forward": forward})()
    heads.linear = nn.Linear(6, 3)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.roi_heads = heads

        def forward(self, x, targets=None):
            return self.roi_heads(x, [], [], targets)

    def script():
        model = Detector()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        targets = None if label is None else [{"labels": torch.tensor([1, label])}]
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 6), targets).square().mean().backward()
            optimizer.step()

    told = [one.message for one in recorded(script).run.warnings if "count the classes" in one.message]
    assert len(told) == (label == 0 and kind == "RoIHeads")
