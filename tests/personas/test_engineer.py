"""The engineer: a training does not learn, and the first answer has to name the reason."""

import json

import pytest

# A script like anybody's; `# BUG` names the line that is wrong, and {..} what stands there.
SCRIPT = """
import argparse
import torch
from torch import nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
steps = parser.parse_args().steps
torch.manual_seed(0)
labels = torch.randint(4, (256,))
images = 0.5 * torch.randn(4, 3, 8, 8)[labels] + 0.5 * torch.randn(256, 3, 8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.BatchNorm2d(16)
        self.hidden = nn.Linear(16 * 36, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x))).flatten(1)
        return self.head(F.relu(self.hidden(x)))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(steps):
    chosen = torch.randint(len(labels), (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(net(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
"""
CLEAR = "    optimizer.zero_grad()\n"
# What is wrong: what is replaced by what, the first finding, words of the advice, the line it names.
BUGS = {
    "the optimizer has the head only": (
        "SGD(net.parameters()", "SGD(net.head.parameters()", "MS712", "model.parameters()", "SGD("
    ),
    "a softmax before cross_entropy": (
        "chosen]),", "chosen]).softmax(1),", "MS720", "remove the softmax", "cross_entropy"
    ),
    "no step": ("    optimizer.step()\n", "", "MS711", "call optimizer.step() after loss.backward()", "SGD("),
    "cleared between backward and step": (
        "backward()\n", f"backward()\n{CLEAR}", "MS714", "before loss.backward()", "SGD("
    ),
    "never cleared": (CLEAR, "", "MS713", "optimizer.zero_grad()", "SGD("),
    "detached": ("self.conv(x))).", "self.conv(x))).detach().", "MS715", ".detach()", None),
    "under no_grad": (
        "x = F.relu(self.norm(self.conv(x)))",
        "with torch.no_grad(): x = F.relu(self.norm(self.conv(x)))\n        x = x",
        "MS715", "torch.no_grad()", None,
    ),
    "a learning rate of 1e-7": ("lr=0.05", "lr=1e-7", "MS710", "raise the learning rate", None),
    "a learning rate of 50": ("lr=0.05", "lr=50", "MS709", "lower the learning rate", None),
    "bytes instead of floats": (
        "\nclass Net", "images = (40 * images + 128).clip(0, 255)\n\nclass Net", "MS726",
        "divide images by 255", None,
    ),
    "one class": ("torch.randint(4, (256,))", "torch.zeros(256).long()", "MS725", "how the labels", None),
    "log of the logits": ("chosen]),", "chosen]).log(),", "MS701", "look for log", "cross_entropy"),
    "trained in evaluation mode": ("net = Net()", "net = Net().eval()", "MS718", "call model.train()", "net("),
}  # fmt: skip
LEARNS = {
    "nothing": ("", ""),
    "one layer is frozen": ("net = Net()", "net = Net()\nnet.conv.requires_grad_(False)"),
    "all but the head is frozen, on purpose": (
        "net = Net()", "net = Net().requires_grad_(False)\nnet.head.requires_grad_(True)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_the_first_finding_names_the_bug_and_the_cure(person, bug):
    right, wrong, code, cure, marked = BUGS[bug]
    assert SCRIPT.count(right) == 1
    script = SCRIPT.replace(right, wrong)
    if code == "MS726":  # a BatchNorm would undo the scale
        script = script.replace("nn.BatchNorm2d(16)", "nn.Identity()")
    (person.folder / "mine.py").write_text(script)
    first = person.types("modelscope watch --json --out run mine.py").json["findings"][0]
    assert first["code"] == code
    assert cure in first["hint"]
    if marked is not None:
        name, _, line = first["place"].rpartition(":")
        assert name == "mine.py"
        assert marked in (person.folder / "mine.py").read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("what", LEARNS)
def test_a_training_that_learns_is_not_accused(person, what):
    (person.folder / "mine.py").write_text(SCRIPT.replace(*LEARNS[what]) if LEARNS[what][0] else SCRIPT)
    record = person.types("modelscope watch --json --out run --fail-on warning mine.py").json
    assert (record["findings"], record["verdict"]) == ([], "nothing wrong")


def test_the_sick_sample(person):
    """A learning rate that is far too high without norms: the steps it makes, and what came of them."""
    person.types("modelscope watch --out run --layer 'block[12].*' demo/train.py --variant sick")
    record = json.loads((person.folder / "run" / "report.json").read_text())
    first = record["findings"][0]
    assert (first["code"], first["layer"]) == ("MS709", "conv.weight")
    assert "lower the learning rate" in first["hint"]
    assert {"MS705", "MS706", "MS707", "MS735"} <= {one["code"] for one in record["findings"][1:]}
    again = person.types("modelscope watch --report run", code=0)
    marked = {row["name"]: row["findings"] for row in again.rows if row["findings"]}
    died = next(one for one in record["findings"] if one["code"] == "MS705")
    assert marked["block1.relu#1"] == f"MS705@{died['since_step']}"
    assert (person.folder / "run" / "report.html").is_file()


def test_options_behind_the_script_and_the_line_that_has_them_before(person):
    (person.folder / "mine.py").write_text(SCRIPT)
    answer = person.types("modelscope watch mine.py --every 5 --steps 22", code=2)
    assert answer.hint == "modelscope watch --every 5 mine.py --steps 22"  # --steps is the script's own
    assert not (person.folder / "runs").exists()
    person.pastes(answer)
    assert json.loads((person.folder / "runs/watch-mine/report.json").read_text())["steps"] == 22
