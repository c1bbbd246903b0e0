"""The examples on the pages of rules: each breaks its rule, and what is written instead does not."""

import json
import os
import shlex
import socket
import time
from functools import cache
from pathlib import Path

import pytest
import warm

import modelscope_cli as ms
from modelscope_cli.shell.app import run
from modelscope_cli.watching.trials import landlock
from tools.docs import ROOT, examples, rules
from tools.docs.rules import COMMANDS


def test_every_rule_has_an_example():
    shown = {*rules.EXAMPLES, *rules.DATA_SETS, *rules.injuries(), *COMMANDS}
    assert {rule.code for rule in ms.list_rules().rules} == shown


@pytest.mark.parametrize("code", COMMANDS)
def test_the_command_reports_its_rule(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").symlink_to(ROOT / "samples")
    script, line = COMMANDS[code]
    exec(script, {})
    run([*shlex.split(line)[1:], "--output", "check.json"])
    assert code in {one["code"] for one in json.loads(Path("check.json").read_text())["findings"]}


@pytest.fixture
def slept(monkeypatch):
    """Let sleeping take no time, but count it on the clock."""
    seconds, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "sleep", lambda n: seconds.append(seconds.pop() + n))
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + seconds[0])


@pytest.fixture(scope="module")
def codes_of(tmp_path_factory):
    """Return a function that watches the training with some edits; many rules are cured by the same ones."""
    folder = tmp_path_factory.mktemp("trainings")

    @cache
    def watched(edits: examples.Edits, *, try_fixes: bool = False) -> set[str]:
        script = folder / "example.py"
        script.write_text(examples.written(edits))
        fix_time = 120 if try_fixes else None  # by default a busy machine has none left for the last trials
        return {one.code for one in ms.watch(script, try_fixes=try_fixes, fix_time=fix_time).findings}

    return watched


TRAINED = sorted({*rules.EXAMPLES} - {*rules.RANKS, *rules.TRIED})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=pytest.mark.slow if n % 8 else ()) for n, code in enumerate(TRAINED)]
)
def test_the_training_breaks_its_rule_and_the_change_cures_it(code, codes_of, slept):
    wrong, right = rules.EXAMPLES[code]
    assert code in codes_of(wrong)
    assert code not in codes_of(right)
    assert any(line.startswith(("+", "-")) for line in examples.change(rules.EXAMPLES[code]).splitlines())


@pytest.mark.skipif(not landlock.is_available(), reason="this kernel has no Landlock")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", rules.TRIED)
def test_trials_report_the_rule_and_the_change_cures_it(code, codes_of):
    wrong, right = rules.TRIED[code]
    assert code in codes_of(wrong, try_fixes=True)
    assert code not in codes_of(right, try_fixes=True)


@pytest.mark.parametrize("code", rules.RANKS)
def test_two_processes_break_the_rule_and_the_change_cures_it(code, tmp_path):
    """As torchrun would start them, wrong and right at the same time."""
    ranks = [rank for edits in rules.RANKS[code] for rank in started(tmp_path, edits)]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said
    wrong, right = (
        {one["code"] for out, _ in pair if out for one in json.loads(out)["findings"]}
        for pair in (said[:2], said[2:])
    )
    assert code in wrong
    assert code not in right


def started(tmp_path, edits):
    folder = tmp_path / str(hash(edits))
    folder.mkdir()
    (folder / "example.py").write_text(examples.written(edits))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    # Under load each rank would record other steps.
    line = ["-m", "modelscope_cli", "watch", "--json", "--every", "1", "example.py"]
    return [warm.start(*line, cwd=folder, env={**os.environ, **group, "RANK": rank}) for rank in "01"]


@pytest.mark.parametrize("code", rules.DATA_SETS)
def test_the_images_break_their_rule(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(rules.IMAGES, names := {})
    before = ms.check_images("photos")
    exec(rules.DATA_SETS[code], names)
    after = ms.check_images("photos", against="val" if code in ("MS804", "MS811", "MS813") else ())
    assert code not in {one.code for one in before.findings}
    assert code in {one.code for one in after.findings}
