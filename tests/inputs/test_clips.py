"""Clips and volumes: folders of frames, animated files, pages, and volumes of arrays and NIfTI."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import modelscope_cli as ms
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


def levels(x: Tensor) -> list[int]:
    """Return the brightness of each frame of `(1, C, T, H, W)`."""
    return (x[0, 0].mean((1, 2)) * 255).round().int().tolist()


def test_pages_are_the_frames_of_a_clip(animation: Path) -> None:
    model = Seen()
    record = ms.stats(model, animation, size=24, normalize=False)
    assert record.run.input.shape == ((1, 3, 16, 24, 24),)
    assert levels(SEEN[-1]) == [10 * round(n * 19 / 15) for n in range(16)]


def test_a_folder_of_frames_is_a_clip(tmp_path: Path) -> None:
    for n in range(16):
        gray(10 * n).save(tmp_path / f"{n:02}.png")
    model = Seen()
    ms.predict(model, tmp_path, size=24, normalize=False)
    assert levels(SEEN[-1]) == [10 * n for n in range(16)]


def test_all_slices_of_a_volume_count(animation: Path) -> None:
    model = Seen(channels=1)
    ms.stats(model, animation, size=24, normalize=False)
    assert levels(SEEN[-1]) == [10 * n for n in range(20)]


def test_frames_come_first_for_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.TimesformerConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16,
        patch_size=8, num_frames=4, num_labels=3,
    )  # fmt: skip
    model = transformers.TimesformerForVideoClassification(config).eval()
    images = [gray(40 * n) for n in range(6)]
    assert ms.predict(model, images).run.input.shape == ((1, 4, 3, 16, 16),)


def test_models_of_torchvision_in_a_factory_take_clips(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torchvision.models.video import mc3_18\ndef net(): return mc3_18(num_classes=3)\n"
    )
    assert ms.load(f"{tmp_path / 'net.py'}:net").family == "video"


@pytest.mark.parametrize(
    ("suffix", "shape"),
    [
        *(("npy", shape) for shape in ((5, 6, 7), (1, 5, 6, 7), (1, 1, 5, 6, 7))),
        *(("npz", (1, 5, 6, 7)), ("nii", (5, 6, 7)), ("nii.gz", (5, 6, 7))),
    ],
)
def test_volumes_of_arrays(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    file = tmp_path / f"volume.{suffix}"
    if suffix == "npy":
        np.save(file, values)
    elif suffix == "npz":
        np.savez(file, volume=values)
    else:
        nibabel = pytest.importorskip("nibabel")
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), file)
    assert torch.equal(read_tensors(str(file))[0], torch.from_numpy(values))
    model = Seen(channels=1)
    ms.stats(model, file)
    assert torch.equal(SEEN[-1], torch.from_numpy(values.reshape(1, 1, 5, 6, 7)))
