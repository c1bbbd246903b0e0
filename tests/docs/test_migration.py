"""Every command and every line of Python in the tables of the page that compares runs."""

import ast
import re
import shlex

import pytest

from modelscope_cli.shell.app import run
from tools.docs import DOCS
from tools.docs.printed import fresh_folder, settings

PAGE = (DOCS / "compared.md").read_text(encoding="utf-8")
ROWS = re.findall(r"(?m)^\| (.*) \| `(modelscope .*?)` \| `(ms\..*?)` \|$", PAGE)
SECTIONS = re.split(r"(?m)^## (.*)$", PAGE)[1:]


@pytest.fixture(scope="module")
def folder():
    with fresh_folder() as folder, settings(folder):
        (folder / "truth.csv").write_text("demo/star.png,star\n")
        yield folder


@pytest.fixture(scope="module")
def names(folder):
    import torch

    import modelscope_cli as ms

    model = ms.load("demo/tiny_resnet.py:TinyResNet", checkpoint="demo/tiny_resnet.safetensors").module
    return {"ms": ms, "model": model, "x": torch.rand(1, 3, 64, 64)}


def test_every_tool_has_a_table():
    tables = dict(zip(SECTIONS[::2], SECTIONS[1::2], strict=True))
    assert len(tables) >= 6
    assert all("\n| --- |" in text for text in tables.values())
    assert len(ROWS) == len(re.findall(r"(?m)^\| .*modelscope ", PAGE))


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted({line for _, line, _ in ROWS}))
def test_commands_run(line, folder, capsys, undrawn):
    quicker = line.replace("--steps 20", "--steps 5")
    assert run([*shlex.split(quicker)[1:], *forced(line)]) == 0


def forced(line):
    """Let a command that keeps a file of a fixed name be run after another."""
    return ["--force"] if "--save-tensors" in line or "--out " in line else []


@pytest.mark.slow
@pytest.mark.parametrize("code", sorted({code for _, _, code in ROWS}))
def test_python_runs(code, names):
    assert eval(code.replace("steps=20", "steps=5"), dict(names)) is not None


@pytest.mark.parametrize("theirs", sorted({theirs for theirs, _, _ in ROWS}))
def test_what_others_write_is_code(theirs):
    for code in re.findall(r"`(.*?)`", theirs):
        if not code.startswith(("netron ", "polygraphy ")):
            ast.parse(code.replace("...", "").replace("(, ", "("))
