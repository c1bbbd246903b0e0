"""What `check_images` says of data sets: exact copies of every kind, distinct images, what is broken or odd."""

import shutil

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.report.check.table import check_sheet
from modelscope_cli.shell.console import PROGRESS

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
    assert codes(record) == ["MS805"]
    assert codes(ms.check_images(folder, ignore="MS805")) == ["MS802"]
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
    assert found == {("MS801", "empty.png"), ("MS801", "text.jpg"), ("MS801", "cut.png")}
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
    with pytest.raises(UsageError, match="no folder"):
        ms.check_images([])
    with pytest.raises(CannotRunError, match="does not exist"):
        ms.check_images(tmp_path / "nowhere")
    with pytest.raises(CannotRunError, match="does not exist"):
        ms.check_images(folder, against=tmp_path / "nowhere")


def test_data_sets_inside_a_folder_are_compared(folder, tmp_path):
    for n, name in enumerate(("Val", "test")):
        for label in ("cat", "dog"):
            (tmp_path / name / label).mkdir(parents=True)
            noise(100 + n).save(tmp_path / name / label / "new.png")
    shutil.copy(folder / "cat" / "01.png", tmp_path / "test" / "cat")
    both = ms.check_images(folder, against=[tmp_path / "Val", tmp_path / "test"])
    whole = ms.check_images(tmp_path)
    assert whole.findings == both.findings
    assert whole.dataset.against == (str(tmp_path / "Val"), str(tmp_path / "test"))
    assert whole.dataset.leaks[0].images == (f"{folder}/cat/01.png", f"{tmp_path}/test/cat/01.png")


def test_a_leak_under_another_label_is_one_finding(folder, tmp_path):
    other = tmp_path / "val"
    shutil.copytree(folder, other)
    shutil.move(other / "cat" / "01.png", other / "dog" / "moved.png")
    record = ms.check_images(folder, against=other)
    places = [finding.layer for finding in record.findings]
    assert len(places) == len(set(places)) == N  # every image is in both sets
    assert [one.layer for one in record.findings if one.code == "MS805"] == [str(folder / "cat" / "01.png")]
    assert codes(ms.check_images(folder, against=other, select="MS804")) == ["MS804"]
    assert len(ms.check_images(folder, against=other, select="MS804").findings) == N


@pytest.mark.parametrize("content", [None, ".hidden", "notes.txt", "deep/", "deep/image.png", "cut.jpg"])
def test_an_empty_class_folder_is_an_error_where_torchvision_refuses_it(folder, content):
    (folder / "bird").mkdir()
    if content:
        place = folder / "bird" / content
        (place if content.endswith("/") else place.parent).mkdir(exist_ok=True)
        if content.endswith(".png"):
            noise(50).save(place)
        elif not content.endswith("/"):
            place.write_bytes(b"")
    try:
        ImageFolder(folder)
    except FileNotFoundError:  # no valid file for the class bird
        is_refused = True
    else:
        is_refused = False
    record = ms.check_images(folder)
    found = [(one.layer, one.severity, one.message) for one in record.findings if one.code == "MS811"]
    assert found == [("bird", "error", f"the folder 'bird' in {folder} has no image")] * is_refused


def test_all_broken_is_said_and_not_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    record = ms.check_images(tmp_path)
    assert codes(record) == ["MS801"]
    assert record.dataset.width is None


def test_images_of_one_colour_and_with_several_frames_are_named(folder, capsys):
    Image.new("RGB", (20, 20)).save(folder / "cat" / "black.png")
    Image.new("L", (20, 20), 255).save(folder / "dog" / "white.jpg")
    noise(50).save(folder / "cat" / "moves.gif", save_all=True, append_images=[noise(51), noise(52)])
    noise(53).save(folder / "dog" / "still.gif")
    record = ms.check_images(folder)
    found = {one.code: one.message for one in record.run.warnings}
    assert set(found) == {"one_colour", "frames"}
    assert found["one_colour"] == (f"2 images of one colour: {folder}/cat/black.png, {folder}/dog/white.jpg")
    assert found["frames"].endswith(f": {folder}/cat/moves.gif")
    assert record.passed


@pytest.mark.parametrize(("n_more", "is_told"), [(53, False), (55, True)])
def test_a_class_of_more_than_ten_times_the_images_of_another_is_told(folder, capsys, n_more, is_told):
    (folder / "dog" / "broken.png").write_bytes(b"")
    for n in range(n_more):
        noise(n + N).save(folder / "cat" / f"{n + N}.png")
    ms.check_images(folder, progress=PROGRESS)
    told = f"class sizes differ: 'cat' has {n_more + 6} readable images, 'dog' 6"
    assert (told in capsys.readouterr().err) is is_told


def test_copies_are_counted_and_not_their_groups(folder):
    for name in ("x", "y"):
        shutil.copy(folder / "dog" / "00.png", folder / "dog" / f"{name}.png")
    facts = dict(check_sheet(ms.check_images(folder)).facts)
    assert facts["images"] == "14, 0 broken, identical copies: 2"
