"""The shape suggested after a forward raised is one with which it succeeds."""

import pytest
import torch
from torch import nn

from modelscope_cli.hooks.other_shapes import shapes_taken
from modelscope_cli.hooks.session import ForwardError, HookSession


def network(side: int | None = None) -> nn.Sequential:
    last = nn.AdaptiveAvgPool2d(1) if side is None else nn.MaxPool2d(2)
    features = 4 if side is None else 4 * ((side - 4) // 2) ** 2
    return nn.Sequential(nn.Conv2d(3, 4, 5), last, nn.Flatten(), nn.Linear(features, 2))


def hint_for(model: nn.Module, *shape: int) -> str | None:
    with HookSession(model) as session, pytest.raises(ForwardError) as raised:
        session.run((torch.zeros(shape),))
    return raised.value.hint


@pytest.mark.parametrize(("given", "meant"), [
    ((48, 40, 3), "1,3,48,40"), ((2, 48, 40, 3), "2,3,48,40"),  # channels last
    ((3, 48), "1,3,48,48"), ((48, 3), "1,3,48,48"), ((1, 48), "1,3,48,48"),
    ((48, 40), "1,3,48,40"), ((48,), "1,3,48,48"),
    ((2, 1, 48, 40), "2,3,48,40"), ((4, 48, 40), "1,3,48,40"),  # other channels
])  # fmt: skip
def test_height_width_and_batch_are_kept(given, meant):
    assert hint_for(network(), *given) == f"--input-shape {meant}"


@pytest.mark.parametrize("side", [20, 28, 37, 50, 96, 130])
@pytest.mark.parametrize("given", [(1, 3, 64, 64), (2, 3, 224, 224), (1, 3, 9, 9)])
def test_the_size_is_the_one_that_the_linear_layer_was_built_for(side, given):
    model = network(side)
    hint = hint_for(model, *given) or ""
    shape = [int(number) for number in hint.removeprefix("--input-shape ").split(",")]
    assert shape[:2] == list(given[:2])
    assert model(torch.zeros(shape)).shape == (given[0], 2)


def test_without_such_a_size_both_numbers_of_features_are_told():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 2))
    assert (hint_for(model, 1, 3, 9, 9) or "").startswith("'3' takes 7 features and got 4")


def test_the_hooks_of_the_model_do_not_run_for_the_hint():
    seen = []
    model = network(20)
    model[0].register_forward_hook(lambda *_: seen.append(1))
    hint_for(model, 1, 3, 64, 64)
    assert seen == [1]


class Towers(nn.Module):
    """Two images of different channels, and two rows of features that are not named like their layers."""

    def __init__(self):
        super().__init__()
        self.rgb, self.depth = nn.Conv2d(3, 4, 3), nn.Conv2d(1, 4, 3)
        self.age, self.first, self.head = nn.Linear(2, 4), nn.Linear(7, 4), nn.Linear(8, 2)

    def forward(self, photo, distance, age, rest):
        maps = self.rgb(photo).mean((2, 3)) + self.depth(distance).mean((2, 3))
        return self.head(torch.cat([maps, self.age(age) + self.first(rest)], 1))


def test_the_shapes_of_several_arguments_are_found_by_trial():
    model = Towers()
    names = ["photo", "distance", "age", "rest"]
    taken = shapes_taken(model, names[:0], (1, 3, 224, 224))
    assert taken == {}  # no argument, no forward
    taken = {name: one.shape for name, one in shapes_taken(model, names, (1, 3, 64, 64)).items()}
    assert taken == {"photo": (1, 3, 64, 64), "distance": (1, 1, 64, 64), "age": (1, 2), "rest": (1, 7)}
    model(**{name: torch.zeros(shape) for name, shape in taken.items()})
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


class Joined(nn.Module):
    """Features of an image beside numbers that no layer takes alone."""

    def __init__(self):
        super().__init__()
        self.conv, self.deep, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 3), nn.Linear(24 + 5, 2)

    def forward(self, x, meta):
        return self.head(torch.cat([self.deep(self.conv(x)).mean((2, 3)), meta], 1))


def test_numbers_beside_the_features_of_an_image_are_found_by_what_is_left_for_them():
    taken = shapes_taken(Joined(), ["x", "meta"], (1, 3, 32, 32))
    assert (taken["x"].shape, taken["meta"].shape) == ((1, 3, 32, 32), (1, 5))


@pytest.mark.parametrize(
    ("model", "given", "meant"),
    [
        (nn.Sequential(nn.Conv1d(12, 4, 3), nn.BatchNorm1d(4)), (12, 700), "1,12,700"),
        (nn.Sequential(nn.Conv1d(12, 4, 3), nn.BatchNorm1d(4)), (8, 700, 12), "8,12,700"),
        (nn.Sequential(nn.Conv1d(12, 4, 3), nn.BatchNorm1d(4)), (1, 3, 90), "1,12,90"),
        (nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4)), (2, 3, 8, 20, 24), "2,1,8,20,24"),
        (nn.LSTM(6, 3, batch_first=True), (4, 30, 5), "4,30,6"),
    ],
)
def test_the_lengths_that_were_given_are_kept(model, given, meant):
    assert hint_for(model, *given) == f"--input-shape {meant}"
