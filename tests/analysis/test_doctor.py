"""The doctor against predictions made by hand, and models whose right preparation is known."""

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tolerance import A_NETWORK, close
from torch import Tensor, nn
from torchvision.models import SqueezeNet1_1_Weights

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.predict import DoctorRecord
from modelscope_cli.records.progress import SILENT
from samples.dataset import CLASSES, Shapes

SAMPLES = Path(__file__).parents[2] / "samples"
CHECKPOINT = SAMPLES / "shapes_squeezenet1_1.safetensors"
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def squeezenet() -> LoadedModel:
    return ms.load("squeezenet1_1", checkpoint=CHECKPOINT, device="cpu")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a class, as a data set lies on a disk: images it was not trained on, not square."""
    folder = tmp_path_factory.mktemp("shapes")
    for n, (image, label) in enumerate(Shapes(7, seed=9, size=224)):
        (folder / CLASSES[label]).mkdir(exist_ok=True)
        image.resize((250, 224)).save(folder / CLASSES[label] / f"{n}.png")
    return folder


def diagnosed(model: Any, shapes: Path, **keywords: Any) -> DoctorRecord:
    return ms.doctor(model, str(shapes / "*/*.png"), **keywords)


@pytest.fixture(scope="module")
def record(squeezenet: LoadedModel, shapes: Path) -> DoctorRecord:
    return diagnosed(squeezenet, shapes, batch=3)


def logits_of(module: nn.Module, files: list[Path], transform: Any) -> Tensor:
    images = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
    with torch.no_grad():
        return module.eval()(images).double()


def test_its_numbers_are_those_of_predictions_made_by_hand(
    record: DoctorRecord, squeezenet: LoadedModel, shapes: Path
) -> None:
    files = sorted(shapes.glob("*/*.png"))
    meant = SqueezeNet1_1_Weights.IMAGENET1K_V1.transforms()
    before = logits_of(squeezenet.module, files, meant)
    other = copy.deepcopy(meant)
    other.mean, other.std = [0.5] * 3, [0.5] * 3
    after = logits_of(squeezenet.module, files, other)
    p, q = before.softmax(1), after.softmax(1)
    at = before.argmax(1)[:, None]
    truth = torch.tensor([CLASSES.index(file.parent.name) for file in files])
    row = record["-1..1"]
    assert record.images == row.affected == 7
    assert row.changed == int((before.argmax(1) != after.argmax(1)).sum()) > 0
    assert row.probability_change == close((p - q).gather(1, at).abs().mean().item(), A_NETWORK, scale=1)
    assert row.kl_divergence == close((p * (p / q).log()).sum(1).mean().item(), A_NETWORK, scale=10)
    assert row.accuracy == (after.argmax(1) == truth).double().mean().item()


def test_the_worst_comes_first_and_what_is_meant_last(record: DoctorRecord) -> None:
    rows = record.variations
    damage = [(row.changed, row.kl_divergence) for row in rows]
    assert damage == sorted(damage, reverse=True)
    assert rows[-1].name == "reference"
    assert (rows[-1].changed, rows[-1].kl_divergence, rows[-1].affected) == (0, 0.0, 0)
    assert next(row for row in rows if row.name == "EXIF ignored").affected == 0


class Hues(nn.Module):
    """Says which of red, green, blue an image has most of, given these as 0..1 in this order, or in `order`."""

    def __init__(self, order: tuple[int, int, int] = (0, 1, 2)) -> None:
        super().__init__()
        self.order = list(order)

    def forward(self, x: Tensor) -> Tensor:
        return 20 * x.mean((2, 3))[:, self.order]


@pytest.fixture(scope="module")
def hues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hues")
    generator = torch.manual_seed(0)
    for n in range(9):
        name = ("red", "green", "blue")[n % 3]
        noise = torch.randint(0, 120, (40, 50, 3), generator=generator)
        noise[:, :, n % 3] += 100
        (folder / name).mkdir(exist_ok=True)
        Image.fromarray(noise.byte().numpy()).save(folder / name / f"{n}.png")
    return folder


def test_a_network_for_blue_green_red_is_known_by_its_accuracy(hues: Path) -> None:
    for order, best in [((2, 1, 0), "BGR"), ((0, 1, 2), "reference")]:
        record = ms.doctor(
            Hues(order), str(hues / "*/*.png"), labels=("red", "green", "blue"), mean=0, std=1, size=32
        )
        assert record[best].accuracy == 1
    assert record["BGR"].accuracy == pytest.approx(1 / 3)
    assert record["BGR"].changed == 6


class Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).relu().mean((2, 3)))


class Brittle(nn.Module):
    """Gives NaN for values above 100."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.mean((2, 3)) > 100, math.nan, x.mean((2, 3)))


def test_what_gives_nan_in_a_variation_is_the_worst(hues: Path) -> None:
    record = ms.doctor(Brittle(), str(hues / "*/*.png"), size=32)
    worst = [row for row in record if math.isnan(row.kl_divergence)]
    assert {row.name for row in worst} == {"0..255", "0..255, then normalised"}
    assert record.variations[: len(worst)] == tuple(worst)
    assert all(row.changed == 9 for row in worst)
    with pytest.raises(CannotRunError, match="logits are NaN or infinite"):
        ms.doctor(Brittle(), str(hues / "*/*.png"), size=32, mean=-200.0)


def test_what_is_not_a_classifier_of_images_is_refused(shapes: Path) -> None:
    with pytest.raises(UsageError, match="noise is not preprocessed"):
        ms.doctor(Averaged())
    with pytest.raises(UsageError, match="'x' is a named input"):
        ms.doctor(Averaged(), {"x": torch.rand(1, 3, 8, 8)})
    with pytest.raises(UsageError, match="not preprocessed"):
        ms.doctor(Averaged(), torch.rand(1, 3, 8, 8))
    with pytest.raises(CannotRunError, match="it is not a classifier"):
        diagnosed(nn.Conv2d(3, 2, 3), shapes)
    with pytest.raises(CannotRunError, match="'detection' is not a classifier"):
        diagnosed(ms.load("ssdlite320_mobilenet_v3_large", weights="none"), shapes)
    with pytest.raises(CannotRunError, match="3 labels, but the model has 4 classes"):
        diagnosed(Averaged().eval(), shapes, labels=("a", "b", "c"))


class OfOneSize(nn.Module):
    """A classifier by the position of the brightest column, which runs on images of some sizes only."""

    def __init__(self, *sides: int) -> None:
        super().__init__()
        self.sides = sides

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] not in self.sides:
            raise ValueError(f"not {x.shape[-1]} pixels")
        return 20 * x.mean((1, 2)).unflatten(1, (4, -1)).mean(-1)


@pytest.fixture(params=[(40, 40), (56, 40), (40, 72)])
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Images of this width and height."""
    for n in range(4):
        pixels = torch.rand(*request.param[::-1], 3, generator=torch.manual_seed(n)) * 255
        Image.fromarray(pixels.byte().numpy()).save(tmp_path / f"{n}.png")
    return tmp_path


@pytest.mark.parametrize(("sides", "tried"), [((224, 40), True), ((224,), False)])
def test_the_images_are_tried_at_their_own_size(small: Path, sides: tuple[int, ...], tried: bool) -> None:
    model = OfOneSize(*sides)
    record = ms.doctor(model, str(small))
    assert ("--size 40" in [row.name for row in record.variations]) == tried
    if tried:  # as many changed as predictions with that option differ
        before, after = (ms.predict(model, str(small), size=size) for size in (None, 40))
        pairs = zip(before.predictions, after.predictions, strict=True)
        assert record["--size 40"].changed == sum(a.top[0].index != b.top[0].index for a, b in pairs)


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(SILENT, name)


@pytest.mark.parametrize(
    ("sides", "size", "advice"),
    [
        ((224, 40), None, "trained on that size, give --size 40"),
        ((224,), None, "does not run at that size"),
        ((40,), 40, None),
    ],
)
def test_enlarged_images_are_told_once(
    small: Path, sides: tuple[int, ...], size: int | None, advice: str | None
) -> None:
    notes = Notes()
    ms.predict(OfOneSize(*sides), str(small), size=size, batch=2, progress=notes)
    told = [note for note in notes.notes if "enlarged" in note]
    assert len(told) == (advice is not None)
    if advice is not None:
        assert f"enlarged {256 / 40:.1f}x" in told[0]
        assert advice in told[0]


def test_small_images_among_larger_ones_are_told(tmp_path: Path) -> None:
    for name, side in (("a", 300), ("b", 20), ("c", 300), ("d", 40)):
        Image.new("RGB", (side, side)).save(tmp_path / f"{name}.png")
    notes = Notes()
    ms.predict(OfOneSize(224), str(tmp_path), batch=4, progress=notes)
    assert [note for note in notes.notes if "enlarged" in note] == [
        "enlarged more than 2x: 2 of the first 4 images, one of 20 x 20 pixels 12.8x"
    ]


@pytest.mark.parametrize("width", [128, 160, 300])
def test_images_of_at_least_half_the_size_are_not_told(tmp_path: Path, width: int) -> None:
    Image.new("RGB", (width, 128)).save(tmp_path / "a.png")
    notes = Notes()
    ms.predict(OfOneSize(224, 128), str(tmp_path / "a.png"), progress=notes)
    assert not [note for note in notes.notes if "enlarged" in note]


@pytest.mark.parametrize(
    "beside",
    [
        {"args": argparse.Namespace(img_size=64, lr=0.1)},
        {"hyper_parameters": {"image_size": [64, 64]}},
        {"input_size": (3, 64, 64)},
        {"config": {"data": 1, "args": {"crop_size": "64"}}},
    ],
)
def test_the_size_that_a_checkpoint_states_is_tried_and_told(
    tmp_path: Path, hues: Path, beside: dict[str, Any]
) -> None:
    file = tmp_path / "trained.pt"
    net = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
    torch.save({"state_dict": ms.load(net, weights="none").module.state_dict(), **beside}, file)
    model = ms.load(net, checkpoint=file)
    assert model.image_size == 64
    rows = {row.name: row.what for row in ms.doctor(model, str(hues / "*/*.png")).variations}
    assert "trained on" in rows["--size 64"]
    assert "of the images" in rows["--size 40"]
    notes = Notes()
    ms.predict(model, str(hues / "*/*.png"), progress=notes)
    assert [note for note in notes.notes if "--size" in note] == [
        "the checkpoint was trained on images of 64 pixels: give --size 64"
    ]


@pytest.mark.parametrize("beside", [{"img_size": (64, 96)}, {"args": {"size": 64}}, {"input_size": "large"}])
def test_a_size_that_is_not_one_side_is_not_taken(tmp_path: Path, beside: dict[str, Any]) -> None:
    file = tmp_path / "trained.pt"
    net = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
    torch.save({"state_dict": ms.load(net, weights="none").module.state_dict(), **beside}, file)
    assert ms.load(net, checkpoint=file).image_size is None
