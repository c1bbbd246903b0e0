"""The recipe in samples/ci: every command it prints is run as it stands."""

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from modelscope_cli.rules.settings import read_settings

CI = Path(__file__).parents[2] / "samples" / "ci"
FILES = ["github-actions.yml", "pre-commit-config.yaml", "README.md"]


def commands(name: str) -> list[str]:
    text = (CI / name).read_text(encoding="utf-8")
    return re.findall(r"^(?: *run: | *entry: | +)(modelscope .*)$", text, re.MULTILINE)


@pytest.fixture
def checkout(cwd: Path) -> Path:
    """A folder that looks like a checkout: `samples/` with a baseline of its own."""
    (cwd / "samples").mkdir()
    for path in CI.parent.iterdir():
        if path.name != "ci":
            (cwd / "samples" / path.name).symlink_to(path)
    (cwd / "samples" / "ci").mkdir()
    (cwd / "samples" / "ci" / "known.json").write_bytes((CI / "known.json").read_bytes())
    return cwd


@pytest.mark.parametrize("name", FILES)
def test_there_is_something_to_run(name):
    assert commands(name)


@pytest.mark.parametrize("line", [line for name in FILES for line in commands(name)])
def test_commands_run_as_printed(run, checkout, line):
    outcome = run(line.removeprefix("modelscope "))
    assert "warning:" not in outcome.err
    if "check.xml" in line:
        suite = ET.parse(checkout / "check.xml").getroot()
        assert suite.get("failures") == "0"
        assert "(known)" in ET.tostring(suite, encoding="unicode")
    known = checkout / "samples/ci/known.json"
    assert known.read_bytes() == (CI / "known.json").read_bytes()


def test_the_only_other_command_installs_the_package():
    text = (CI / "github-actions.yml").read_text(encoding="utf-8")
    others = [line for line in re.findall(r"run: (.*)", text) if not line.startswith("modelscope ")]
    assert others == ["pip install ."]


def test_the_settings_it_shows_are_settings(checkout):
    text = (CI / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1].replace("\n   ", "\n")
    assert tomllib.loads(block.strip())["tool"]["modelscope"]
    (checkout / "pyproject.toml").write_text(block.strip())
    settings = read_settings(checkout)
    assert settings.thresholds == {"MS202": 0.7, "MS501": 25e6, "MS504": "1,1000"}
    assert (settings.fail_on, settings.baseline) == ("warning", checkout / "known.json")
    subject = settings.model, settings.checkpoint, settings.images
    assert subject == ("models/net.py:Net", Path("last.pth"), ("tests/star.png",))
    assert "MS205" not in [rule.code for rule in settings.rules()]
