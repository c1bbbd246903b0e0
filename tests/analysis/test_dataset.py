"""What `check_images` says of drawn images: copies of every kind, distinct ones, what is broken or odd."""

import io
import itertools
import shutil

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

import modelscope_cli as ms
from modelscope_cli.analysis.dataset import check_images
from modelscope_cli.analysis.dataset.look import ImageFacts, ImageTable, look_at
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.image import strict_pillow
from modelscope_cli.inputs.listing import ListedImage

N = 12


def landscape(seed, size=(240, 180)):
    """Noise of all scales, as photographs have it: an amplitude of 1 over the frequency to the power of 1.6."""
    random = np.random.default_rng(seed)
    width, height = size
    frequency = np.hypot(np.fft.rfftfreq(width)[None], np.fft.fftfreq(height)[:, None])
    frequency[0, 0] = 1
    planes = []
    shared = random.normal(size=(2, *frequency.shape))
    for _ in range(3):
        real, imaginary = 0.7 * shared + 0.3 * random.normal(size=shared.shape)
        plane = np.fft.irfft2((real + 1j * imaginary) / frequency**1.6, s=(height, width))
        planes.append(128 + 50 * (plane - plane.mean()) / plane.std())
    return Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))


def jpeg(image, quality):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


CHANGES = {
    "jpeg 90": lambda image: jpeg(image, 90),
    "jpeg 20": lambda image: jpeg(image, 20),
    "half size": lambda image: image.resize((120, 90)),
    "cropped": lambda image: image.crop((3, 2, 238, 177)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
}


@pytest.fixture(scope="module")
def originals():
    return [landscape(seed) for seed in range(N)]


@pytest.fixture
def folder(tmp_path, originals):
    """Two classes of six images each."""
    for n, image in enumerate(originals):
        place = tmp_path / "train" / ("cat" if n % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{n:02d}.png")
    return tmp_path / "train"


def codes(record):
    return sorted({finding.code for finding in record.findings})


def short(names):
    return [name.rpartition("/")[2] for name in names]


def test_distinct_images_have_no_finding(folder):
    record = ms.check_images(folder)
    assert record.findings == ()
    assert record.passed
    assert record.images == N
    assert (record.dataset.width.median, record.dataset.height.most) == (240, 180)
    judged = {rule.code: rule.reason for rule in record.rules if not rule.judged}
    assert list(judged) == ["MS804", "MS811"]
    assert "--against" in judged["MS804"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_a_little_is_a_near_duplicate(folder, originals, change):
    for n in range(N):
        CHANGES[change](originals[n]).save(folder / ("cat" if n % 2 else "dog") / f"{n:02d}-changed.png")
    record = ms.check_images(folder)
    assert codes(record) == ["MS803"]
    found = {frozenset(short(group.images)) for group in record.dataset.alike}
    assert found == {frozenset({f"{n:02d}.png", f"{n:02d}-changed.png"}) for n in range(N)}
    assert record.passed
    assert not ms.check_images(folder, fail_on="warning").passed


def test_the_same_bytes_and_the_same_pixels_are_identical(folder, originals):
    shutil.copy(folder / "cat" / "01.png", folder / "cat" / "copy.png")
    originals[1].save(folder / "cat" / "other.bmp")
    turned = originals[3].transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it to the right
    turned.save(folder / "cat" / "turned.png", exif=exif)
    record = ms.check_images(folder)
    assert codes(record) == ["MS802"]
    groups = {tuple(short(group.images)): group.how for group in record.dataset.identical}
    assert groups == {
        ("01.png", "copy.png", "other.bmp"): "the same pixels",
        ("03.png", "turned.png"): "the same pixels",
    }
    assert [one.value for one in record.findings] == [2, 1]
    (folder / "cat" / "other.bmp").unlink()
    (folder / "cat" / "turned.png").unlink()
    (group,) = ms.check_images(folder).dataset.identical
    assert group.how == "the same bytes"


def test_a_leak_into_another_data_set_is_an_error(folder, originals, tmp_path):
    other = tmp_path / "val" / "dog"
    other.mkdir(parents=True)
    landscape(99).save(other / "new.png")
    record = ms.check_images(folder, against=tmp_path / "val")
    assert record.passed
    (missing,) = record.findings  # no image of a cat in val
    assert (missing.code, missing.layer, missing.severity) == ("MS811", "cat", "warning")
    assert "none in" in missing.message
    (tmp_path / "val" / "cat").mkdir()
    landscape(98).save(tmp_path / "val" / "cat" / "new.png")
    assert not ms.check_images(folder, against=tmp_path / "val").findings
    jpeg(originals[2], 50).save(other / "known.jpg")
    shutil.copy(folder / "dog" / "04.png", other / "same.png")
    record = ms.check_images(folder, against=tmp_path / "val")
    assert codes(record) == ["MS804"]
    assert not record.passed
    assert [short(group.images) for group in record.dataset.leaks] == [
        ["02.png", "known.jpg"],
        ["04.png", "same.png"],
    ]
    assert [group.how for group in record.dataset.leaks] == ["alike", "the same bytes"]
    assert record.dataset.against_images == 4
    assert "known.jpg" in record.findings[0].message


def test_copies_in_folders_of_two_classes_conflict(folder, originals, tmp_path):
    jpeg(originals[2], 50).save(folder / "cat" / "wrong.jpg")
    record = ms.check_images(folder)
    assert codes(record) == ["MS803", "MS805"]
    (group,) = record.dataset.conflicts
    assert set(group.labels) == {"cat", "dog"}
    bare = tmp_path / "bare"
    bare.mkdir()
    for n in (1, 2):
        shutil.copy(folder / "dog" / "02.png", bare / f"{n}.png")
    assert ms.check_images(bare).dataset.conflicts == ()


def test_what_is_broken_odd_dark_flat_or_blurred(folder, originals):
    at = folder / "cat"
    (at / "empty.png").write_bytes(b"")
    (at / "text.jpg").write_bytes(b"hello")
    (at / "cut.png").write_bytes((at / "01.png").read_bytes()[:4000])
    landscape(50, (1000, 750)).save(at / "huge.png")
    landscape(51, (600, 60)).save(at / "wide.png")
    landscape(52).point(lambda value: value * 0.15).save(at / "dark.png")
    Image.new("RGB", (240, 180), (90, 140, 20)).save(at / "flat.png")
    landscape(53).filter(ImageFilter.GaussianBlur(9)).save(at / "blurred.png")
    record = ms.check_images(folder)
    found = {(one.code, one.layer.rpartition("/")[2]) for one in record.findings}
    assert found == {
        ("MS801", "empty.png"),
        ("MS801", "text.jpg"),
        ("MS801", "cut.png"),
        ("MS806", "huge.png"),
        ("MS807", "wide.png"),
        ("MS808", "dark.png"),
        ("MS809", "flat.png"),
        ("MS810", "blurred.png"),
    }
    assert {kind.kind: kind.count for kind in record.dataset.broken} == {
        "empty": 1,
        "not an image": 1,
        "truncated": 1,
    }
    assert record.run.input.broken == record.dataset.broken
    assert record.images == N + 8


def test_only_so_many_are_reported_and_the_rest_are_counted(tmp_path, originals):
    for n, copy in itertools.product(range(5), range(6)):
        Image.new("L", (40, 40), 7 * n + copy).save(tmp_path / f"{n}{copy}.png")
    record = ms.check_images(tmp_path, select="MS809")
    assert len(record.findings) == 21
    assert record.findings[-1].message.startswith("... and 10 more")
    assert "30 warnings (20 shown)" in str(record)

    known = tmp_path / "known.json"
    ms.check_images(tmp_path, select="MS809", baseline=known, update_baseline=True)
    assert all(one.known for one in ms.check_images(tmp_path, select="MS809", baseline=known).findings)
    Image.new("L", (40, 40), 99).save(tmp_path / "last.png")
    *before, rest = ms.check_images(tmp_path, select="MS809", baseline=known).findings
    assert all(one.known for one in before)
    assert not rest.known
    assert rest.message.endswith("worse than in the baseline, which has 10")


def test_a_threshold_and_a_baseline_are_obeyed(folder, originals, tmp_path):
    jpeg(originals[2], 20).save(folder / "dog" / "again.jpg")
    assert codes(ms.check_images(folder, set={"MS803": 1.0})) == []
    known = tmp_path / "known.json"
    ms.check_images(folder, baseline=known, update_baseline=True)
    record = ms.check_images(folder, baseline=known, fail_on="warning")
    assert record.passed
    assert [one.known for one in record.findings] == [True]
    jpeg(originals[4], 20).save(folder / "dog" / "another.jpg")
    record = ms.check_images(folder, baseline=known, fail_on="warning")
    assert not record.passed
    assert [one.layer.rpartition("/")[2] for one in record.findings if not one.known] == ["04.png"]


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


# The parts.


def table_of(looks):
    table = ImageTable()
    for look in looks:
        table.add(look)
    return table


def random_table(n, seed=0):
    random = np.random.default_rng(seed)
    return table_of(
        [
            ImageFacts(random.bytes(32), "", 8, 8, random.bytes(16), random.bytes(64), 1, 1, 1)
            for _ in range(n)
        ]
    )


def test_pairs_are_those_of_comparing_everything():
    random = np.random.default_rng(1)
    looks = []
    for _ in range(40):
        coarse, fine = random.bytes(16), random.bytes(64)
        looks.append(ImageFacts(random.bytes(32), "", 8, 8, coarse, fine, 1, 1, 1))
        for flips in (0, 1, 6):
            bits = np.unpackbits(np.frombuffer(coarse, np.uint8))
            bits[random.choice(128, flips, replace=False)] ^= 1
            finer = np.unpackbits(np.frombuffer(fine, np.uint8))
            finer[random.choice(512, 8 * flips, replace=False)] ^= 1
            hashes = np.packbits(bits).tobytes(), np.packbits(finer).tobytes()
            looks.append(ImageFacts(random.bytes(32), "", 8, 8, *hashes, 1, 1, 1))
    table = table_of(looks)
    found = {
        (pair.first, pair.second): pair.alike for pair in check_images.find_alike(table, table.good(), 0.5)
    }
    rows = np.unpackbits(table.rows("fine"), axis=1).astype(bool)
    distinct = {
        row.tobytes(): n for n, row in reversed(list(enumerate(np.hstack([table.rows("coarse"), rows]))))
    }
    expected = {}
    for a, b in itertools.combinations(sorted(distinct.values()), 2):
        alike = (rows[a] & rows[b]).sum() / (rows[a] | rows[b]).sum()
        if alike >= 0.5:
            expected[a, b] = alike
    assert {pair: value for pair, value in found.items() if value < 1} == pytest.approx(expected)
    assert sum(value == 1 for value in found.values()) == 40  # equal hashes, each with the first of them


def test_groups_hang_together():
    pairs = [
        check_images.ImagePair(5, 9, 1.0),
        check_images.ImagePair(1, 5, 0.7),
        check_images.ImagePair(2, 3, 0.9),
    ]
    groups = [
        sorted({n for pair in group for n in (pair.first, pair.second)})
        for group in check_images.groups_of(pairs)
    ]
    assert groups == [[1, 5, 9], [2, 3]]


def test_a_broken_image_has_a_row_and_is_not_good():
    table = table_of(
        [
            ImageFacts(b"", "empty"),
            *(ImageFacts(bytes(32), "", n, 3) for n in range(4)),
            ImageFacts(b"", "truncated"),
        ]
    )
    assert len(table) == len(table.rows("sha256")) == 6
    assert table.kinds == {0: "empty", 5: "truncated"}
    assert table.good().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("factor", [0.7, 0.85])
def test_brightness_does_not_change_what_is_kept_of_the_edges(originals, factor):
    with strict_pillow():
        looks = []
        for image in (originals[0], originals[0].point(lambda value: value * factor)):
            stream = io.BytesIO()
            image.save(stream, "PNG")
            looks.append(look_at(ListedImage("-", stream.getvalue())))
    one, other = looks
    assert other.light == pytest.approx(min(one.light * factor, 1), abs=0.01)
    assert other.contrast == pytest.approx(one.contrast * factor, rel=0.1)
    assert other.sharpness == pytest.approx(one.sharpness, rel=0.1)
    assert bin(int.from_bytes(one.coarse) ^ int.from_bytes(other.coarse)).count("1") <= 4


def test_the_measures_are_those_of_numpy(originals):
    stream = io.BytesIO()
    gray = originals[1].convert("L").resize((150, 128))
    gray.save(stream, "PNG")
    with strict_pillow():
        look = look_at(ListedImage("-", stream.getvalue()))
    x = np.asarray(gray) / 255
    assert (look.width, look.height) == (150, 128)
    assert look.contrast == pytest.approx(x.std())
    assert look.light == pytest.approx(np.quantile(x, 0.99, method="inverted_cdf"))
    laplacian = np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1) - 4 * x
    assert look.sharpness == pytest.approx(laplacian[1:-1, 1:-1].std() / x.std(), rel=1e-5)
