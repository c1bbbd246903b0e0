"""Which images fire a channel, against a full sort of everything; and what each place sees, against the pixels."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
from PIL import Image
from tolerance import A_LAYER, close
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.top_images.observer import Ranking
from modelscope_cli.errors import CannotRunError, UsageError


def ranked(values, places, k, sizes, order=None):
    """Rank the rows of `(N, C)` in batches of these sizes, merged in this order."""
    numbers = list(range(len(values)))
    starts = [0, *itertools.accumulate(sizes)]
    parts = [Ranking.of(k, numbers[a:b], values[a:b], places[a:b]) for a, b in itertools.pairwise(starts)]
    parts = [parts[i] for i in order] if order else parts
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole


def by_hand(values, k, *, is_descending):
    """Sort each channel by value and then by the number of the image, with NumPy; NaN is minus infinity."""
    clean = np.where(np.isnan(values), -np.inf, values)
    sign = -1 if is_descending else 1
    return np.stack([np.lexsort((np.arange(len(clean)), sign * c))[:k] for c in clean.T], 1)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-5, 5, (103, 7), generator=generator).float()  # many are equal
    values[3, 1], values[5, 1], values[:, 6] = torch.nan, torch.inf, 0.0
    return values, torch.randint(0, 50, (103, 7), generator=generator)


@pytest.mark.parametrize("sizes", [[103], [1] * 103, [8] * 12 + [7], [50, 3, 50]])
def test_the_ends_are_those_of_a_full_sort_whatever_the_batches(data, sizes):
    values, places = data
    found = ranked(values, places, 9, sizes)
    for ends, is_descending in ((found.most, True), (found.least, False)):
        order = by_hand(values.numpy(), 9, is_descending=is_descending)
        assert ends.images.numpy().tolist() == order.tolist()
        assert ends.places.tolist() == places.gather(0, ends.images).tolist()
        assert torch.equal(
            ends.values, values.nan_to_num(nan=-torch.inf, posinf=torch.inf).gather(0, ends.images)
        )
    assert found.n_nan.tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert found.n_images == 103


def test_any_order_of_merging_gives_the_same(data):
    whole = ranked(*data, 5, [103])
    order = list(range(21))
    for seed in range(5):
        random.Random(seed).shuffle(order)
        other = ranked(*data, 5, [5] * 20 + [3], order)
        assert other.n_images == whole.n_images
        assert torch.equal(other.n_nan, whole.n_nan)
        for part, column in itertools.product(("most", "least"), ("values", "images", "places")):
            one, same = (getattr(getattr(each, part), column) for each in (other, whole))
            assert torch.equal(one, same), (part, column)


class Edges(nn.Module):
    """A channel for steps to the right, one for steps down, a dead one, and a bright one."""

    def __init__(self):
        super().__init__()
        self.edges = nn.Conv2d(3, 4, 3, padding=1)
        step = torch.tensor([[-1.0, 0.0, 1.0]] * 3)
        with torch.no_grad():
            self.edges.bias.zero_()
            self.edges.weight.copy_(
                torch.stack([step, step.T, -torch.ones(3, 3), torch.ones(3, 3)])[:, None] / 9
            )
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.edges(x))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Noise of many strengths; number 7 holds a bright square at a known place, and 4 and 9 are equal."""
    where = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for n in range(23):
        pixels = generator.integers(0, 5 + 8 * n % 97, (24, 20, 3))
        if n == 7:
            pixels[10:14, 6:9] = 255
        if n == 9:
            pixels = np.asarray(Image.open(where / "04.png"))
        Image.fromarray(pixels.astype(np.uint8)).save(where / f"{n:02d}.png")
    return where


LOOKED = {"layer": "edges", "size": (24, 20), "mean": 0, "std": 1}


def outputs(folder, model):
    files = sorted(folder.iterdir())
    images = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    with torch.no_grad():
        return files, model.edges(images.permute(0, 3, 1, 2).float() / 255)


@pytest.mark.parametrize("batch", [1, 3, 8, 23])
def test_a_folder_is_ranked_as_by_hand(folder, batch):
    model = Edges().eval()
    record = ms.featuremaps(model, folder, top_images=4, batch=batch, **LOOKED)
    files, output = outputs(folder, model)
    largest = output.flatten(2).amax(2)
    assert (record.top_images, record.images) == (4, 23)
    for row in record.channels:
        values = largest[:, row.channel].numpy()
        assert row.best == close(values.max(), A_LAYER)
        if row.channel == 2:
            assert "never active" in row.problem
            assert row.most == row.least == ()
            continue
        assert [one.value for one in row.most] == close(sorted(values, reverse=True)[:4], A_LAYER)
        assert [one.value for one in row.least] == close(sorted(values)[:4], A_LAYER)
        for _, group in row.groups:
            for one in group:
                image = files.index(type(folder)(one.image))
                assert one.value == close(output[image, row.channel][one.place].item(), A_LAYER)
    bright = record.channels[3].most[0]
    assert type(folder)(bright.image).name == "07.png"
    (y, x), (left, top, right, bottom) = bright.place, bright.box
    assert 11 <= y <= 12  # where the square fills the kernel
    assert x == 7
    assert (left, top, right, bottom) == (x - 1, y - 1, x + 2, y + 2)


class Spot(nn.Module):
    """Above 0 only for the bright square of `07.png`."""

    def __init__(self):
        super().__init__()
        self.edges = nn.Sequential(Edges().edges, nn.Threshold(2.9, 0))

    def forward(self, x):
        return self.edges(x)


@pytest.mark.parametrize("k", [1, 4])
def test_images_that_do_not_activate_a_channel_are_left_out(folder, k):
    record = ms.featuremaps(Spot(), folder, top_images=k, **LOOKED)
    row = record["edges[3]"]
    assert [one.image[-6:] for one in row.most] == ["07.png"]
    assert (row.active_images, row.least, row.groups[1][0]) == (1, (), "weakest: tied, not shown")
    assert record.maps[0].note.endswith("1 channel drawn without the images that do not activate them")


def test_sheets_and_record_are_written(folder, tmp_path):
    record = ms.featuremaps(Edges(), folder, top_images=4, **LOOKED).save(tmp_path / "out")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == [record.maps[0].file, "report.html", "report.json"]
    with Image.open(tmp_path / "out" / record.maps[0].file) as sheet:
        assert sheet.size[0] > 600
        assert len(sheet.convert("RGB").getcolors(1 << 24)) > 100
    assert [row.file is None for row in record.channels] == [False, False, True, False]
    assert record.maps[0].shown == (0, 1, 3)
    assert record.maps[0].note == "receptive field 3 x 3 pixels; 1 channel of 4 never above 0: 2"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["channels"][0]["most"][0]["box"]
    assert record["edges[1]"].channel == 1
    again = record.save(tmp_path / "again")  # it reads the images once more
    sheets = [(tmp_path / name / record.maps[0].file).read_bytes() for name in ("out", "again")]
    assert sheets[0] == sheets[1]
    assert again.maps == record.maps
    with pytest.raises(UsageError, match="does not end in one of"):
        record.save(tmp_path / "maps.safetensors")
    read = ms.read(tmp_path / "out").save(tmp_path / "read")  # without the images, there are no sheets
    assert [row.file for row in (*read.maps, *read.channels)] == [None] * 5
    assert sorted(path.name for path in (tmp_path / "read").iterdir()) == ["report.html", "report.json"]


def test_the_crop_is_what_the_place_sees(folder):
    from modelscope_cli.analysis.top_images.find import _cut
    from modelscope_cli.report.featuremaps.figures import SIDE, fitted

    picture = torch.arange(3 * 24 * 20).view(3, 24, 20).remainder(251).to(torch.uint8)
    crop = _cut(picture, (5, 7, 8, 10))
    assert torch.equal(crop, picture[:, 7:10, 5:8])
    assert _cut(picture, (20, 24, 0, 0)).shape == (3, 1, 1)  # what sees padding alone
    drawn, step = fitted(crop), SIDE // 3
    assert drawn.size == (SIDE, SIDE)
    middles = np.asarray(drawn)[step // 2 :: step, step // 2 :: step]
    assert np.array_equal(middles, crop.permute(1, 2, 0).numpy())


def test_a_channel_that_is_nan_ranks_last_and_is_said(folder):
    class Broken(Edges):
        def forward(self, x):
            y = self.edges(x)
            y[x.amax((1, 2, 3)) == 1.0, 0] = torch.nan  # the image with the white square
            return self.relu(y)

    record = ms.featuremaps(Broken(), folder, top_images=3, **{**LOOKED, "layer": "relu"})
    row = record.channels[0]
    assert row.nan_images == 1
    assert row.least[0].value == -np.inf
    assert row.least[0].image.endswith("07.png")


def test_what_means_nothing_is_refused(folder):
    model = Edges()
    for keywords, words in [
        ({"overlay": True}, "'overlay'"),
        ({"attention": True}, "'attention'"),
        ({"scale": "layer"}, "scale="),
    ]:
        with pytest.raises(UsageError, match=words):
            ms.featuremaps(model, folder, top_images=2, **keywords, **LOOKED)
    with pytest.raises(UsageError, match="at most 25"):
        ms.featuremaps(model, folder, top_images=26, **LOOKED)
    with pytest.raises(UsageError, match="needs images"):
        ms.featuremaps(model, torch.rand(4, 3, 24, 20), top_images=2, layer="edges")
    with pytest.raises(UsageError, match="one image at a time"):
        ms.featuremaps(model, folder, **LOOKED)
    with pytest.raises(CannotRunError, match="not the images"):
        ms.featuremaps(Flattened(), folder, top_images=2, **{**LOOKED, "layer": "mix"})


class Flattened(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        return self.mix(torch.cat([x, x]))


def test_the_model_is_left_as_it_was(folder):
    model = Edges().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ms.featuremaps(model, folder, top_images=2, **LOOKED)
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
