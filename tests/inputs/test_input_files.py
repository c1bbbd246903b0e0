"""Which pictures a word on the command line names, and how they become batches."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.files import find_images


def names(*typed):
    return [file.name for file in find_images(map(str, typed)).files]


@pytest.fixture
def folder(make_picture, tmp_path):
    for name in ("b.PNG", "a.jpg", "c.webp"):
        make_picture(f"photos/{name}")
    make_picture("photos/deeper.png").rename(tmp_path / "elsewhere.png")
    (tmp_path / "photos" / "notes.txt").write_text("words")
    (tmp_path / "photos" / "sub").mkdir()
    return tmp_path / "photos"


def test_a_folder_is_its_pictures_sorted_and_the_rest_is_counted(folder):
    assert names(folder) == [str(folder / name) for name in ("a.jpg", "b.PNG", "c.webp")]
    assert find_images([str(folder)]).notes == [f"'{folder}': 3 images, 1 other file skipped"]


def test_a_folder_without_pictures_of_its_own_is_those_of_its_folders(folder, tmp_path):
    above = tmp_path / "data"
    above.mkdir()
    (above / "labels.csv").touch()
    (above / ".hidden").mkdir()
    folder.rename(above / "class")
    found = find_images([str(above)])
    assert [Path(picture.name).name for picture in found.files] == ["a.jpg", "b.PNG", "c.webp"]
    assert found.notes[0] == f"{above}: 3 images in 1 subfolder"
    (above / "class" / "a.jpg").rename(above / "own.jpg")
    assert names(above) == [str(above / "own.jpg")]


def test_a_file_named_like_a_glob_is_that_file(make_picture):
    path = make_picture("photo[1].png")
    assert names(path) == [str(path)]


def test_a_glob_that_matches_nothing_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError) as caught:
        names(tmp_path / "*.jpg")
    assert f"'{tmp_path}/*.jpg' matches no file" == caught.value.message
    assert caught.value.hint == f"ls {tmp_path}"


def test_a_missing_file_names_the_nearest(folder):
    with pytest.raises(CannotRunError, match="does not exist") as caught:
        names(folder / "aa.jpg")
    assert "a.jpg" in caught.value.hint
    with pytest.raises(CannotRunError) as caught:
        names("no such folder/x.jpg")
    assert caught.value.hint == "ls ."


@pytest.mark.parametrize("typed", ["", "x" * 5000, "nul\0.jpg", "no/such/file.pt", "y" * 5000 + ".npy"])
def test_names_that_no_file_can_have(opened, typed):
    with pytest.raises(CannotRunError, match="does not exist"):
        opened(typed)


def test_standard_input_is_read_once_and_kept(opened, make_picture, monkeypatch):
    content = make_picture().read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    inputs = opened("-")
    (first,), (again,) = inputs, inputs
    assert first.names == ("-",)
    assert torch.equal(first.args[0], again.args[0])


@pytest.mark.parametrize(("batch", "sizes"), [(None, [8, 3]), (4, [4, 4, 3]), (1, [1] * 11), (99, [11])])
def test_pictures_are_batched_in_order_and_the_same_every_time(opened, make_picture, batch, sizes):
    paths = [make_picture(f"{i:02}.png", size=(40 + i, 30)) for i in range(11)]
    inputs = opened(*paths, size="24", batch=batch)
    once, again = list(inputs), list(inputs)
    assert [b.n_images for b in once] == sizes
    assert (inputs.n_images, inputs.n_batches) == (11, len(sizes))
    assert inputs.info.shape == ((sizes[0], 3, 24, 24),)
    assert (
        [name for b in once for name in b.names] == list(inputs.info.files) == [str(path) for path in paths]
    )
    for one, other in zip(once, again, strict=True):
        assert torch.equal(one.args[0], other.args[0])
        assert all(torch.equal(p, q) for p, q in zip(one.pictures, other.pictures, strict=True))


def test_pictures_of_different_sizes_go_one_by_one_or_are_refused(opened, make_picture):
    paths = [make_picture("a.png", size=(90, 60)), make_picture("b.png", size=(60, 60))]
    assert opened(*paths, family="segmentation").n_batches == 2
    with pytest.raises(CannotRunError, match="becomes 520 x 520, but") as caught:
        opened(*paths, family="segmentation", batch=2)
    assert caught.value.hint == "--size 520,780"


def test_the_model_s_dtype_and_device_are_obeyed(opened, make_picture):
    (batch,) = opened(make_picture(), dtype=torch.bfloat16)
    assert batch.args[0].dtype == torch.bfloat16
    assert batch.pictures[0].dtype == torch.uint8
    (batch,) = opened(make_picture(), device="meta")
    assert batch.args[0].is_meta
    assert not batch.pictures[0].is_meta
