"""Ties, saturated scores of one class, and divergences that are only rounding."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.outputs.classes import ClassScores, PixelScores
from modelscope_cli.analysis.predictions.scores import kl_divergence, same_best


class Sure(nn.Module):
    """Predicts the last of three classes, whatever the image."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.head(x).mean((2, 3)) + torch.tensor([0.0, 0.0, 1000.0])


def test_saturated_scores_do_not_hide_that_all_images_are_one_class(tmp_path, monkeypatch):
    for n in range(12):
        folder = tmp_path / "cats" if n % 2 else tmp_path / "dogs"
        folder.mkdir(exist_ok=True)
        noise = np.random.default_rng(n).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{n}.png")
    record = ms.predict(Sure(), [tmp_path / "cats", tmp_path / "dogs"], size=16)
    assert {one.top[0].index for one in record.predictions} == {2}
    found = [one.code for one in record.run.warnings]
    assert [code for code in found if code in ("saturated_scores", "one_class")] == found[-2:]
    assert set(found[-2:]) == {"saturated_scores", "one_class"}


@pytest.mark.parametrize(("before", "after", "is_same"), [
    ([2.0, 1.0, 0.0], [1.0, 1.0, 0.0], True),
    ([2.0, 1.0, 0.0], [0.0, 1.0, 1.0], False),
    ([1.0, 1.0, 0.0], [0.0, 2.0, 0.0], True),
    ([2.0, 1.0, 0.0], [0.3, 0.1 + 0.2, 0.0], True),  # equal up to rounding
    ([2.0, 1.0, 0.0], [0.3, 0.3001, 0.0], False),
    ([2.0, 1.0, 0.0], [float("nan"), 1.0, 0.0], False),
    ([2.0, 1.0, 0.0], [float("inf"), 1.0, 0.0], True),
    ([2.0, 1.0, 0.0], [0.0, -float("inf"), -float("inf")], True),
])  # fmt: skip
def test_a_tie_with_the_prediction_does_not_change_it(before, after, is_same):
    first, second = torch.tensor([before]), torch.tensor([after])
    assert same_best(first, second).tolist() == [is_same]
    assert ClassScores(first).changed(ClassScores(second)).tolist() == [1.0 - is_same]
    pixels = [one[:, :, None, None].expand(1, 3, 2, 2) for one in (first, second)]
    assert PixelScores(pixels[0]).changed(PixelScores(pixels[1])).tolist() == [1.0 - is_same]


def test_without_ties_the_prediction_changes_as_often_as_its_index():
    before, after = torch.randn(2, 500, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(same_best(before, after), before.argmax(1) == after.argmax(1))


def test_divergence_below_the_precision_is_zero():
    logits = torch.tensor([[0.0, 300.0], [0.0, 1.0]], dtype=torch.float64)
    other = torch.tensor([[0.0, 310.0], [0.0, 1.1]], dtype=torch.float64)
    first, second = kl_divergence(logits, other).tolist()
    p, q = (np.exp(x) / np.exp(x).sum() for x in ([0.0, 1.0], [0.0, 1.1]))
    assert first == 0
    assert second == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-12)
