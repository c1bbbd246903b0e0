"""What `check_images` says of data sets: exact copies of every kind, distinct images, what is broken or odd."""

import shutil

import numpy as np
import pytest
from PIL import Image

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError

N = 12


def noise(seed, size=(40, 30)):
    width, height = size
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture
def folder(tmp_path):
    """Two classes of six images each."""
    for n in range(N):
        place = tmp_path / "train" / ("cat" if n % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        noise(n).save(place / f"{n:02d}.png")
    return tmp_path / "train"


def codes(record):
    return sorted({finding.code for finding in record.findings})


def short(names):
    return [name.rpartition("/")[2] for name in names]


def test_distinct_images_have_no_finding(folder):
    pixels = noise(1)
    pixels.putpixel((3, 4), (0, 0, 0))
    pixels.save(folder / "cat" / "one-pixel-differs.png")
    noise(2).resize((20, 15)).save(folder / "cat" / "smaller.png")
    for size in ((20, 30), (30, 20)):  # the same values in another shape
        Image.new("RGB", size, "white").save(folder / "cat" / f"white-{size[0]}.png")
    record = ms.check_images(folder)
    assert record.findings == ()
    assert record.passed
    assert record.images == N + 4
    assert (record.dataset.width.median, record.dataset.height.most) == (40, 30)
    judged = {rule.code: rule.reason for rule in record.rules if not rule.judged}
    assert list(judged) == ["MS804", "MS811"]
    assert "--against" in judged["MS804"]


def test_the_same_bytes_and_the_same_pixels_are_identical(folder):
    shutil.copy(folder / "cat" / "01.png", folder / "cat" / "copy.png")
    noise(1).save(folder / "cat" / "other.bmp")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it to the right
    noise(3).transpose(Image.Transpose.ROTATE_90).save(folder / "cat" / "turned.png", exif=exif)
    record = ms.check_images(folder)
    assert codes(record) == ["MS802"]
    groups = {tuple(short(group.images)): group.how for group in record.dataset.identical}
    assert groups == {
        ("01.png", "copy.png", "other.bmp"): "the same pixels",
        ("03.png", "turned.png"): "the same pixels",
    }
    assert [one.value for one in record.findings] == [2, 1]
    assert record.passed
    assert not ms.check_images(folder, fail_on="warning").passed
    (folder / "cat" / "other.bmp").unlink()
    (folder / "cat" / "turned.png").unlink()
    (group,) = ms.check_images(folder).dataset.identical
    assert group.how == "the same bytes"


def test_a_leak_into_another_data_set_is_an_error(folder, tmp_path):
    other = tmp_path / "val" / "dog"
    other.mkdir(parents=True)
    noise(99).save(other / "new.png")
    record = ms.check_images(folder, against=tmp_path / "val")
    assert record.passed
    (missing,) = record.findings  # no image of a cat in val
    assert (missing.code, missing.layer, missing.severity) == ("MS811", "cat", "warning")
    assert "none in" in missing.message
    (tmp_path / "val" / "cat").mkdir()
    noise(98).save(tmp_path / "val" / "cat" / "new.png")
    assert not ms.check_images(folder, against=tmp_path / "val").findings
    noise(2).save(other / "known.bmp")
    shutil.copy(folder / "dog" / "04.png", other / "same.png")
    shutil.copy(folder / "dog" / "04.png", folder / "dog" / "twice.png")
    record = ms.check_images(folder, against=tmp_path / "val")
    assert codes(record) == ["MS802", "MS804"]
    assert not record.passed
    assert [short(group.images) for group in record.dataset.leaks] == [
        ["02.png", "known.bmp"],
        ["04.png", "same.png", "twice.png"],
    ]
    assert [group.how for group in record.dataset.leaks] == ["the same pixels", "the same bytes"]
    assert [short(group.images) for group in record.dataset.identical] == [["04.png", "twice.png"]]
    assert record.dataset.against_images == 4
    assert "known.bmp" in record.findings[0].message


def test_copies_in_folders_of_two_classes_conflict(folder, tmp_path):
    noise(2).save(folder / "cat" / "wrong.bmp")
    record = ms.check_images(folder)
    assert codes(record) == ["MS802", "MS805"]
    (group,) = record.dataset.conflicts
    assert set(group.labels) == {"cat", "dog"}
    bare = tmp_path / "bare"
    bare.mkdir()
    for n in (1, 2):
        shutil.copy(folder / "dog" / "02.png", bare / f"{n}.png")
    assert ms.check_images(bare).dataset.conflicts == ()


def test_what_is_broken(folder):
    at = folder / "cat"
    (at / "empty.png").write_bytes(b"")
    (at / "text.jpg").write_bytes(b"hello")
    (at / "cut.png").write_bytes((at / "01.png").read_bytes()[:2000])
    record = ms.check_images(folder)
    found = {(one.code, one.layer.rpartition("/")[2]) for one in record.findings}
    assert found == {
        ("MS801", "empty.png"),
        ("MS801", "text.jpg"),
        ("MS801", "cut.png"),
    }
    assert {kind.kind: kind.count for kind in record.dataset.broken} == {
        "empty": 1,
        "not an image": 1,
        "truncated": 1,
    }
    assert record.run.input.broken == record.dataset.broken
    assert record.images == N + 3


def test_what_means_nothing_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="selects rules for a model"):
        ms.check_images(folder, select="MS2")
    with pytest.raises(UsageError, match="selects rules for a data set"):
        ms.check("alexnet", weights="none", select="MS8")
    for name in ("train", "val"):
        (tmp_path / "sets" / name).mkdir(parents=True)
    with pytest.raises(UsageError, match="contains data sets, not classes: train, val") as caught:
        ms.check_images(tmp_path / "sets")
    assert str(caught.value.hint).endswith(
        f"modelscope check {tmp_path}/sets/train --against {tmp_path}/sets/val"
    )
    with pytest.raises(UsageError, match="no folder"):
        ms.check_images([])
    with pytest.raises(CannotRunError, match="does not exist"):
        ms.check_images(tmp_path / "nowhere")
    with pytest.raises(CannotRunError, match="does not exist"):
        ms.check_images(folder, against=tmp_path / "nowhere")


def test_all_broken_is_said_and_not_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    record = ms.check_images(tmp_path)
    assert codes(record) == ["MS801"]
    assert record.dataset.width is None
