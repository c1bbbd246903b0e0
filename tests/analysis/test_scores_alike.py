"""Scores that hardly differ between images or between classes."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.records.run import DEGENERATE


@pytest.mark.parametrize(("gap", "is_told"), [(1e-3, True), (2e-2, False), (0.5, False)])
def test_scores_that_hardly_differ_between_images_are_told(gap, is_told):
    x = torch.stack([torch.full((3, 8, 8), level) for level in (0.0, 0.25, 1.0)])
    told = [one.message for one in ms.predict(Slight(gap), x).run.warnings if one.code == "scores_alike"]
    assert bool(told) == is_told
    assert not told or "hardly depends on the image: the output of conv (Conv2d) differs by" in told[0]


class Slight(nn.Module):
    """Three scores, 0, 0.5 and 1; the last is less by the brightness of an image times `gap`."""

    def __init__(self, gap):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        with torch.no_grad():
            self.conv.weight.zero_()
            self.conv.weight[2] = -gap / 3
            self.conv.bias.copy_(torch.tensor([0.0, 0.5, 1.0]))

    def forward(self, x):
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize(("scores", "code"), [
    ([0.3, 0.1 + 0.2, 0.3], "undecided"),  # equal up to rounding
    ([0.3, 0.3001, 0.3], ""),
    ([1e-9, 2e-9, 3e-9], "undecided"),  # whose softmax is the same
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_differ_by_rounding_decide_nothing(scores, code, dtype):
    if dtype == torch.float64 and scores[0] < 1e-6:
        return  # which it can tell apart
    record = ms.predict(nn.Flatten(), torch.tensor(scores, dtype=dtype).view(1, 3, 1, 1))
    assert [one.code for one in record.run.warnings if one.code in DEGENERATE] == [code] * bool(code)


def test_equal_numbers_that_are_not_scores_are_called_flat():
    record = ms.predict(nn.Flatten(), torch.ones(1, 4, 1, 1), output_kind="embedding")
    assert [one.code for one in record.run.warnings] == ["flat_output"]
