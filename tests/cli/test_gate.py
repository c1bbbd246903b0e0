"""Ways in which a check could pass wrongly: nothing was judged, or something keeps a finding from counting."""

import json
import math
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError

NET = """import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.relu = nn.ReLU()
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        return self.head(self.relu(self.conv(x)).mean((2, 3)))

class Other(Net):
    pass

class Wider(Net):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(4, 4)

class Constant(Net):
    def forward(self, x):
        return super().forward(x) * 0 + 1

class Log(Net):
    def forward(self, x):
        return super().forward(x) + x.amax((1, 2, 3))[:, None].log()

class Overflow(Net):
    def forward(self, x):
        return super().forward(x) * 1e38 * 1e38

class Zero(Net):
    def forward(self, x):
        return super().forward(x) * 0

class Words(Net):
    def forward(self, x):
        super().forward(x)
        return "words"

class Steep(Net):
    def forward(self, x):
        return super().forward(x).abs().sub(1e-3).clamp_min(0).sqrt() * 0 + 1

class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 8)
        self.relu = nn.ReLU()
    def forward(self, x):
        return self.relu(self.fc(x.flatten(1)) - 9)

class Nothing(nn.Module):
    def forward(self, x):
        return x * 2
"""


def states():
    """Give the weights of a healthy `Net`, and of sick ones."""
    torch.manual_seed(0)
    conv, head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)
    sound = {f"conv.{name}": one for name, one in conv.state_dict().items()}
    sound |= {f"head.{name}": one for name, one in head.state_dict().items()}
    yield "sound", sound
    yield "nan", {**sound, "conv.weight": sound["conv.weight"].index_fill(0, torch.tensor([0]), math.nan)}
    yield "inf", {**sound, "head.bias": torch.full((4,), math.inf)}
    yield "dead", {**sound, "conv.bias": torch.tensor([-99.0] * 6 + [0.0] * 2)}
    yield "half", {**sound, "conv.bias": torch.tensor([-99.0] * 5 + [0.0] * 3)}
    yield "weak", {**sound, "head.weight": sound["head.weight"] * 1e-9}
    yield "other", {name.replace("conv", "stem"): one for name, one in sound.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with networks, weights, images and data sets; the tests run in copies of it."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "net.py").write_text(NET)
    for name, state in states():
        save_file({key: one.contiguous() for key, one in state.items()}, folder / f"{name}.safetensors")
    random = np.random.default_rng(0)
    sets = {"good": (10, ()), "broken": (3, range(3)), "mostly": (10, range(1, 10)), "empty": (0, ())}
    for name, (n, broken) in sets.items():
        (folder / name).mkdir()
        for number in range(n):
            pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
            if number in broken:
                (folder / name / f"{number}.png").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (folder / "black").mkdir()
    for number in range(9):
        pixels = np.full((40, 40, 3), 255 * (number != 5), np.uint8)
        Image.fromarray(pixels).save(folder / "black" / f"{number}.png")
    return folder


@pytest.fixture
def place(made, cwd):
    for file in made.iterdir():
        (cwd / file.name).symlink_to(file)
    return cwd


HALF = "check net.py:Net good -c half.safetensors --fail-on warning --select MS202 --baseline known.json"
DEAD = HALF.replace("half", "dead")  # one channel more is dead
NAN = "check net.py:Net good -c nan.safetensors"
SOUND = "check net.py:Net good -c sound.safetensors"


def toml(text):
    return {"pyproject.toml": text}


def known(*rows, schema="modelscope/baseline/2", **more):
    return {"known.json": json.dumps({"schema": schema, "findings": list(rows), **more})}


def dead(value, **more):
    return known({"code": "MS202", "layer": "relu", "value": value, **more})


SELECTED = '[tool.modelscope]\nselect = ["MS3", "MS6"]\n'
DARK = "check net.py:Log black --mean 0 --std 1 -c sound.safetensors"

CASES = {
    # What is judged says nothing of the model.
    "01": (f"{NAN} --select MS601", {}, 1),
    "02": (NAN, toml(SELECTED), 1),
    "03": (f"{SOUND} --select MS5", {}, 4),
    "04": (f"{NAN} --select MS5 --max-params 1G", {}, 1),
    "05": (f"{NAN} --ignore MS1,MS2", {}, 1),
    "06": ("check net.py:Net good -c inf.safetensors --select MS604", {}, 1),
    "07": ("check net.py:Net good/1.png good/2.png good/3.png -c sound.safetensors --select MS601", {}, 4),
    "08": ("check net.py:Net -c sound.safetensors --input-shape 2,3,40,40 --select MS207", {}, 4),
    "09": ("check net.py:Net good -w none --select MS001,MS002", {}, 4),
    "10": ("check broken --ignore MS801", {}, 4),
    "11": ("check good --select MS804", {}, 4),
    "12": ("check good --select MS805", {}, 4),
    "13": ("check net.py:Net broken -c sound.safetensors", {}, 4),
    "14": ("check net.py:Net mostly -c sound.safetensors", {}, 4),
    "15": ("check net.py:Net empty -c sound.safetensors", {}, 4),
    "16": ("check net.py:Net 'good/*.jpg' -c sound.safetensors", {}, 2),
    # A baseline that excuses everything.
    "17": (DEAD, dead(math.nan), 4),
    "20": (DEAD, dead(None), 1),
    "22": (
        "check net.py:Net good -c weak.safetensors --select MS302 --fail-on warning --baseline known.json",
        known({"code": "MS302", "layer": "conv", "value": -5}),
        4,
    ),
    "23": (DEAD, known({"code": "MS202", "layer": "relu"}), 4),
    "26": (DEAD, known({"code": "MS202", "layer": "relu"}, schema="modelscope/baseline/1"), 4),
    "27": (DEAD, known({"code": "MS202", "layer": "relu", "value": 1}, schema="modelscope/baseline/3"), 4),
    "28": (DEAD, {"known.json": '{"schema": "modelscope/stats/1"}'}, 4),
    "29": (DEAD, known({"code": "MS202", "layer": "relu", "value": 1}, model="Other"), 4),
    "30": (DEAD, known({"code": "MS202", "layer": ["relu"], "value": 1}), 4),
    "31": (
        DEAD,
        known(schema="modelscope/baseline/2") | {"known.json": '{"schema": "modelscope/baseline/2"}'},
        4,
    ),
    "32": (DEAD, {"known.json": ""}, 4),
    # Settings that nobody reads.
    "33": (NAN, toml("[tool.modelscop]\nfail-on = 'warning'"), 2),
    "34": (NAN, toml("[tool.mscope]\nfail-on = 'warning'"), 2),
    "37": (SOUND, toml("[tools.modelscope]\nfail-on = 'warning'"), 2),
    "38": (SOUND, toml("[tool.modelscope_cli]\nfail-on = 'warning'"), 2),
    "40": (SOUND, toml("[tool.modelscope.treshold]\nMS202 = 0.1"), 2),
    # Thresholds that nothing exceeds.
    "41": (f"{SOUND} --set MS202=1e9", {}, 2),
    "43": (SOUND, toml("[tool.modelscope.thresholds]\nMS202 = inf"), 2),
    # Another model, file or machine than was meant.
    "47": ("check net.py:Net good -c other.safetensors", {}, 4),
    "48": ("check net.py:Net good -c lost.safetensors", {}, 4),
    "49": (f"{SOUND} --device cuda:7", {}, 4),
    # Sick in a way that few rules see.
    "51": ("check net.py:Constant good -c sound.safetensors", {}, 1),
    "52": ("check net.py:Overflow good -c sound.safetensors --select MS101", {}, 1),
    "53": (f"{DARK} --select MS601 --batch 2", {}, 1),
    "54": ("check net.py:Words good -c sound.safetensors --select MS602", {}, 4),
    "55": ("check net.py:Zero good -c sound.safetensors --select MS602", {}, 4),
    "56": ("check ssdlite320_mobilenet_v3_large -w none --select MS601", {}, 4),
    "57": ("check good --against broken --select MS804", {}, 4),
    "58": ("check net.py:Dense --input-shape 2,3,2,2 -w none --select MS202", {}, 4),
    "59": ("check net.py:Steep good -c sound.safetensors --select MS302,MS303", {}, 1),
    "60": ("check net.py:Nothing good --select MS202", {}, 4),
}


@pytest.mark.parametrize(("line", "files", "code"), CASES.values(), ids=CASES)
def test_a_check_does_not_pass_wrongly(run, place, line, files, code):
    for name, text in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    outcome = run(line, expect=None)
    assert outcome.code == code, outcome.err


@pytest.mark.parametrize("format", ["table", "tsv", "json", "github", "junit"])
def test_every_format_says_what_was_not_judged_and_why(run, place, format):
    line = f"{SOUND} --select MS101,MS501,MS502 --ignore {{}} --format {format}"
    some, none = run(line.format("MS102")), run(line.format("MS101"), expect=4)
    for outcome, unjudged in ((some, "MS501"), (none, "MS501")):
        said = outcome.out + outcome.err
        assert unjudged in said
        assert "no budget is set" in said
    assert "error: none of the 2 rules was judged: no budget is set" in none.err
    if format == "json":
        assert (some.json["verdict"], none.json["verdict"]) == ("passed", "not judged")
        assert none.json["passed"] is False
    elif format == "junit":
        suite = ET.fromstring(none.out)
        assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "0", "1", "2"]
    else:
        assert "passed: nothing found" in some.out + some.err
        assert "not judged: neither passed nor failed" in none.out + none.err


def test_a_budget_that_is_not_set_is_no_rule_of_the_check_unless_it_is_selected(run, place):
    codes = {rule["code"] for rule in run(f"{SOUND} --json").json["rules"]}
    assert "MS101" in codes
    assert not {"MS501", "MS502", "MS503", "MS504", "MS505"} & codes
    document = run(f"{SOUND} --max-params 1G --json").json
    assert {rule["code"] for rule in document["rules"]} - codes == {"MS501"}
    assert all(rule["judged"] for rule in document["rules"] if rule["code"] == "MS501")


def test_from_python_the_error_has_the_record(place):
    with pytest.raises(CannotRunError, match="MS501 was not judged: no budget is set") as caught:
        ms.check("net.py:Net", input_shape="1,3,40,40", weights="none", select="MS501")
    assert caught.value.record.unjudged[0].code == "MS501"
    with pytest.raises(AssertionError, match="not judged: neither passed nor failed"):
        caught.value.record.assert_passed()


@pytest.mark.parametrize(
    "line",
    [
        "check resnet18",
        "check resnet18 --select MS1",
        "diff resnet18 resnet18 --b-dtype bfloat16",
        "diff net.py:Net resnet18",
        "predict resnet18 {samples}/shapes --truth folders",
        "explain resnet18 {star} --require passed --no-save",
    ],
)
def test_no_verdict_is_given_on_random_weights_in_place_of_those_that_could_not_be_had(refused, place, line):
    message, hint = refused(line, 4)
    assert message == "error: weights 'IMAGENET1K_V1' are not available: offline and not in the cache"
    assert " --weights none   # or put resnet18-" in hint


def test_random_weights_that_were_asked_for_are_judged(run):
    assert run("check squeezenet1_1 --weights none --select MS1").out
    assert run("diff squeezenet1_1 squeezenet1_1 --weights none --columns name").code == 0


FAILURES = {
    "github": lambda text: [line[8:] for line in text.splitlines() if line.startswith("::error ")],
    "sarif": lambda text: [
        one["message"]["text"]
        for run in json.loads(text)["runs"]
        for invocation in run["invocations"]
        if not invocation["executionSuccessful"]
        for one in invocation["toolExecutionNotifications"]
        if one["level"] == "error"
    ],
    "gitlab": lambda text: [one["description"] for one in json.loads(text) if one["severity"] == "blocker"],
    "junit": lambda text: [one.get("message") for one in ET.fromstring(text.encode()).iter("error")],
}


@pytest.mark.parametrize("format", FAILURES)
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("check resnet18 {how}", 4, "weights 'IMAGENET1K_V1' are not available"),
        ("check net.py:Net missing.png {how}", 4, "missing.png"),
        ("check net.py:Nope {how}", 2, "Nope"),
        ("check net.py:Net --select MS501 {how}", 4, "MS501 was not judged: no budget is set"),
        ("check net.py:Net --set MS999=1 {how}", 2, "MS999"),
        ("weights --scan missing {how}", 4, "missing"),
        ("weights --scan broken.pt {how}", 4, "broken.pt"),
        ("watch {how} missing.py", 2, "missing.py"),
    ],
)
def test_the_error_that_ends_a_command_is_in_the_formats_for_ci(run, place, format, line, code, said):
    if format == "junit" and not line.startswith("check"):
        format = "gitlab"
    (place / "broken.pt").write_bytes(b"\x80\x02cos\n")
    (one,) = FAILURES[format](run(line, expect=None, how=f"--format {format}").out)
    assert said in one
    if "broken.pt" in line and format == "gitlab":
        assert (
            json.loads(run(line, expect=None, how="--format gitlab").out)[-1]["location"]["path"]
            == "broken.pt"
        )
    file = place / "of.ci"
    outcome = run(line, expect=code, how=f"--format {format} --output {file}")
    (written,) = FAILURES[format](file.read_text())
    assert written.partition("modelscope ")[0] == one.partition("modelscope ")[0]  # up to the corrected line
    assert outcome.out == ""
