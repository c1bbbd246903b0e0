"""The oracle is the preset of the weights: what the model gets is what the preset makes, to the bit."""

import pytest
import torch
from PIL import Image
from tolerance import assert_close
from torch import nn
from torchvision.models import EfficientNet_B1_Weights, Inception_V3_Weights, ResNet34_Weights
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights
from torchvision.models.segmentation import FCN_ResNet50_Weights
from torchvision.transforms import functional as F

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.preprocess import Preset
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest

SIZES = [(90, 60), (61, 300), (1, 1), (700, 513), (30, 200)]


def first_batch(inputs):
    return next(iter(inputs))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weights", [ResNet34_Weights, EfficientNet_B1_Weights, Inception_V3_Weights])
def test_classification_is_the_preset(opened, make_picture, weights, size):
    preset, path = weights.DEFAULT.transforms(), make_picture(size=size)
    inputs = opened(path, transforms=preset)
    batch = first_batch(inputs)
    assert torch.equal(batch.args[0], preset(Image.open(path))[None])
    assert inputs.info.shape == (tuple(batch.args[0].shape),)


def test_the_picture_is_what_resize_and_crop_left(opened, make_picture):
    preset, path = ResNet34_Weights.DEFAULT.transforms(), make_picture(size=(300, 290))
    batch = first_batch(opened(path, transforms=preset))
    seen = F.center_crop(F.resize(Image.open(path), preset.resize_size), preset.crop_size)
    assert torch.equal(batch.pictures[0], F.pil_to_tensor(seen))
    assert batch.names == (str(path),)


@pytest.mark.parametrize("in_channels", [1, 3])
@pytest.mark.parametrize("values", [{}, {"mean": "0.4", "std": "0.3"}, {"mean": "0", "std": "1"}])
def test_normalising_the_picture_gives_the_input_to_the_bit_with_a_gradient(
    opened, make_picture, in_channels, values
):
    inputs = opened(make_picture(), module=nn.Conv2d(in_channels, 2, 3), **values)
    batch = first_batch(inputs)
    pixels = batch.pictures[0][None, :in_channels] / 255
    assert torch.equal(inputs.preprocessing.normalize(pixels), batch.args[0])
    pixels.requires_grad_()
    inputs.preprocessing.normalize(pixels).sum().backward()
    std = torch.tensor(inputs.preprocessing.std)[:, None, None]
    assert_close(pixels.grad[0], (1 / std).expand_as(pixels[0]))


@pytest.mark.parametrize("size", SIZES)
def test_segmentation_is_the_preset(opened, make_picture, size):
    preset, path = FCN_ResNet50_Weights.DEFAULT.transforms(), make_picture(size=size)
    batch = first_batch(opened(path, family="segmentation", transforms=preset))
    assert torch.equal(batch.args[0], preset(Image.open(path))[None])


def test_detection_is_a_list_of_pictures_of_their_own_size(opened, make_picture):
    preset = FasterRCNN_ResNet50_FPN_Weights.DEFAULT.transforms()
    paths = [make_picture(f"{i}.png", size=size) for i, size in enumerate(SIZES)]
    inputs = opened(*paths, family="detection", transforms=preset, batch=3)
    batches = list(inputs)
    assert [batch.n_images for batch in batches] == [3, 2]
    images = [image for batch in batches for image in batch.args[0]]
    for path, image in zip(paths, images, strict=True):
        assert torch.equal(image, preset(Image.open(path)))
    assert inputs.info.shape == ((3, 60, 90), (3, 300, 61), (3, 1, 1))
    assert torch.equal(batches[0].pictures[1], F.pil_to_tensor(Image.open(paths[1])))


def test_size_mean_and_std_change_the_preset(opened, make_picture):
    path = make_picture(size=(90, 60))
    preset = ResNet34_Weights.DEFAULT.transforms(crop_size=32, resize_size=32, mean=[0.5] * 3, std=[1, 2, 3])
    inputs = opened(
        path, transforms=ResNet34_Weights.DEFAULT.transforms(), size="32", mean="0.5", std="1,2,3"
    )
    assert torch.equal(first_batch(inputs).args[0], preset(Image.open(path))[None])
    assert "normalise mean (0.5, 0.5, 0.5) std (1, 2, 3)" in inputs.info.preprocessing


@pytest.mark.parametrize("family", ["classification", "segmentation", "custom"])
def test_two_sizes_are_height_and_width_exactly(opened, make_picture, family):
    path = make_picture(size=(90, 60))
    inputs = opened(path, family=family, size="32,48", mean="0", std="1")
    batch = first_batch(inputs)
    assert batch.args[0].shape[-2:] == (32, 48)
    assert "resize to 32 x 48" in inputs.info.preprocessing
    assert "not normalised" in inputs.info.preprocessing
    assert 0 <= batch.args[0].min() < batch.args[0].max() <= 1


def test_without_a_preset_the_imagenet_defaults_are_used_and_stated(opened, make_picture):
    path = make_picture()
    inputs = opened(path, family="custom")
    assert torch.equal(
        first_batch(inputs).args[0], ResNet34_Weights.IMAGENET1K_V1.transforms()(Image.open(path))[None]
    )
    assert "mean (0.485, 0.456, 0.406)" in inputs.info.preprocessing
    assert "ImageNet normalisation" in inputs.notes[-1]


@pytest.mark.parametrize(("family", "options", "quoted"), [
    ("detection", {"size": "320"}, "--size 320"),
    ("detection", {"mean": "0.5"}, "--mean 0.5"),
    ("classification", {"mean": "1,2"}, "--mean 1,2"),
    ("classification", {"size": "0"}, "--size 0"),
])  # fmt: skip
def test_an_option_without_a_place_is_an_error(opened, make_picture, family, options, quoted):
    with pytest.raises(UsageError) as caught:
        opened(make_picture("a.png"), make_picture("b.png"), family=family, **options)
    assert quoted in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("size", [(250, 25), (25, 251), (400, 40), (2001, 100), (2003, 57), (1777, 120)])
def test_cutting_to_the_middle_is_what_the_preset_sees(opened, make_picture, size):
    preset, path = ResNet34_Weights.DEFAULT.transforms(), make_picture(size=size)
    batch = first_batch(opened(path, transforms=preset))
    seen = F.center_crop(F.resize(Image.open(path), preset.resize_size), preset.crop_size)
    difference = (batch.pictures[0].int() - F.pil_to_tensor(seen).int()).abs()
    assert difference.max() <= 4  # of 255, on noise, the sharpest picture there is


def test_a_very_long_picture_that_would_be_inflated_is_refused(opened, make_picture):
    with pytest.raises(CannotRunError, match=r"is too narrow: .* its long side is 520,000") as caught:
        opened(make_picture(size=(20_000, 20)), family="segmentation")
    assert caught.value.hint == "--size 520,520"


@pytest.mark.parametrize("mode", ["center", "squash", "border", "torchvision", "short side"])
@pytest.mark.parametrize("size", [(90, 60), (61, 200), (100, 100)])
def test_a_point_of_the_input_is_found_in_the_file(mode, size):
    """The middle of a white square, before and after."""
    if mode == "torchvision":
        preset = ResNet34_Weights.DEFAULT.transforms()
    elif mode == "short side":
        preset = FCN_ResNet50_Weights.DEFAULT.transforms()
    else:
        values = ([0.0] * 3, [1.0] * 3)
        preset = Preset("here", [96, 72], [88, 72], F.InterpolationMode.BILINEAR, *values, mode)
    plan = plan_preprocessing(InputRequest(), "custom", preset, None)
    image = Image.new("RGB", size)
    left, top = size[0] // 2 - 3, size[1] // 2 + 4
    image.paste("white", (left, top, left + 8, top + 8))
    seen = plan.apply(image, "square")
    bright = (seen[0] - seen[0].min()).double()
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in bright.shape)
    x, y = (bright.sum(0) @ columns / bright.sum(), bright.sum(1) @ rows / bright.sum())
    place = plan.placement(size, tuple(seen.shape[-2:]))
    assert place.point(float(x), float(y)) == pytest.approx((left + 4, top + 4), abs=0.15)
