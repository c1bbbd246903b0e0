"""What the commands say of small nets whose answer is known without running them."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import modelscope_cli as ms
from modelscope_cli.report.registry import view_of
from modelscope_cli.training.data import DrawnImages

NETS = """
import torch
from torch import nn

class Gray(nn.Sequential):
    def __init__(self, n_classes: int = 10):
        super().__init__(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, n_classes))

class Deaf(nn.Module):  # whatever comes before its last layer is multiplied by 0
    pretrained_cfg = {"input_size": (3, 16, 16)}
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(4, 2)
        nn.init.zeros_(self.head.weight)
    def forward(self, x):
        return self.head(self.pool(self.pool(self.norm(self.conv(x)))).mean((2, 3)))

class Sure(nn.Conv2d):  # of the first class, with a probability above 0.9999
    pretrained_cfg = {"input_size": (3, 16, 16)}
    def __init__(self):
        super().__init__(3, 2, 1)
        nn.init.zeros_(self.weight)
        self.bias.data = torch.tensor([12.0, 0.0])
    def forward(self, x):
        return super().forward(x).mean((2, 3))

class Scaled(nn.Sequential):  # each layer multiplies by `factor`, and the last one adds a bias
    pretrained_cfg = {"input_size": (3, 16, 16)}
    def __init__(self, factor: float = 1.0):
        layers = [nn.Conv2d(3, 3, 1, bias=n == 4) for n in range(5)]
        for layer in layers:
            layer.weight.data = factor * torch.eye(3)[:, :, None, None]
        super().__init__(*layers)

class Light(nn.Module):  # the second class if the image is light
    pretrained_cfg = {"input_size": (3, 16, 16)}
    def forward(self, x):
        light = x.mean((1, 2, 3))
        return torch.stack([-light, light], 1)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(NETS)
    for name in ("a/1.png", "b/2.png", "b/3.png"):
        (tmp_path / "few" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((16, 16), 60).convert("RGB").save(tmp_path / "few" / name)
    monkeypatch.chdir(tmp_path)


def test_shapes_are_drawn_gray_for_a_net_with_one_input_channel(run, nets):
    assert (
        "4 steps of 8 images"
        in run("train -m nets.py:Gray --pictures 40 --size 16 --steps 4 -b 8 -f table").out
    )
    gray, coloured = DrawnImages(10, 0, 16), DrawnImages(10, 0, 16)
    gray.is_gray = True
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    image = coloured[3][0] * std[:, None, None] + mean[:, None, None]
    torch.testing.assert_close(gray[3][0], (image.mean(0, keepdim=True) - mean.mean()) / std.mean())


@pytest.mark.parametrize("command", ["train", "lrfind"])
def test_a_folder_is_read_as_gray_for_a_net_with_one_input_channel(run, nets, command):
    result = run(f"{command} -m nets.py:Gray few --size 16 --steps 4 -b 2 --format json")
    assert json.loads(result.out)["input"]["shape"] == [[2, 1, 16, 16]]


def test_the_batch_of_a_loader_is_its_own(run, nets):
    Path("loader.py").write_text(
        "import torch\nbatches = [(torch.randn(6, 1, 16, 16), torch.tensor([0, 1] * 3))] * 2\n"
    )
    assert (
        "4 steps of 6 images"
        in run("train -m nets.py:Gray --loaders loader.py:batches --steps 4 -f table").out
    )


def test_num_classes_is_passed_by_the_name_that_the_constructor_has(run, nets):
    assert "1x7" in run("summary nets.py:Gray --num-classes 7 --input-shape 1,1,16,16 -f table").out


def test_layers_that_matter_equally_are_told(run, nets):
    said = run("ablate nets.py:Deaf few/a/1.png --layer norm --layer conv --no-save -f table").out
    assert "0 of 2 layers change the prediction when set to zero; all change the output equally" in said
    assert "equally" not in run("ablate nets.py:Deaf few/a/1.png --no-save -f table").out


def test_operators_without_a_formula_are_named_in_plain_words(run, nets):
    said = run("summary nets.py:Deaf -f table").out
    assert "batch norm x1" in said
    assert "legit" not in said
    assert "shared" not in said  # the second call of a pool shares nothing


def draw(folder, n):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n):
        Image.effect_noise((16, 16), 60).convert("RGB").save(folder / f"{number}.png")


def test_labels_that_a_sure_model_contradicts_are_counted_if_it_is_mostly_right(run, nets, tmp_path):
    words = "2 images: another class has a score above 99.9 %"
    draw(tmp_path / "most" / "a", 12)
    draw(tmp_path / "most" / "b", 2)
    assert words in run("predict nets.py:Sure most --truth folders --labels a,b -f table").out
    assert "sure of" not in run("predict nets.py:Sure few --truth folders --labels a,b -f table").out
    assert "sure of" not in run("predict nets.py:Sure most/a --labels a,b -f table").out


def test_if_all_images_are_right_a_row_is_a_class(run, nets, tmp_path):
    for name, gray in (("dark", 10), ("light", 240)):
        (tmp_path / "right" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (16, 16), (gray + number,) * 3).save(tmp_path / "right" / name / f"{number}.png")
    said = run("predict nets.py:Light right --labels dark,light -f table").out
    assert "100.0 % of 6 images" in said
    assert ".png" not in said
    assert ".png" in run("predict nets.py:Light right --labels dark,light --top 1 -f table").out


def test_the_verdict_on_preprocessings_is_said(run, nets):
    assert "do as well" in run("predict nets.py:Sure few --labels a,b --doctor -f table").out
    assert "None of" in run("predict nets.py:Sure few --doctor -f table").out


def test_that_drops_from_chance_say_little_is_said(run, nets, tmp_path):
    chance = "not above chance for 2 classes"
    assert chance in run("ablate nets.py:Sure few --labels a,b --no-save -f table").out
    draw(tmp_path / "most" / "a", 12)
    assert chance not in run("ablate nets.py:Sure most --labels a,b --no-save -f table").out


def test_a_mean_for_pixels_of_0_to_255_is_told(run, nets):
    told = "divide values meant for 0..255 by 255"
    assert told in run("stats nets.py:Deaf few/a/1.png --mean 127.5 --std 50").err
    assert told not in run("stats nets.py:Deaf few/a/1.png --mean 0.5 --std 0.2").err


@pytest.mark.parametrize(("factor", "said"), [
    (0.03, "the standard deviation falls from # (0) to # (3), #x"),
    (10.0, "the standard deviation grows from # (0) to # (4), #x"),
    (1.0, ""),
])  # fmt: skip
def test_where_signals_shrink_or_grow_a_thousand_times(run, nets, factor, said):
    printed = run(f"stats nets.py:Scaled few/a/1.png --model-arg factor={factor} -f table").out
    facts = [line.partition("  ")[2].strip() for line in printed.splitlines() if line.startswith("scale")]
    assert [re.sub(r"(?<![(\w])[\d.]+(e[+-]\d+)?", "#", fact) for fact in facts] == [said] * bool(said)


def test_values_of_the_input_that_are_not_finite_are_the_first():
    x = torch.ones(1, 3, 8, 8)
    x[0, 0, 0, 0] = torch.nan
    record = ms.stats(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU()), x)
    assert dict(view_of(record).sheet(record).facts)["NaN or infinite"] == "1 value of the input; in 2 layers"


@pytest.mark.parametrize("first", [0, 3, 8])
def test_the_scale_ends_at_the_smallest_deviation_of_the_compared_layers(first):
    torch.manual_seed(first)
    layers = [torch.nn.Linear(6, 6, bias=False) for _ in range(16)]
    for layer in layers:
        torch.nn.init.normal_(layer.weight, std=0.01)
    x = torch.randn(4, 6)
    record = ms.stats(torch.nn.Sequential(*layers), x, layer=[str(n) for n in range(first, 16)])
    values = x.double()
    for layer in layers:
        values = values @ layer.weight.detach().double().T
    fact = dict(view_of(record).sheet(record).facts)["scale"]
    assert float(re.search(r"to ([\d.e+-]+) \(15\)", fact)[1]) == pytest.approx(
        float(values.std(correction=0)), rel=1e-3
    )


@pytest.mark.parametrize(("n", "batch", "is_told"), [(1, 8, False), (3, 8, True), (9, 8, True), (4, 2, True)])
def test_stats_tells_of_a_signal_that_vanishes(n, batch, is_told):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 6) for _ in range(5)]
    for layer in layers:
        torch.nn.init.normal_(layer.weight, std=1e-3)
    x = torch.randn(n, 6)
    for model, said in ((torch.nn.Sequential(*layers), is_told), (torch.nn.Sequential(*layers[:1]), False)):
        codes = [one.code for one in ms.stats(model, x, batch=batch).run.warnings]
        assert ("same_for_all_images" in codes) == said


@pytest.mark.parametrize(
    ("n", "said"), [(1, "in this image"), (2, "in these 2 images"), (100, "in all images")]
)
def test_dead_channels_of_few_images_are_counted_and_not_judged(n, said):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    torch.nn.init.constant_(model[0].bias, 9)
    model[0].bias.data[1] = -99
    record = ms.stats(model, torch.randn(n, 3, 5, 5))
    fact = dict(view_of(record).sheet(record).facts)["dead channels"]
    assert re.match(f"1.* zero .*{said}.*, most in 1 .1 of 4.", fact)
    assert ("give 100 images" in fact) == (n < 100)
