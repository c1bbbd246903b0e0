"""Every format and mode, decoded whole or refused in one line."""

import pytest
import torch
from PIL import Image, ImageFile
from torchvision.transforms.functional import pil_to_tensor

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.inputs.image import UnreadableImageError, decode


def pixels(path, mode="RGB"):
    return pil_to_tensor(decode(ListedImage(str(path)), mode))


@pytest.mark.parametrize(("name", "mode", "save"), [
    ("a.png", "RGB", {}),
    ("a.jpg", "RGB", {"quality": 95}),
    ("a.webp", "RGB", {"lossless": True}),
    ("a.bmp", "RGB", {}),
    ("a.tif", "RGB", {}),
    ("a.gif", "P", {}),
    ("a.png", "P", {}),
    ("a.png", "L", {}),
    ("a.png", "1", {}),
    ("a.jpg", "CMYK", {}),
    ("a.tiff", "CMYK", {}),
])  # fmt: skip
def test_formats_and_modes_become_what_pillow_says(make_picture, name, mode, save):
    path = make_picture(name, mode=mode, **save)
    with Image.open(path) as image:
        assert torch.equal(pixels(path), pil_to_tensor(image.convert("RGB")))
        assert torch.equal(
            pixels(path, "L"), pil_to_tensor(image.convert("RGB" if mode == "CMYK" else mode).convert("L"))
        )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(make_picture, orientation):
    path = make_picture("a.png", size=(6, 4))
    upright = pixels(path)
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(path, exif=exif)
    back = {
        1: lambda x: x,
        2: lambda x: x.flip(2),
        3: lambda x: x.flip(1, 2),
        4: lambda x: x.flip(1),
        5: lambda x: x.transpose(1, 2),
        6: lambda x: x.rot90(-1, (1, 2)),
        7: lambda x: x.flip(1, 2).transpose(1, 2),
        8: lambda x: x.rot90(1, (1, 2)),
    }[orientation]
    assert torch.equal(pixels(path), back(upright))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_over_white(tmp_path, mode):
    clear, black = ((0,) * (len(mode) - 1) + (0,)), ((0,) * (len(mode) - 1) + (255,))
    image = Image.new(mode, (2, 1), black)
    image.putpixel((1, 0), clear)
    image.save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png")[:, 0].tolist() == [[0, 255]] * 3


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_16_bit_gray_is_scaled_not_clipped(tmp_path, name, mode):
    values = [0, 300, 257 * 100, 257 * 100 + 129, 65535]
    image = Image.frombytes(
        "I;16", (len(values), 1), b"".join(value.to_bytes(2, "little") for value in values)
    )
    image.save(tmp_path / name)
    assert pixels(tmp_path / name, mode)[0, 0].tolist() == [0, 1, 100, 101, 255]


def test_16_bit_gray_may_be_stored_in_32_bits(tmp_path):
    image = Image.new("I", (2, 1), 65535)
    image.putpixel((0, 0), 257 * 100)
    image.save(tmp_path / "a.tif")
    assert pixels(tmp_path / "a.tif", "L")[0, 0].tolist() == [100, 255]
    Image.new("I", (2, 1), 65536).save(tmp_path / "b.tif")
    assert "no defined white level" in refusal(tmp_path / "b.tif", "32-bit")


def test_32_bit_float_pixels_have_no_stated_white(tmp_path):
    Image.new("F", (3, 3), 0.5).save(tmp_path / "a.tif")
    assert "no defined white level" in refusal(tmp_path / "a.tif", "32-bit")


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.tif"])
def test_the_first_frame_stands_for_an_animation(tmp_path, name):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    red, _, blue = pixels(tmp_path / name)[:, 4, 4].tolist()
    assert red > 250
    assert blue < 5


def refusal(path, kind=None):
    with pytest.raises(UnreadableImageError) as caught:
        pixels(path)
    assert kind is None or caught.value.kind == kind
    assert f"'{path}'" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def test_an_empty_file_is_said_to_be_empty(tmp_path):
    (tmp_path / "a.jpg").touch()
    assert "is empty" in refusal(tmp_path / "a.jpg", "empty")


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif"])
def test_text_is_not_a_picture(tmp_path, name):
    (tmp_path / name).write_text("just words\n" * 99)
    assert "is not an image" in refusal(tmp_path / name, "not an image")


def test_a_format_that_starts_another_program_is_not_opened(make_picture):
    assert "is not an image" in refusal(make_picture("a.eps"), "not an image")


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tif", "a.gif"])
@pytest.mark.parametrize("keep", [0.05, 0.5, 0.9])
def test_a_truncated_picture_is_never_half_shown(make_picture, monkeypatch, name, keep, lenient):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    path = make_picture(name, size=(200, 200))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    # In a WebP or TIFF the header already says where everything lies, and Pillow refuses it as a whole.
    refusal(path, "truncated" if keep >= 0.5 and name in ("a.jpg", "a.png", "a.bmp") else None)
    assert lenient == ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("factor", [1.5, 30])
def test_a_decompression_bomb_is_never_inflated(make_picture, monkeypatch, factor):
    path = make_picture("a.png", size=(100, 100))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(10_000 / factor))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was inflated"))
    message = refusal(path, "too large")
    assert "too large to open safely" in message
    assert "10000 pixels" in message


def test_the_bytes_of_standard_input_are_a_picture(make_picture):
    path = make_picture()
    image = decode(ListedImage("-", path.read_bytes()), "RGB")
    assert torch.equal(pil_to_tensor(image), pixels(path))
    with pytest.raises(CannotRunError, match="'-' is not an image"):
        decode(ListedImage("-", b"words"), "RGB")
