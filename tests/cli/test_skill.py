"""What coding agents are told: every line of the skill runs, and `--format brief` is brief."""

import re
from importlib.resources import files

import pytest

SKILL = files("modelscope_cli").joinpath("SKILL.md").read_text(encoding="utf-8")
LINES = dict.fromkeys(re.findall(r"`modelscope (.*?)`", SKILL))
STAND_INS = {
    "train.py": "{samples}/train.py --steps 12",
    "net.py:Net": "{TINY}",
    "image.jpg": "{samples}/star.png",
    "best.pth": "{samples}/tiny_resnet.safetensors",
    "old.pth": "{samples}/tiny_resnet.safetensors",
    "new.pth": "{samples}/sick.safetensors",
    "data/train": "{samples}/shapes",
    "data/val": "{samples}/shapes/star",
}


def test_the_skill_is_printed(run):
    assert run("help agents").out == SKILL


@pytest.mark.parametrize("line", [line for line in LINES if " " in line])
def test_a_line_of_the_skill_runs_and_is_brief(run, line, quick_weights, tmp_path):
    words = " ".join(STAND_INS.get(word, word) for word in line.split())
    if words.startswith("predict"):  # folders are named like its classes
        words = words.replace("{TINY}", "squeezenet1_1 -c {samples}/shapes_squeezenet1_1.safetensors")
    words = words.replace("--out run", f"--out {tmp_path}/run")
    if words.startswith("explain"):
        words += " --size 32 --method saliency"
    outcome = run(words, expect=None)
    assert outcome.code in (0, 1), outcome.err  # a finding is an answer
    assert outcome.out.strip()
    if "brief" in line:
        assert len(outcome.out.splitlines()) <= 40
