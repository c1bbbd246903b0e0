"""The recipe in samples/ci: every command it prints is run as it stands."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from modelscope_cli.rules.settings import read_settings

ROOT = Path(__file__).parents[2]
CI = ROOT / "samples" / "ci"
FILES = ["github-actions.yml", "gitlab-ci.yml", "pre-commit-config.yaml", "check.sh", "README.md"]


def commands(name: str) -> list[str]:
    text = (CI / name).read_text(encoding="utf-8")
    return re.findall(r"^(?: *run: | *entry: | +- | +)?(modelscope .*)$", text, re.MULTILINE)


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


@pytest.mark.slow
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


def test_the_script_ends_with_the_code_of_the_first_command_that_fails(checkout):
    """Its lines run in a real shell, with a program in the place of ours that fails on demand."""
    program = checkout / "modelscope"
    program.write_text('#!/bin/sh\necho "$1" >> ran\n[ "$1" != "$FAILS" ] || exit 7\n')
    program.chmod(0o755)
    script = ["sh", str(CI / "check.sh")]
    for fails, code, ran in (("", 0, ["check", "weights"]), ("check", 7, ["check"])):
        (checkout / "ran").write_text("")
        path = f"{checkout}:{os.environ['PATH']}"
        outcome = subprocess.run(
            script, env={**os.environ, "PATH": path, "FAILS": fails}, cwd=checkout, check=False
        )
        assert (outcome.returncode, (checkout / "ran").read_text().split()) == (code, ran)


@pytest.mark.slow
def test_the_action_runs_a_command_against_the_baseline_of_the_default_branch(checkout):
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    step = next(step for step in action["runs"]["steps"] if step["name"] == "Run")
    program = checkout / "modelscope"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m modelscope_cli "$@"\n')
    program.chmod(0o755)
    sick = "check samples/tiny_resnet.py:TinyResNet samples/star.png -c samples/sick.safetensors"
    given = {
        "COMMAND": f"{sick} --select MS2 --fail-on warning",
        "SARIF": "found.sarif",
        "BASELINE": "known.json",
    }
    # The first writes the baseline, the second renews it, and the third finds nothing new.
    for is_default in ("true", "true", "false"):
        environment = {**given, "IS_DEFAULT": is_default}
        assert set(step["env"]) == set(environment)
        environment |= {"PATH": f"{checkout}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment |= {"GITHUB_STEP_SUMMARY": str(checkout / "summary.md")}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        outcome = subprocess.run(
            shell,
            env={**os.environ, **environment},
            cwd=checkout,
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, outcome.stderr
        assert "\nmodelscope check: passed" in outcome.stderr
        results = json.loads((checkout / "found.sarif").read_text())["runs"][0]["results"]
        assert results
        assert all("suppressions" in result for result in results)
    assert (checkout / "summary.md").read_text().count("### ") == 3


def test_the_container_gets_all_that_the_package_is_built_from(tmp_path):
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    for name in (one.removeprefix("!") for one in rest):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert [*tmp_path.glob("dist/*.whl")]


@pytest.mark.slow
def test_the_hooks_run_in_a_repository(checkout):
    """As a user's configuration names them; only their environment is this one, and not one made for them."""
    arguments = {
        "modelscope-weights": ["samples"],
        "modelscope-check": ["samples/tiny_resnet.py:TinyResNet", "-c", "samples/tiny_resnet.safetensors"],
        "modelscope-data": ["samples/shapes"],
    }
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        hook["entry"] = hook["entry"].replace("modelscope", f"{sys.executable} -m modelscope_cli", 1)
        hook |= {"language": "system", "args": arguments[hook["id"]], "always_run": True}
    config = {"repos": [{"repo": "local", "hooks": hooks}]}
    (checkout / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    for line in ("git init -q", "git add .pre-commit-config.yaml"):
        subprocess.run(line.split(), check=True)
    pre_commit = [sys.executable, "-m", "pre_commit", "run", "--all-files", "--verbose"]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(checkout / "home"), "PYTHONPATH": str(ROOT)}
    outcome = subprocess.run(pre_commit, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    said = [line for line in outcome.stdout.splitlines() if re.match(r"modelscope (check|weights): ", line)]
    assert len(said) == len(hooks) == 3
    assert sum(line.startswith("modelscope check: passed") for line in said) == 2
    assert sum(line.startswith("modelscope weights: nothing found") for line in said) == 1


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
