"""Images that cannot be decoded are left out and counted; `test_pictures.py` has which kind they are of."""

import random

import pytest
import torch

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import UnreadableImage, UnreadableImages, in_words


@pytest.fixture
def folder(make_picture, tmp_path):
    """Twenty images of 5, in blocks of 4 one of which is all broken."""
    for n in range(20):
        path = make_picture(f"f/{n:02}.jpg", size=(40 + n, 30))
        if n in (4, 5, 6, 7):
            path.write_bytes(b"")
        if n in (9, 17):
            path.write_bytes(path.read_bytes()[:-400])
        if n == 11:
            path.write_text("words")
    return tmp_path / "f"


@pytest.mark.parametrize("workers", [0, 2])
def test_blocks_are_cut_before_anything_is_left_out(opened, folder, workers):
    inputs = opened(folder, size="24", batch=4, workers=workers)
    assert (inputs.n_images, inputs.n_batches) == (20, 5)
    blocks = list(inputs.make_blocks([3, 1, 2, 4, 0]))
    assert [b.block for b in blocks] == [3, 1, 2, 4, 0]
    assert [b.numbers for b in blocks] == [(12, 13, 14, 15), (), (8, 10), (16, 18, 19), (0, 1, 2, 3)]
    assert [b.n_images for b in blocks] == [4, 0, 2, 3, 4]
    assert [(one.number, one.kind) for one in blocks[2].broken] == [(9, "truncated"), (11, "not an image")]
    assert blocks[1].args == ()
    assert blocks[2].names == (f"{folder}/08.jpg", f"{folder}/10.jpg")
    assert len(blocks[2].pictures) == 2
    for block in blocks:
        if block.n_images:
            (alone,) = opened(*block.names, size="24", batch=4)
            assert torch.equal(alone.args[0], block.args[0])
    assert inputs.n_images == 13


def test_going_through_skips_batches_without_images_and_counts_once(opened, folder):
    inputs = opened(folder, size="24", batch=4)
    for _ in range(3):
        assert [batch.n_images for batch in inputs] == [4, 2, 4, 3]
    assert inputs.n_images == 13
    assert in_words(inputs.info.broken) == (
        f"4 empty ('{folder}/04.jpg', '{folder}/05.jpg', '{folder}/06.jpg' and 1 more), "
        f"2 truncated ('{folder}/09.jpg', '{folder}/17.jpg'), 1 not an image ('{folder}/11.jpg')"
    )


def test_one_broken_image_alone_is_an_error_and_so_are_all(opened, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(b"")
    with pytest.raises(CannotRunError, match=r"a.png' is empty$"):
        opened(tmp_path / "a.png")
    with pytest.raises(CannotRunError, match=r"none of the 2 images can be read: 2 empty \("):
        opened(tmp_path)


def test_the_first_block_may_be_all_broken(opened, folder):
    for n in range(8):
        (folder / f"{n:02}.jpg").write_bytes(b"")
    inputs = opened(folder, size="24", batch=4)
    assert inputs.info.shape == ((2, 3, 24, 24),)
    assert [batch.block for batch in inputs] == [2, 3, 4]
    assert inputs.n_images == 9


def test_names_are_the_first_of_the_list_in_whatever_order_blocks_come():
    broken = [
        UnreadableImage(n, f"{n}.png", kind)
        for n, kind in enumerate(random.Random(1).choices(["empty", "32-bit"], k=200))
    ]
    blocks = [broken[8 * b : 8 * b + 8] for b in range(25)]
    random.Random(0).shuffle(blocks)
    counted = UnreadableImages()
    for found in [*blocks, *blocks[:9]]:
        counted.take(found)
    assert len(counted) == 200
    for kind in counted.kinds():
        own = [one for one in broken if one.kind == kind.kind]
        assert (kind.count, kind.names) == (len(own), tuple(one.name for one in own[:10]))
