"""The first images that enter a model are kept as it sees them, once, and small."""

import io
import json

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.watching.model_inputs import FILE, FirstImages, save_first_images


def pixels(png):
    image = Image.open(io.BytesIO(png))
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)


def test_they_stand_side_by_side_from_black_to_white():
    x = torch.linspace(-2, 3, 2 * 3 * 5 * 7).view(2, 3, 5, 7)
    sheet = pixels(FirstImages(x).png())
    assert sheet.shape == (5, 7 + 2 + 7, 3)
    expected = ((x + 2) / 5 * 255).round().byte()
    assert torch.equal(sheet[:, :7].permute(2, 0, 1), expected[0])
    assert torch.equal(sheet[:, 9:].permute(2, 0, 1), expected[1])


def test_they_are_few_and_small():
    sheet = pixels(FirstImages(torch.rand(100, 1, 500, 300)).png())
    assert sheet.shape[0] <= 64
    assert sheet.shape[1] <= 8 * 66


def test_what_is_not_finite_or_flat_is_drawn_all_the_same():
    x = torch.full((1, 3, 4, 4), torch.nan)
    assert pixels(FirstImages(x).png()).shape == (4, 4, 3)


def test_what_is_kept_does_not_change_with_the_batch():
    x = torch.rand(2, 3, 8, 8)
    images = FirstImages(x)
    before = images.png()
    x.zero_()
    assert images.png() == before


@pytest.mark.parametrize("shape", [(2, 10), (2, 64, 8, 8), (2, 3, 2, 2), (3, 8, 8)])
def test_other_tensors_are_not_images(shape):
    assert not FirstImages.are_in(torch.rand(shape))


def test_a_training_leaves_them_in_its_folder_and_on_its_page(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.rand(4, 3, 8, 8) for _ in range(3)]
    with ms.watch(model, optimizer, out=tmp_path / "it"):
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert (tmp_path / "it" / FILE).read_bytes() == FirstImages(batches[0]).png()
    assert "data:image/" in (tmp_path / "it" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", [{"png": "no base64!"}, {"png": 7}, {}])
def test_a_damaged_log_leaves_no_picture(entry, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"images": entry}) + "\n")
    save_first_images(log, tmp_path)
    assert not (tmp_path / FILE).exists()
