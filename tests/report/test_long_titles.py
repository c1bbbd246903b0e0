"""No title of an image is cut off, however narrow the image and long the name of the layer."""

import pytest
import torch

from modelscope_cli.report.image_tiles import TITLE, _width, cut, page, to_image, wrapped


@pytest.mark.parametrize("width", [60, 254, 900])
def test_a_title_is_broken_between_words(width: int) -> None:
    title = "enc.self_attn   MultiheadAttention   2x256x256   attention received, mean over the queries"
    lines = wrapped(title, 15, width)
    assert " ".join(lines).split() == title.split()
    assert all(_width(line, 15) <= width for line in lines if " " in line)


def test_a_name_is_shortened_in_the_middle_and_what_follows_stays() -> None:
    name = "block_" * 30
    assert wrapped(f"{name}   Conv2d   2 channels", 15, 300) == [name, "Conv2d   2 channels"]
    assert cut(name, 15, 300).startswith("block_")
    body = to_image(torch.zeros(50, 40, dtype=torch.uint8), "viridis")
    two, five = (page(body, f"{name} {more}", "viridis").height for more in ("a", "word " * 70))
    assert five - two == 3 * TITLE
