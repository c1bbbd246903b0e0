"""Models that print, have no gradients or return NaN, and runs that are not continued."""

import json

import pytest
import warm

MODELS = """
from torch import nn
class Net(nn.Linear):
    def __init__(self): super().__init__(3, 10)
    def forward(self, x): return super().forward(x.mean((2, 3))).detach()
class Bare(nn.Module):
    def forward(self, x): return x.flatten(1)[:, :10]
class Raises(Net):
    def forward(self, x): raise ValueError("no")
"""
UNTRAINABLE = [
    ("train", "Net", 4, "depend on anything trainable", "modelscope stats"),
    ("lrfind", "Net", 4, "depend on anything trainable", "modelscope stats"),
    ("train", "Bare", 2, "the model has no parameters", "--train-only"),
    ("train", "Raises", 4, "ValueError: no", "modelscope summary"),
]


@pytest.mark.parametrize(("command", "name", "code", "quoted", "hint"), UNTRAINABLE)
def test_a_model_that_cannot_be_trained(refused, cwd, command, name, code, quoted, hint):
    (cwd / "cut.py").write_text(MODELS)
    message, suggested = refused(f"{command} cut.py:{name} --pictures 20 --size 8", code)
    assert quoted in message
    assert hint in suggested


@pytest.mark.parametrize(
    "line", ["predict {star} --json", "train --out o --pictures 20 --size 8 --steps 1 --batch 4 --json"]
)
def test_what_a_model_prints_is_not_part_of_the_result(run, cwd, line):
    (cwd / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 10)\n"
        "    def forward(self, x):\n        print('shape', x.shape)\n"
        "        return super().forward(x.mean((2, 3)))\n"
    )
    outcome = run(f"{line} --model net.py:Net")
    assert outcome.json["model"]["class"] == "Net"
    assert "shape torch.Size([" in outcome.err


LOOP = """
import os, sys, torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{}
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
    optimizer.step()
{}
"""
ODD_SCRIPTS = {
    "another folder": ("os.mkdir('other'); os.chdir('other')", ""),
    "no folder": ("os.mkdir('other'); os.chdir('other'); os.rmdir(os.getcwd())", ""),
    "closed stdout": ("", "sys.stdout.close()"),
    "NaN at the start": ("nn.init.constant_(model.weight, torch.nan)", ""),
}


@pytest.mark.parametrize("name", ODD_SCRIPTS)
def test_a_script_that_changes_its_surroundings_is_recorded(cwd, name):
    (cwd / "loop.py").write_text(LOOP.format(*ODD_SCRIPTS[name]))
    done = warm.run("-m", "modelscope_cli", "watch", "--html", "page.html", "loop.py", cwd=cwd)
    assert (done.returncode, "bug" in done.stderr) == (0, False), done.stderr
    assert json.loads((cwd / "runs" / "watch-loop" / "report.json").read_text())["steps"] == 3
    assert (cwd / "page.html").exists()
    assert not (cwd / "other" / "runs").exists()


@pytest.mark.parametrize(("given", "hint"), [
    ("--input-shape 1,3,96,96", "--input-shape 1,3,64,64"),
    ("--input-shape 2,3,32,32", "--input-shape 2,3,64,64"),
    ("--input-shape 96,96", "--input-shape 1,3,64,64"),
    ("--input-shape 64", "--input-shape 1,3,64,64"),
    ("{star} --size 96", "--size 64"),
])  # fmt: skip
def test_the_hint_names_the_size_a_model_was_built_for(run, cwd, given, hint):
    """As pasted, it runs."""
    (cwd / "vit.py").write_text(
        "from torchvision.models import VisionTransformer\n"
        "def small():\n    return VisionTransformer(64, 16, 1, 2, 32, 64)\n"
    )
    refused = run(f"stats vit.py:small {given}", expect=4)
    assert refused.err.endswith(f" {hint}\n")
    run(refused.err.partition("hint: modelscope ")[2].strip())
