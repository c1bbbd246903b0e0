"""The hints of `check` are command lines with what was typed."""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from modelscope_cli.rules.registry import RULES
from modelscope_cli.shell.app import run
from modelscope_cli.shell.hints import with_typed

SICK = """
from torch import nn

class Sick(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first, self.second, self.unused = nn.Conv2d(3, width, 3, 4), nn.Conv2d(width, 5, 1), nn.ReLU()
        nn.init.constant_(self.first.weight, float("inf"))
    def forward(self, x):
        return self.second(self.first(x)).mean((2, 3))
"""


@pytest.mark.parametrize("typed", [
    "sick.py:Sick --size 32 --model-arg width=3 --max-params 1 --max-macs 1 --max-train-memory 1",
    "sick.py:Sick dot.png --size 32 --dtype bfloat16 --max-params 1",
    "--model sick.py:Sick dot.png --size 32 --max-memory 1",
    "",
])  # fmt: skip
def test_each_command_runs_as_it_is_printed(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    Image.new("RGB", (32, 32), (90, 30, 20)).save(tmp_path / "dot.png")
    if not typed:
        settings = '[tool.modelscope]\nmodel = "sick.py:Sick"\nimages = ["dot.png"]\nmax-params = 1\n'
        (tmp_path / "pyproject.toml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    run(["check", *shlex.split(typed), "--json"])
    findings = json.loads(capfd.readouterr().out)["findings"]
    hints = {one["hint"].partition("   ")[0] for one in findings if "modelscope " in one["hint"]}
    assert hints
    for hint in hints:
        assert not re.search(r"\b(MODEL|LAYER|FILE)\b", hint)
        assert run(shlex.split(hint[hint.index("modelscope ") :])[1:]) == 0, hint


@pytest.mark.parametrize("rule", [rule for rule in RULES if "MODEL" in rule.hint], ids=lambda rule: rule.code)
def test_nothing_but_what_only_the_person_knows_is_left(rule) -> None:
    argv = shlex.split("check net.py:Net a.png -c w.pt --select MS2 --json --mode train")
    hint = with_typed(rule.hint, argv, True)
    assert not re.search(r"MODEL|IMAGE|FOLDER", hint)
    assert "net.py:Net a.png -c w.pt" in hint
    assert "--select" not in hint
    assert with_typed("modelscope predict MODEL IMAGE...   shows", ["check", "net.py:Net"], False) == (
        "modelscope predict net.py:Net IMAGE...   shows"
    )
