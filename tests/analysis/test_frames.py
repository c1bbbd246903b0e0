"""Statistics of every frame of a clip, or slice of a volume."""

import numpy as np
import pytest
import torch
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError

T, SIZE = 6, 8


def clip(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class FramesAsImages(nn.Module):
    """Takes `(N, T, C, H, W)`; its last layer sees `(N, T, C)`."""

    def __init__(self) -> None:
        super().__init__()
        self.volume = nn.Conv3d(3, 3, 1)
        self.image, self.row = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        n, t = x.shape[0], x.shape[2]
        frames = self.image(self.volume(x).transpose(1, 2).flatten(0, 1))
        return self.row(frames.mean((2, 3)).view(n, t, -1)).mean(1)


class Tubes(nn.Module):
    """Tokens of two frames each, behind one more token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.look = nn.Conv3d(3, 7, (2, 4, 4), (2, 4, 4)), nn.LayerNorm(7)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.look(torch.cat([torch.full_like(tokens[:, :1], 1e3), tokens], 1))


def kept(model: nn.Module, x: Tensor, name: str) -> np.ndarray:
    """Return the output of a layer by a hook of torch."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda _, args, output: seen.append(output))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[0].double().numpy()


@pytest.mark.parametrize(("model", "name", "by_frame"), [
    (FramesAsImages(), "volume", lambda y: y.swapaxes(0, 2)),
    (FramesAsImages(), "image", lambda y: y.reshape(2, T, -1).swapaxes(0, 1)),
    (FramesAsImages(), "row", lambda y: y.swapaxes(0, 1)),
    (Tubes(), "patches", lambda y: y.swapaxes(0, 2)),
    (Tubes(), "look", lambda y: y[:, 1:].reshape(2, T // 2, -1).swapaxes(0, 1)),
])  # fmt: skip
def test_the_figures_of_each_frame_are_those_of_numpy(model, name, by_frame):
    x = clip(2, 3, T, SIZE, SIZE)
    rows = [row for row in ms.stats(model, x, frames=True).frames if row.name == name]
    expected = [frame.ravel() for frame in by_frame(kept(model, x, name))]
    assert [(row.frame, row.frames) for row in rows] == [(n, len(expected)) for n in range(len(expected))]
    for row, values in zip(rows, expected, strict=True):
        assert row.mean == pytest.approx(values.mean(), abs=1e-6)
        assert (row.std, row.rms) == pytest.approx((values.std(), np.sqrt((values**2).mean())), rel=1e-5)
        assert (row.min, row.max) == (values.min(), values.max())
        assert row.zero_fraction == (values == 0).mean()


def test_batches_are_merged_and_layers_selected():
    model, x = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU()), clip(4, 1, T, SIZE, SIZE)
    whole, cut = (ms.stats(model, x, frames=True, layer="1", batch=batch).frames for batch in (None, 3))
    assert {row.name for row in whole} == {"1"}
    assert len(whole) == len(cut) == T
    for one, two in zip(whole, cut, strict=True):
        assert [one.min, one.max, one.mean, one.std] == close([two.min, two.max, two.mean, two.std])
        assert one.zero_fraction == pytest.approx(two.zero_fraction, abs=0.01)


def test_values_that_are_not_finite_are_counted():
    x = torch.zeros(1, 1, 3, 4, 4)
    x[0, 0, 1, 0, :2] = torch.tensor([torch.nan, torch.inf])
    x[0, 0, 2] = torch.nan
    rows = ms.stats(nn.Sequential(nn.MaxPool3d(1), nn.Conv3d(1, 1, 1)), x, frames=True, layer="0").frames
    assert [(row.nan_count, row.inf_count, row.mean) for row in rows] == [(0, 0, 0), (1, 1, 0), (16, 0, None)]


def test_outputs_without_frames_are_named_and_images_have_none():
    model = nn.Sequential(nn.Conv3d(1, 2, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 3))
    record = ms.stats(model, clip(1, 1, 4, 4, 4), frames=True)
    assert {row.name for row in record.frames} == {"0", "1"}
    assert "frames" not in ms.stats(model, clip(1, 1, 4, 4, 4)).to_dict()
    with pytest.raises(UsageError, match="the input is 1x3x4x4"):
        ms.stats(nn.Conv2d(3, 2, 1), torch.rand(1, 3, 4, 4), frames=True)
