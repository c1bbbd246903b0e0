"""The recipes of CONTRIBUTING, followed to the letter in a copy of the package: what was added can be used."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.recipes import RECIPES, add, files_of

ROOT = Path(__file__).resolve().parent.parent
USE = """
import contextlib, io, json
import torch
import modelscope_cli as ms
from modelscope_cli.shell.app import run

def printed(line):
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as out:
        assert run(line.split()) == 0, line
        out.flush()
        return out.buffer.getvalue().decode()

model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
x = torch.rand(2, 3, 8, 8)

record = ms.stats(model, x)
assert record[0].doubled == 2 * record[0].mean
assert "doubled" in printed("stats net.py:net x.pt --columns name,doubled")

assert [rule.why for rule in ms.list_rules("MS799").rules] == ["without one nothing is learnt"]
assert any(one.code == "MS799" for one in ms.watch("train.py").findings)

assert "occlusion" in ms.explain.__doc__ and "brightness, occlusion" in ms.explain.__doc__
assert "brightness, occlusion" in " ".join(printed("explain --help-all").split())
flat = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
assert [row.method for row in ms.explain(flat, x[:1], method="brightness", receipt="none").rows] == ["brightness"]

from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.subject import describe_module
assert OutputReader.of(describe_module(model)).read({"angles": x[:, 0, 0]}, (x,)).main.words == "8 angles"

rows = [json.loads(line) for line in printed("stats net.py:net x.pt --format jsonl").splitlines()]
assert [row["name"] for row in rows] == ["0", "1"]
record.save("rows.jsonl")
assert "jsonl" in printed("stats --help-all")

assert [row.name for row in ms.stats("tiny:net", x, device="cpu")] == ["0", "1"]

record.plot("means.png", picture="means")
assert open("means.png", "rb").read(4) == b"\\x89PNG"

assert "  kinds        Count the layers of each class.\\n" in printed("--help")
assert "--least N" in printed("kinds --help")
assert "kinds" in printed("schema --help")
assert json.loads(printed("schema kinds"))["$id"] == "modelscope/kinds/1"
document = json.loads(printed("kinds net.py:net x.pt --json"))
assert document["kinds"] == [{"name": name, "layers": 1} for name in ("Sequential", "Conv2d", "ReLU")]
with open("kinds.json", "w") as file:
    json.dump(document, file)
assert ms.read("kinds.json")["ReLU"].layers == 1
assert printed("kinds net.py:net x.pt --sort name --format tsv").splitlines()[0] == "name\\tlayers"
assert len(ms.kinds(model, x, least=2)) == 0
"""


@pytest.mark.slow
def test_what_the_recipes_add_can_be_used(tmp_path):
    shutil.copytree(
        ROOT / "modelscope_cli", tmp_path / "modelscope_cli", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in RECIPES:
        add(name, tmp_path / "modelscope_cli")
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())\n"
    )
    (tmp_path / "tinylib.py").write_text("from net import net\n\n\ndef create(name):\n    return net()\n")
    (tmp_path / "train.py").write_text(
        "import torch\n\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(4):\n    optimizer.zero_grad()\n    model(torch.randn(4, 2)).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    script = f"import torch; torch.save(torch.rand(2, 3, 8, 8), 'x.pt'){USE}"
    process = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(("name", "most"), [
    ("column of stats", 2),
    ("rule of training", 1),
    ("method of explanation", 3),
    ("kind of output", 2),
    ("format", 1),
    ("library", 2),
    ("chart", 2),
    ("command", 8),
])  # fmt: skip
def test_an_addition_touches_few_files(name, most):
    assert len(files_of(name)) <= most


def test_an_addition_without_its_place_is_an_error(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "stats.py").write_text("nothing\n")
    with pytest.raises(ValueError, match="0 times"):
        add("column of stats", tmp_path)
