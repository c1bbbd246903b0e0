"""Every variation is what torchvision does when it is told to prepare an image just so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from tolerance import assert_close
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights
from torchvision.transforms import InterpolationMode, v2

from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.inputs.image import decode, is_stored_turned
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing, variations
from modelscope_cli.inputs.request import InputRequest

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BILINEAR, BICUBIC, NEAREST = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.NEAREST


def by_hand(
    mean: Any = IMAGENET[0],
    std: Any = IMAGENET[1],
    *,
    resize: Any = 256,
    how: InterpolationMode = BILINEAR,
    scale: float = 1.0,
) -> Callable[[Image.Image], Tensor]:
    """Return the usual transform of torchvision; `scale`: of the pixels, 0..1 before."""
    return v2.Compose(
        [
            v2.Resize(resize, how),
            v2.CenterCrop(224),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Lambda(lambda x: x * scale),
            v2.Normalize(mean, std),
        ]
    )


def aliasing(image: Image.Image) -> Tensor:
    pixels = v2.functional.pil_to_tensor(image)
    pixels = v2.functional.resize(pixels, [256], BILINEAR, antialias=False)
    return v2.functional.normalize(v2.functional.center_crop(pixels, [224]).float() / 255, *IMAGENET)


def letterbox(image: Image.Image) -> Tensor:
    grey = tuple(round(255 * value) for value in IMAGENET[0])
    inside = ImageOps.pad(image, (224, 224), Image.Resampling.BILINEAR, color=grey)
    return by_hand(resize=224)(inside)


def backwards(image: Image.Image) -> Tensor:
    red, green, blue = image.split()
    return by_hand()(Image.merge("RGB", (blue, green, red)))


BY_HAND: dict[str, Callable[[Image.Image], Tensor]] = {
    "centre crop 1": by_hand(resize=224),
    "squashed": by_hand(resize=(224, 224)),
    "letterbox": letterbox,
    "nearest": by_hand(how=NEAREST),
    "bicubic": by_hand(how=BICUBIC),
    "no antialias": aliasing,
    "not normalised": by_hand((0, 0, 0), (1, 1, 1)),
    "-1..1": by_hand((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP's values": by_hand(*CLIP),
    "0..255, then normalised": by_hand(scale=255),
    "0..255": by_hand((0, 0, 0), (1, 1, 1), scale=255),
    "divided by 255 twice": by_hand(scale=1 / 255),
    "BGR": backwards,
    "EXIF ignored": by_hand(),  # the image is upright: see below
}


def photo(width: int, height: int) -> Image.Image:
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.manual_seed(width))
    return Image.fromarray(pixels.numpy())


def usual(module: nn.Module | None = None) -> Preprocessing:
    return plan_preprocessing(
        InputRequest(), "classification", ResNet18_Weights.IMAGENET1K_V1.transforms(), module
    )


@pytest.mark.parametrize("size", [(300, 250), (90, 131)])
@pytest.mark.parametrize("name", BY_HAND)
def test_it_is_what_torchvision_does(name: str, size: tuple[int, int]) -> None:
    found = {one.name: one.plan for one in variations(usual())}
    assert set(found) == set(BY_HAND)
    image = photo(*size)
    assert_close(found[name].apply(image, "x"), BY_HAND[name](image), scale=255 / 0.2)


def test_what_is_meant_is_not_a_variation_and_stays_as_it_was() -> None:
    for mean, std, missing in [((0.5,) * 3, (0.5,) * 3, "-1..1"), (*CLIP, "CLIP's values")]:
        cfg = {
            "input_size": (3, 96, 96),
            "mean": mean,
            "std": std,
            "interpolation": "bicubic",
            "crop_mode": "squash",
            "crop_pct": 1.0,
        }
        module = nn.Identity()
        module.pretrained_cfg = cfg
        from modelscope_cli.inputs.model_config import configured_preset

        plan = plan_preprocessing(InputRequest(), "custom", configured_preset(module), module)
        before = plan.apply(photo(120, 100), "x")
        found = variations(plan)
        names = {one.name for one in found}
        assert not names & {missing, "squashed", "bicubic"}
        assert names >= {"centre crop 0.875", "bilinear", "ImageNet's values", "no antialias", "BGR"}
        prepared = [one.plan.apply(photo(120, 100), "x") for one in found]
        assert all(image.shape == (3, 96, 96) for image in prepared)
        assert torch.equal(plan.apply(photo(120, 100), "x"), before)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_an_image_can_stay_as_it_is_stored(tmp_path: Any, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    photo(40, 30).save(path, exif=exif)
    file = ListedImage(str(path))
    assert is_stored_turned(file) == (orientation != 1)
    assert decode(file, "RGB", is_turned=False).size == (40, 30)
    upright = ImageOps.exif_transpose(Image.open(path))
    assert decode(file, "RGB").tobytes() == upright.convert("RGB").tobytes()
