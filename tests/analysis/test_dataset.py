"""What `check_images` says of data sets: exact copies of every kind, distinct images, what is broken or odd."""

import io
import json
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance
from torchvision.datasets import ImageFolder

import modelscope_cli as ms
from modelscope_cli.analysis.dataset.look import look_at
from modelscope_cli.analysis.dataset.near_copies import find_near_copies
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.report.check.table import check_sheet, review
from modelscope_cli.report.ci import CI_FORMATS, render_junit

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
        image = Image.new("RGB", size, "white")
        image.putpixel((0, 0), (0, 0, 0))
        image.save(folder / "cat" / f"white-{size[0]}.png")
    record = ms.check_images(folder)
    assert record.findings == ()
    assert record.passed
    assert record.images == N + 4
    judged = {rule.code: rule.reason for rule in record.rules if not rule.judged}
    assert list(judged) == ["MS804", "MS811", "MS813"]
    assert "--against" in judged["MS804"]


def test_sizes_aspect_ratios_and_modes_are_told(folder):
    report = ms.check_images(folder).dataset
    assert (report.sizes, report.other_aspect) == (((40, 30),), 0)
    assert report.modes == {"RGB": N}
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it to the right
    noise(20, (300, 200)).save(folder / "cat" / "turned.png", exif=exif)
    noise(21, (8, 6)).convert("L").save(folder / "cat" / "gray.png")
    noise(22, (42, 30)).convert("CMYK").save(folder / "cat" / "print.tif")  # 5 % wider than the others
    (folder / "cat" / "broken.png").write_bytes(b"")
    record = ms.check_images(folder)
    report = record.dataset
    assert (report.sizes, report.other_aspect) == (((8, 6), (200, 300)), 1)
    assert report.modes == {"RGB": N + 1, "L": 1, "CMYK": 1}
    facts = dict(check_sheet(record).facts)
    assert facts["sizes"] == "8 x 6 to 200 x 300 pixels; 1 with another aspect ratio"
    at = folder / "cat"
    assert facts["modes"] == f"RGB 13, L 1 ({at}/gray.png), CMYK 1 ({at}/print.tif); all are tested as RGB"


def test_copies_have_the_same_pixels_whatever_their_bytes(folder):
    shutil.copy(folder / "cat" / "01.png", folder / "cat" / "copy.png")
    noise(1).save(folder / "cat" / "other.bmp")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it to the right
    noise(3).transpose(Image.Transpose.ROTATE_90).save(folder / "cat" / "turned.png", exif=exif)
    record = ms.check_images(folder)
    assert codes(record) == ["MS802"]
    groups = {tuple(short(group.images)) for group in record.dataset.identical}
    assert groups == {("01.png", "copy.png", "other.bmp"), ("03.png", "turned.png")}
    assert [one.value for one in record.findings] == [2, 1]
    assert record.passed
    assert not ms.check_images(folder, fail_on="warning").passed


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
    assert [short(group.images) for group in record.dataset.identical] == [["04.png", "twice.png"]]
    assert record.dataset.against_images == 4
    assert "known.bmp" in record.findings[0].message
    facts = dict(check_sheet(record).facts)
    assert facts["images"] == "0 broken, identical copies: 1 inside one set, images in several: 2"


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


def test_broken_links_are_broken_images_and_images_of_other_kinds_are_named(folder):
    (folder / "cat" / "link.png").symlink_to("nowhere.png")
    (folder / "cat" / "good.png").symlink_to("01.png")
    for name in ("photo.HEIC", "raw.cr3", "notes.txt", "link.txt"):
        (folder / "dog" / name).write_bytes(b"")
    record = ms.check_images(folder, ignore="MS802")
    (found,) = record.findings
    assert (found.code, short([found.layer])) == ("MS801", ["link.png"])
    assert "is linked to a missing file" in found.message
    (notice,) = record.run.warnings
    assert (
        notice.message
        == f"2 images of a kind that is not read: {folder}/dog/photo.HEIC, {folder}/dog/raw.cr3"
    )
    assert notice.message in review(record).outcome
    assert record.images == N + 2
    assert ms.check_images(f"{folder}/cat/*").images == N // 2 + 2


def test_what_means_nothing_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="names the same folder again"):
        ms.check_images(folder, against=[tmp_path / "train" / ".." / "train"])
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


@pytest.mark.parametrize(
    ("names", "is_compared"),
    [
        (("train", "val"), True),
        (("Test", "train"), True),
        (("my-train", "my-test"), False),
        (("val", "test"), False),
        (("trainer", "tester"), False),
        (("train", "val", "more"), False),
    ],
)
def test_folders_with_the_names_of_data_sets_are_compared_and_others_said_to_be_one(
    folder, names, is_compared
):
    paths = [folder.parent / "sets" / name for name in names]
    for n, path in enumerate(paths):
        for label in ("cat", "dog"):
            (path / label).mkdir(parents=True)
            noise(100 + 2 * n + (label == "cat")).save(path / label / "0.png")
    shutil.copy(paths[0] / "cat" / "0.png", paths[1] / "cat" / "1.png")
    record = ms.check_images(paths)
    assert codes(record) == (["MS804"] if is_compared else ["MS802"])
    if not is_compared:
        (reason,) = {rule.reason for rule in record.rules if rule.code in ("MS804", "MS811")}
        _, *typed = shlex.split(reason.partition("to compare them: modelscope ")[2])
        assert typed == [str(paths[0]), *(word for path in paths[1:] for word in ("--against", str(path)))]
        assert record.findings[0].message.startswith(f"in {paths[0]}, {paths[1]}: the same pixels")
        compared = ms.check_images(typed[0], against=typed[2::2])
        assert codes(compared) == ["MS804"]


def test_a_leak_under_another_label_is_a_conflict_as_well(folder, tmp_path):
    other = tmp_path / "val"
    shutil.copytree(folder, other)
    shutil.move(other / "cat" / "01.png", other / "dog" / "moved.png")
    record = ms.check_images(folder, against=other)
    assert [one.code for one in record.findings].count("MS804") == N  # every image is in both sets
    assert [one.layer for one in record.findings if one.code == "MS805"] == [str(folder / "cat" / "01.png")]
    assert codes(record) == ["MS804", "MS805"]


def test_every_two_data_sets_are_compared(folder, tmp_path):
    for n, name in enumerate(("val", "test")):
        for label in ("cat", "dog", "owl")[: 3 - n]:
            (tmp_path / name / label).mkdir(parents=True)
            noise(ord(label[0]) + 100 * n).save(tmp_path / name / label / "new.png")
    record = ms.check_images(tmp_path)
    assert [(one.code, one.layer) for one in record.findings] == [("MS811", "owl")]
    assert record.findings[0].message.endswith(f"in {tmp_path}/val, none in {folder}, {tmp_path}/test")
    shutil.copy(tmp_path / "val" / "cat" / "new.png", tmp_path / "test" / "cat" / "copy.png")
    (group,) = ms.check_images(tmp_path).dataset.leaks
    assert short(group.images) == ["copy.png", "new.png"]
    shutil.copy(tmp_path / "val" / "cat" / "new.png", tmp_path / "val" / "cat" / "twice.png")
    record = ms.check_images(tmp_path, ignore="MS811")
    assert [(one.code, one.severity) for one in record.findings] == [("MS804", "error"), ("MS802", "warning")]


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


def test_images_of_one_colour_and_with_several_frames_are_named(folder, capsys):
    Image.new("RGB", (20, 20)).save(folder / "cat" / "black.png")
    Image.new("L", (20, 20), 255).save(folder / "dog" / "white.jpg")
    noise(50).save(folder / "cat" / "moves.gif", save_all=True, append_images=[noise(51), noise(52)])
    noise(53).save(folder / "dog" / "still.gif")
    record = ms.check_images(folder)
    (notice,) = record.run.warnings
    assert notice.code == "frames"
    assert notice.message.endswith(f": {folder}/cat/moves.gif")
    places = [f"{folder}/cat/black.png", f"{folder}/dog/white.jpg"]
    assert [(one.code, one.layer) for one in record.findings] == [("MS812", place) for place in places]
    assert record.passed
    # One count for people and for every host
    shown = review(record)
    assert "2 warnings" in shown.outcome
    assert CI_FORMATS["github"].render(shown).count("title=MS812") == 2
    assert len(json.loads(CI_FORMATS["gitlab"].render(shown))) == 2
    (run,) = json.loads(CI_FORMATS["sarif"].render(shown))["runs"]
    assert [one["ruleId"] for one in run["results"]] == ["MS812", "MS812"]
    assert render_junit(shown).count("all pixels are the same") == 2


@pytest.mark.parametrize(("n_more", "is_told"), [(53, False), (54, True)])
def test_a_class_of_ten_times_the_images_of_another_is_told_and_kept(folder, n_more, is_told):
    (folder / "dog" / "broken.png").write_bytes(b"")
    for n in range(n_more):
        noise(n + N).save(folder / "cat" / f"{n + N}.png")
    told = f"class sizes differ: 'cat' has {n_more + 6} readable images, 'dog' 6"
    assert [one.message for one in ms.check_images(folder).run.warnings] == [told] * is_told


def test_images_in_folders_inside_a_class_are_tested_as_imagefolder_takes_them(folder):
    inside = folder / "cat" / "more" / "still"
    inside.mkdir(parents=True)
    (inside / "cut.png").write_bytes((folder / "cat" / "01.png").read_bytes()[:2000])
    shutil.copy(folder / "dog" / "00.png", inside / "copy.png")
    record = ms.check_images(folder)
    theirs = ImageFolder(folder)
    assert record.images == len(theirs) == N + 2
    assert {path: theirs.classes[n] for path, n in theirs.samples}[str(inside / "cut.png")] == "cat"
    broken, conflict = sorted(record.findings, key=lambda one: one.code)
    assert (broken.code, broken.layer) == ("MS801", str(inside / "cut.png"))
    assert conflict.code == "MS805"
    assert set(record.dataset.conflicts[0].labels) == {"cat", "dog"}


def test_copies_are_counted_and_not_their_groups(folder):
    for name in ("x", "y"):
        shutil.copy(folder / "dog" / "00.png", folder / "dog" / f"{name}.png")
    facts = dict(check_sheet(ms.check_images(folder)).facts)
    assert facts["images"] == "0 broken, identical copies: 2"


def painting(seed, size=(96, 80)):
    """Return smooth random colours with edges, as photographs have."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (9, 10, 3), dtype=np.uint8))
    image = coarse.resize(size, Image.Resampling.BICUBIC)
    for _ in range(3):
        x, y = random.integers(0, 60, 2).tolist()
        image.paste(tuple(random.integers(0, 256, 3).tolist()), (x, y, x + 20, y + 20))
    return image


def compressed(image):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream)


CHANGES = {
    "half the size": lambda image: image.resize((48, 40)),
    "JPEG": compressed,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "gray": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_in_another_data_set_is_a_warning(change, tmp_path):
    for n in range(8):
        for name, seed in (("train", n), ("test", 100 + n)):
            (tmp_path / name).mkdir(exist_ok=True)
            painting(seed).save(tmp_path / name / f"{seed}.png")
    assert ms.check_images(tmp_path).findings == ()
    CHANGES[change](painting(3)).save(tmp_path / "test" / "changed.png")
    painting(5).save(tmp_path / "test" / "exact.bmp")  # told as such, and only so
    record = ms.check_images(tmp_path, ignore="MS804")
    (found,) = record.findings
    assert (found.code, found.severity, short([found.layer])) == ("MS813", "warning", ["3.png"])
    assert found.message == f"looks like {tmp_path}/test/changed.png"


def drawn(seed, kind):
    """Return a picture of which most pixels are those of every other of its kind."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (96, 96), "white")
    draw = ImageDraw.Draw(image)
    if kind == "shape":
        x, y = random.integers(0, 80, 2).tolist()
        draw.rectangle((x, y, x + 12, y + 12), fill="navy")
    elif kind == "chart":
        draw.line([(10, 5), (10, 85), (90, 85)], fill="black", width=2)
        draw.line([(12 + 5 * n, y) for n, y in enumerate(random.integers(10, 80, 16).tolist())], fill="blue")
    else:
        start, end = random.integers(0, 256, (2, 3))
        ramp = np.linspace(start, end, 96)
        image = Image.fromarray(np.broadcast_to(ramp, (96, 96, 3)).astype(np.uint8))
    return image


@pytest.mark.parametrize("kind", ["shape", "chart", "gradient"])
def test_pictures_that_share_their_background_are_not_near_copies(kind):
    images = [ListedImage(f"{seed}", image=drawn(seed, kind)) for seed in range(60)]
    facts = [look_at(image, is_compared=True) for image in images]
    assert find_near_copies(facts, range(60), range(60)) == []


def test_images_of_unusual_modes_are_named_and_a_wrapped_folder_is_not_a_class(folder, tmp_path):
    inside = tmp_path / "test" / "test"  # as archives are packed
    inside.mkdir(parents=True)
    for n in range(4):
        noise(50 + n).convert("CMYK").save(inside / f"{n}.tif")
    record = ms.check_images(tmp_path)
    assert record.findings == ()
    facts = dict(check_sheet(record).facts)
    named = ", ".join(f"{inside}/{n}.tif" for n in range(3))
    assert facts["modes"] == f"RGB 12, CMYK 4 ({named} and 1 more); all are tested as RGB"
    (tmp_path / "test" / "control").mkdir()
    noise(60).save(tmp_path / "test" / "control" / "0.png")  # next to another folder it is one
    assert codes(ms.check_images(tmp_path)) == ["MS811"]
