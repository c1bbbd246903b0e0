"""Inputs that lack a dimension or have another order, and models that take no images: told by what runs."""

import re

import pytest
import torch
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError


class Net(nn.Module):
    """Layers, and what is done between them."""

    def __init__(self, first, head, between, before=lambda x: x):
        super().__init__()
        self.first, self.head = first, head
        self.between, self.before = between, before

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.before(x))
        return self.head(self.between(x[0] if isinstance(x, tuple) else x))


RGB = Net(nn.Conv2d(3, 4, 3), nn.Linear(4, 5), lambda x: x.mean((2, 3)))
GRAY = Net(nn.Conv2d(1, 4, 3), nn.Linear(4, 5), lambda x: x.mean((2, 3)))
SIGNAL = Net(nn.Conv1d(12, 4, 5), nn.Linear(4, 5), lambda x: x.mean(2))
ONE_LEAD = Net(nn.Conv1d(1, 4, 5), nn.Linear(4, 5), lambda x: x.mean(2))
VOLUME = Net(nn.Conv3d(1, 4, 3), nn.Linear(4, 2), lambda x: x.mean((2, 3, 4)))
CLIP = Net(nn.Conv3d(3, 4, 3), nn.Linear(4, 2), lambda x: x.mean((2, 3, 4)))
ROWS = Net(nn.Linear(20, 8), nn.Linear(8, 3), torch.relu)
STEPS = Net(nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3), lambda x: x[:, -1])
TOKENS = Net(nn.Embedding(30, 8), nn.Linear(8, 3), lambda x: x.mean(1))


def shape_of(record) -> tuple[int, ...]:
    return record.run.input.shape[0]


@pytest.mark.parametrize(("net", "given", "taken"), [
    (RGB, (3, 32, 32), (1, 3, 32, 32)),
    (GRAY, (28, 28), (1, 1, 28, 28)),
    (GRAY, (5, 28, 28), (5, 1, 28, 28)),
    (SIGNAL, (12, 100), (1, 12, 100)),
    (ONE_LEAD, (100,), (1, 1, 100)),
    (ONE_LEAD, (4, 100), (4, 1, 100)),
    (VOLUME, (9, 9, 9), (1, 1, 9, 9, 9)),
    (VOLUME, (1, 9, 9, 9), (1, 1, 9, 9, 9)),
    (CLIP, (3, 8, 16, 16), (1, 3, 8, 16, 16)),
    (ROWS, (4, 20), (4, 20)),
    (STEPS, (2, 10, 6), (2, 10, 6)),
])  # fmt: skip
def test_dimensions_that_are_missing_are_added_where_there_is_one_way(net, given, taken):
    assert shape_of(ms.stats(net, torch.rand(given))) == taken


@pytest.mark.parametrize(("net", "given", "change"), [
    (RGB, (32, 32, 3), ".movedim(-1, -3)"),
    (RGB, (2, 1, 32, 32), ".expand(-1, 3, -1, -1)"),
    (RGB, (4, 32, 32), "[None, :3]"),
    (RGB, (32, 32), ".expand(1, 3, -1, -1)"),
    (GRAY, (5, 3, 28, 28), ".mean(1, keepdim=True)"),
    (SIGNAL, (100, 12), ".movedim(-1, 0)[None]"),
    (SIGNAL, (2, 100, 12), ".movedim(-1, 1)"),
    (VOLUME, (2, 9, 9, 9, 1), ".movedim(-1, 1)"),
    (CLIP, (8, 3, 16, 16), ".movedim(1, 0)[None]"),
    (CLIP, (1, 8, 3, 16, 16), ".movedim(2, 1)"),
    (ROWS, (20, 4), ".movedim(-1, 0)"),
    (STEPS, (10, 6), "[None]"),  # or ten of one step: it is not guessed
    (STEPS, (2, 6, 10), ".movedim(-1, 1)"),
    (TOKENS, (2, 10), ".long()"),
])  # fmt: skip
def test_another_order_is_refused_with_the_line_that_changes_it(net, given, change):
    x = torch.rand(given)
    with pytest.raises(UsageError, match=re.escape(" x ".join(map(str, given)))) as raised:
        ms.stats(net, x)
    assert raised.value.hint == f"give torch.as_tensor(x){change}"
    ms.stats(net, eval(f"x{change}"))


FLAT = Net(
    nn.Sequential(nn.Conv1d(3, 4, 11, stride=5), nn.ReLU(), nn.AvgPool1d(2)),
    nn.Linear(4 * 49, 2),
    lambda x: x.flatten(1),
)
CUBE = Net(nn.Sequential(nn.Conv3d(1, 2, 3), nn.MaxPool3d(2)), nn.Linear(2 * 7**3, 2), lambda x: x.flatten(1))


@pytest.mark.parametrize(("net", "shape"), [
    (RGB, (1, 3, 224, 224)),
    (SIGNAL, (1, 12, 128)),
    (FLAT, (1, 3, 500)),
    (CUBE, (1, 1, 16, 16, 16)),
    (Net(nn.Conv1d(13, 4, 3), nn.Linear(4, 5), lambda x: x.mean(2), lambda x: x.transpose(1, 2)), (1, 128, 13)),
    (Net(nn.Conv1d(1, 4, 3), nn.Linear(4, 5), lambda x: x.mean(2), lambda x: x[:, None]), (1, 128)),
    (ROWS, (1, 20)),
    (Net(nn.Linear(3, 8), nn.Linear(8, 2), lambda x: x.mean(1)), (1, 16, 3)),
    (STEPS, (1, 16, 6)),
    (Net(nn.GRU(6, 8), nn.Linear(8, 3), lambda x: x[-1]), (16, 1, 6)),
    (TOKENS, (1, 16)),
    (Net(nn.TransformerEncoderLayer(16, 2, batch_first=True), nn.Linear(16, 3), lambda x: x.mean(1)), (1, 16, 16)),
])  # fmt: skip
def test_noise_has_a_shape_that_the_model_takes(net, shape):
    assert shape_of(ms.summary(net)) == shape
    assert shape_of(ms.stats(net)) == shape
