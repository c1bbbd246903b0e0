"""What is trained on: the drawn set, folders of pictures, and what is wrong with them."""

import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from modelscope_cli.errors import CannotRunError
from modelscope_cli.training.data import CLASSES, open_drawn, open_folder
from samples.dataset import Shapes, draw


@pytest.fixture
def folder(tmp_path):
    """Three classes of twelve pictures, each class of one colour; and a class without any."""
    for label, colour in enumerate(["red", "green", "blue"]):
        (tmp_path / f"{label}_{colour}").mkdir()
        for n in range(12):
            Image.new("RGB", (30 + n, 40), colour).save(tmp_path / f"{label}_{colour}" / f"{n}.png")
    (tmp_path / "none_yet").mkdir()
    (tmp_path / "0_red" / "notes.txt").write_text("no picture")
    return tmp_path


def test_the_drawn_set_is_the_one_the_samples_were_made_from(samples):
    drawn = np.asarray(draw(CLASSES.index("star"), seed=8, size=224)).astype(int)
    kept = np.asarray(Image.open(samples / "star.png")).astype(int)
    assert np.abs(drawn - kept).max() <= 1  # another processor may round otherwise


def test_drawn_pictures_are_normalised_shapes_and_held_out_ones_are_others():
    data = open_drawn(50, 32, seed=0)
    assert data.classes == CLASSES
    assert (data.n_training, data.n_held_out) == (50, 5)
    picture, label = data.training[13]
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    shown = (picture * std[:, None, None] + mean[:, None, None]) * 255
    drawn, drawn_label = Shapes(50, 0, 32)[13]
    assert label == drawn_label == 3
    assert torch.equal(
        shown.round().byte().permute(1, 2, 0).flatten(),
        torch.tensor(list(drawn.tobytes()), dtype=torch.uint8),
    )
    assert not torch.equal(data.held_out[3][0], data.training[3][0])


def test_a_folder_is_split_and_its_empty_class_left_out(folder):
    data = open_folder(folder, 16, seed=0)
    assert data.classes == ("0_red", "1_green", "2_blue")
    assert (data.n_training, data.n_held_out) == (30, 6)
    pictures = [example for part in (data.training, data.held_out) for example in part]
    assert len(pictures) == 36
    for picture, label in pictures:
        assert picture.shape == (3, 16, 16)
        assert picture.mean((1, 2)).argmax() == label  # red, green, blue
    again = open_folder(folder, 16, seed=0)
    assert again.training.files == data.training.files
    assert open_folder(folder, 16, seed=1).training.files != data.training.files


@pytest.mark.parametrize("counts", [(1, 1), (1, 2, 9), (4, 4, 4), (100, 7, 13), (3, 50)])
@pytest.mark.parametrize("seed", [0, 3])
def test_each_class_has_its_share_of_the_held_out_images(tmp_path, counts, seed):
    for label, n in enumerate(counts):
        (tmp_path / str(label)).mkdir()
        for image in range(n):
            (tmp_path / str(label) / f"{image}.png").touch()
    data = open_folder(tmp_path, 16, seed)
    parts = data.training.files, data.held_out.files
    trained, held_out = (Counter(label for _, label in files) for files in parts)
    for label, n in enumerate(counts):
        assert trained[label] >= 1
        assert trained[label] + held_out[label] == n
        assert abs(held_out[label] - n / 5) < 1
        assert held_out[label] or n < 2
    assert not {path for path, _ in parts[0]} & {path for path, _ in parts[1]}


@pytest.mark.parametrize("names", [("train", "val"), ("Training", "test")])
def test_a_folder_of_two_parts_is_trained_on_one_and_validated_on_the_other(folder, names):
    parts = [folder / "both" / name for name in names]
    for part in parts:
        shutil.copytree(folder, part, ignore=shutil.ignore_patterns("both"))
    shutil.rmtree(parts[1] / "0_red")
    data = open_folder(folder / "both", 16, seed=0)
    assert data.classes == ("0_red", "1_green", "2_blue")
    assert (data.n_training, data.n_held_out) == (36, 24)
    for picture, label in data.held_out:
        assert picture.mean((1, 2)).argmax() == label
    assert sorted(label for _, label in data.training) == [0] * 12 + [1] * 12 + [2] * 12
    (parts[1] / "1_green").rename(parts[1] / "green")
    with pytest.raises(CannotRunError, match=r"has classes that .* lacks: green"):
        open_folder(folder / "both", 16, seed=0)


def test_a_class_may_be_called_train(folder):
    (folder / "0_red").rename(folder / "train")
    assert open_folder(folder, 16, seed=0).classes == ("1_green", "2_blue", "train")


def test_unreadable_pictures_are_skipped_and_counted(folder):
    (folder / "1_green" / "5.png").write_bytes(b"")
    whole = (folder / "2_blue" / "7.png").read_bytes()
    (folder / "2_blue" / "7.png").write_bytes(whole[: len(whole) // 2])
    data = open_folder(folder, 16, seed=0)
    seen = sum(len(labels) for part in (data.batches(10, 0), data.held_out_batches()) for _, labels in part)
    assert seen == 36 - 2
    assert sorted(data.unreadable) == [str(folder / "1_green" / "5.png"), str(folder / "2_blue" / "7.png")]


def test_not_one_readable_picture_is_an_error(folder):
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(CannotRunError, match="no image could be read"):
        list(open_folder(folder, 16, seed=0).batches(8, 0))


def test_the_order_follows_from_the_seed_and_changes_from_epoch_to_epoch():
    data = open_drawn(40, 16, seed=0)
    before = torch.get_rng_state()
    batches = data.batches(10, seed=5)
    first, second = ([label for _, labels in batches for label in labels.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second)
    assert first != second
    again = [label for _, labels in data.batches(10, seed=5) for label in labels.tolist()]
    assert again == first
    assert torch.equal(torch.get_rng_state(), before)


def test_a_rest_that_fills_no_batch_is_left_out_and_a_batch_is_at_most_everything():
    data = open_drawn(21, 16, seed=0)
    assert [len(labels) for _, labels in data.batches(10, 0)] == [10, 10]
    assert [len(labels) for _, labels in data.batches(500, 0)] == [21]
