"""`check` of images in folders named after the classes: the accuracy, its budget, and what chance would give."""

import shutil

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError

LABELS = "--labels red,green,blue"
NET = """\
import torch
from torch import nn


class Colour(nn.Module):
    '''The class is the brightest channel.'''

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.head(x.mean((2, 3)))
"""


@pytest.fixture
def place(cwd):
    """Fifteen images of three colours, five in the folder of each, and weights that name them rightly or not."""
    (cwd / "net.py").write_text(NET)
    for index, colour in enumerate(("red", "green", "blue")):
        (cwd / "val" / colour).mkdir(parents=True)
        for n in range(5):
            pixel = [10 * n] * 3
            pixel[index] = 255
            Image.new("RGB", (32, 32), tuple(pixel)).save(cwd / "val" / colour / f"{n}.png")
    torch.save({"head.weight": torch.eye(3)}, cwd / "right.pth")
    torch.save({"head.weight": torch.eye(3).roll(1, 0)}, cwd / "wrong.pth")
    return cwd


def checked(run, weights, more="", **keywords):
    return run(f"check net.py:Colour val -c {weights}.pth --mean 0 --std 1 --size 32 {more}", **keywords)


@pytest.mark.parametrize(("weights", "n_right"), [("right", 15), ("wrong", 0)])
def test_the_accuracy_is_that_of_predict(run, place, weights, n_right):
    document = checked(run, weights, f"{LABELS} --json").json
    accuracy = document["accuracy"]
    assert (accuracy["images"], accuracy["right"]["value"]) == (15, n_right / 15)
    assert accuracy["chance"] == pytest.approx(1 / 3)
    line = f"predict net.py:Colour val -c {weights}.pth --mean 0 --std 1 --size 32 {LABELS} --truth folders --json"
    assert run(line).json["truth"]["accuracy"] == accuracy["right"]
    # The images have one colour each.
    assert {one["code"] for one in document["findings"]} - {"MS103"} == ({"MS605"} if n_right == 0 else set())
    assert f"{100 * n_right / 15:.1f} % of 15 images (chance 33.3 %)" in checked(run, weights, LABELS).err


@pytest.mark.parametrize(("limit", "weights", "code"), [
    *[("0", "wrong", 0), ("0.01", "wrong", 1), ("1", "right", 0), ("1.01", "right", 2), ("-1", "right", 2)],
])  # fmt: skip
def test_the_budget_decides_the_exit_code(run, place, limit, weights, code):
    outcome = checked(run, weights, f"{LABELS} --min-accuracy={limit} --select MS506 -f github", expect=code)
    assert ("title=MS506" in outcome.out) is (code == 1)
    assert ("accuracy: " in outcome.out) is (code < 2)
    assert ("passed: nothing found; accuracy: " in outcome.out) is (code == 0)


def test_a_format_for_ci_hosts_that_a_command_lacks_names_the_one_that_has_it(run):
    refused = run("predict net.py:Colour val --format github", expect=2).err
    assert "'github' is not a format of this command" in refused
    assert "hint: modelscope check --help   # has --format github, and --min-accuracy" in refused
    assert "one of auto" in run("predict net.py:Colour val --format githab", expect=2).err


def test_without_the_names_of_the_classes_it_says_what_to_type(run, place):
    outcome = checked(run, "wrong", "--json")
    (rule,) = (rule for rule in outcome.json["rules"] if rule["code"] == "MS605")
    # What is in alphabetical order is measured so, but not judged
    assert (rule["judged"], outcome.json["accuracy"]["right"]["value"]) == (False, 1 / 3)
    assert rule["reason"].startswith("assuming classes in alphabetical order")
    assert rule["reason"].endswith("if this is their order: --labels blue,green,red")
    # A budget that cannot be judged is not met; its hint, pasted, judges it.
    refused = checked(run, "right", "--min-accuracy 0.9", expect=4)
    assert "MS506 was not judged" in refused.err
    assert "--min-accuracy 0.9 --labels blue,green,red\n" in refused.err
    (place / "pyproject.toml").write_text("[tool.modelscope]\nmin-accuracy = 0.9\n")
    assert "MS506" in checked(run, "wrong", LABELS, expect=1).out


def test_equal_scores_predict_nothing_and_meet_no_budget(run, place):
    torch.save({"head.weight": torch.zeros(3, 3)}, place / "dead.pth")
    why = "accuracy: not computed, as all scores of an image are equal"
    outcome = checked(run, "dead", f"{LABELS} --min-accuracy 0.3 --select MS506", expect=4)
    assert f"MS506 was not judged: {why}" in outcome.err
    assert why in checked(run, "dead", expect=1).err
    assert why in run("predict net.py:Colour val -c dead.pth --mean 0 --std 1 --size 32").err


def test_what_has_no_accuracy_says_why(run, place):
    (place / "val" / "red").rename(place / "val" / "cyan")
    said = {
        "": "the accuracy is not computed: no label is named cyan (labels: red, green, blue)",
        "-w none": "accuracy of random weights means nothing",
    }
    for option, reason in said.items():
        weights = option or "-c right.pth"
        line = f"check net.py:Colour val {weights} --mean 0 --std 1 --size 32 {LABELS} --min-accuracy 0.5"
        outcome = run(line, expect=4)
        assert reason in outcome.err
        assert f"hint: modelscope {line.removesuffix(' --min-accuracy 0.5')}\n" in outcome.err
    assert "noise has no class: give images" in run("check net.py:Colour --input-shape 2,3,8,8 -w none").err


def test_a_head_with_more_classes_than_folders_has_no_accuracy(run, place):
    shutil.rmtree(place / "val" / "red")
    why = "the accuracy is not computed: the images are in 2 folders, but the model has 3 classes"
    assert why in checked(run, "right").err


class Drawn(nn.Module):
    """Predicts the class that the first pixel of an image says."""

    def __init__(self, n_classes):
        super().__init__()
        self.scores = nn.Parameter(torch.eye(n_classes))

    def forward(self, x):
        return self.scores[x[:, 0, 0, 0].round().long()] + 0 * x.mean()


@pytest.mark.parametrize(("n_classes", "n", "n_right", "judged", "found"), [
    (4, 100, 18, True, True),  # a head with random weights
    (4, 100, 30, True, True),
    (4, 100, 40, True, False),
    (2, 20, 14, False, False),  # 14 of 20 are neither proof of learning nor of its absence
    (2, 2, 2, False, False),
    (2, 400, 200, True, True),
    (10, 30, 30, True, False),
])  # fmt: skip
def test_chance_needs_enough_images(tmp_path, n_classes, n, n_right, judged, found):
    names = [f"class{index}" for index in range(n_classes)]
    for number in range(n):
        truth, said = number % n_classes, (number + (number >= n_right)) % n_classes
        (tmp_path / names[truth]).mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (said, 0, 0)).save(tmp_path / names[truth] / f"{number}.png")
    keywords = {"labels": names, "mean": 0, "std": 1 / 255, "size": 4, "seed": 0}
    try:
        record = ms.check(Drawn(n_classes), tmp_path, select="MS605", **keywords)
    except CannotRunError as error:
        record = error.record
    assert record.accuracy.right.value == n_right / n
    assert (record.rules[0].judged, bool(record.findings)) == (judged, found), record.rules[0].reason


def test_scores_that_are_all_nan_have_no_accuracy(run, place):
    torch.save({"head.weight": torch.full((3, 3), torch.nan)}, place / "nan.pth")
    outcome = checked(run, "nan", f"{LABELS} --json", expect=1)
    assert outcome.json["accuracy"] is None
    (rule,) = (rule for rule in outcome.json["rules"] if rule["code"] == "MS605")
    assert rule["reason"] == "accuracy: not computed, as the scores of all images are NaN"


def test_budgets_that_are_met_are_told_with_their_measure(run):
    line = "check {samples}/tiny_resnet.py:TinyResNet -w none --max-params {} --max-macs 1G --select MS5"
    outcome = run(line.replace("{}", "79770") + " -f brief")
    assert "within budget: 79,770 parameters, 79,770 allowed" in outcome.out
    assert "within budget: 0.0664" not in outcome.out
    assert outcome.out.count("within budget: ") == 2
    broken = run(line.replace("{}", "79769") + " --json", expect=1).json
    assert [one["code"] for one in broken["findings"]] == ["MS501"]
    assert {one["code"] for one in broken["rules"] if one["measured"]} == {"MS502"}
