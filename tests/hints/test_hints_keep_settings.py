"""What to run next keeps the settings: the entry of a file, how a model is built, images and their size."""

import copy
import re
import shlex
import warnings

import pytest
import torch
from PIL import Image

from modelscope_cli.shell.app import run

MODELS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width, k=5):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Linear(width, k)
    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))

class Other(nn.Module):
    def __init__(self, width, k=5):
        super().__init__()
        self.c1, self.head = nn.Conv2d(3, width, 5), nn.Linear(width, k)
    def forward(self, x):
        return self.head(self.c1(x).relu().mean((2, 3)))
"""
BUILT = "--model-arg width=8"
NET, BOTH = f"net.py:Net dot.png {BUILT}", f"net.py:Net net.py:Other dot.png {BUILT}"
# A line, and what the command printed below it has to hold
LINES = [
    ("diff two.pth --key model", "weights two.pth --key model"),
    (f"diff {NET} -c two.pth --key model --b-key ema", "diff two.pth two.pth --key model --b-key ema"),
    (f"diff net.py:Net script.pt dot.png {BUILT}", f"diff net.py:Net script.pt {BUILT}"),
    (f"predict {NET} -c other.pth --key ema", "weights other.pth --key ema"),
    ("stats net.py:Net dot.png --model-arg width=9 -c two.pth --key ema", "weights two.pth --key ema"),
    (f"stats {BOTH} --size 16", f"diff {BOTH} --size 16"),
    (f"diff net.py:Net two.pth other.pth --key ema {BUILT}", "diff two.pth other.pth --key ema"),
]
HELD_OUT = [
    (f"explain {BOTH} --size 9", f"diff {BOTH} --size 9"),
    (f"grads {NET} -c other.pth --key ema --no-save", "weights other.pth --key ema"),
    (f"diff {NET} -c two.pth --key ema --b-key model", "diff two.pth two.pth --key ema --b-key model"),
    (f"explain {NET} -c other.pth --key model --method saliency", "weights other.pth --key model"),
    (f"ablate {NET} -c two.pth --key emma", f"ablate {NET} -c two.pth --key ema"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "net.py").write_text(MODELS)
    names: dict = {}
    exec(MODELS, names)
    torch.manual_seed(0)
    net = names["Net"](8)
    average = copy.deepcopy(net)
    with torch.no_grad():
        for one in average.parameters():
            one.mul_(1.1)
    torch.save({"model": net.state_dict(), "ema": average.state_dict(), "epoch": 1}, folder / "two.pth")
    other = names["Other"](8).state_dict()
    torch.save({"model": other, "ema": other}, folder / "other.pth")
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        torch.jit.trace(net.eval(), torch.zeros(1, 3, 16, 16)).save(folder / "script.pt")
    Image.effect_noise((16, 16), 60).convert("RGB").save(folder / "dot.png")
    return folder


@pytest.mark.parametrize(("line", "kept"), LINES + HELD_OUT)
def test_a_command_to_run_next_keeps_the_settings_and_runs(line, kept, made, monkeypatch, capfd):
    monkeypatch.chdir(made)
    monkeypatch.setattr("modelscope_cli.shell.hints._LONGEST", 1000)
    assert run(shlex.split(line)) in (1, 2, 4)
    said = " ".join("".join(capfd.readouterr()).split())
    printed = [
        part for part in re.findall(r"modelscope ((?:(?!# | or | compares ).)+)", said) if kept in part
    ]
    assert printed, said
    assert run(shlex.split(printed[0])) in (0, 1), capfd.readouterr().err
