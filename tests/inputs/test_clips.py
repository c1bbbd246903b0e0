"""Clips and volumes: arrays, and no images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.tensor_files import read_tensors

SEEN: list[Tensor] = []  # not in the model, whose attributes are put back


class Seen(nn.Module):
    """Keeps what it is given; begins with a 3-d convolution."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, 2, 1)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(x)
        return self.head(self.conv(x).mean((2, 3, 4)))


def gray(level: int) -> Image.Image:
    return Image.new("RGB", (24, 24), (level, level, level))


@pytest.fixture
def animation(tmp_path: Path) -> Path:
    first, *others = (gray(10 * n) for n in range(20))
    first.save(tmp_path / "clip.tiff", save_all=True, append_images=others)
    return tmp_path / "clip.tiff"


@pytest.mark.parametrize(("suffix", "shape"), [
    *(("npy", shape) for shape in ((5, 6, 7), (1, 5, 6, 7), (1, 1, 5, 6, 7))),
    ("npz", (1, 5, 6, 7)),
])  # fmt: skip
def test_volumes_of_arrays(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    file = tmp_path / f"volume.{suffix}"
    if suffix == "npy":
        np.save(file, values)
    else:
        np.savez(file, volume=values)
    assert torch.equal(read_tensors(str(file))[0], torch.from_numpy(values))
    model = Seen(channels=1)
    ms.stats(model, file)
    assert torch.equal(SEEN[-1], torch.from_numpy(values.reshape(1, 1, 5, 6, 7)))


def test_feature_maps_are_of_the_middle_frame(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv3d(1, 3, 1)), torch.rand(1, 1, 20, 8, 8)
    file = tmp_path / "maps.safetensors"
    (row,) = ms.featuremaps(model, x).save(file).maps
    assert row.note == "frame or slice 10 of 20, counted from 0"
    assert torch.equal(load_file(file)["0"], model(x)[0, :, 10])


@pytest.mark.parametrize(("model", "shape"), [(nn.Conv1d(3, 2, 3), (16,)), (nn.Conv3d(3, 2, 3), (5, 6, 7))])
def test_a_signal_or_a_clip_is_not_an_image(model: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(CannotRunError, match=r"images \(N, C, H, W\), but the input is"):
        ms.explain(nn.Sequential(model, nn.Flatten()), torch.rand(1, 3, *shape), receipt="none")


@pytest.mark.parametrize("command", [ms.stats, ms.summary, ms.predict, ms.featuremaps, ms.check])
def test_images_are_no_clip(command: Any, animation: Path) -> None:
    with pytest.raises(CannotRunError, match="it runs on noise or a tensor file, not on images") as caught:
        command(Seen(), animation)
    assert caught.value.hint == f"leave out {animation}"
