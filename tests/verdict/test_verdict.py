"""The bench of labelled trainings: it runs, its labels are true, and its targets are met."""

import subprocess
import sys
from pathlib import Path

import pytest
import warm
from bench import Answer, Finding, run_all
from programs.registry import Program, load
from table import shares, table

RUN = Path(__file__).with_name("run.py")
MOST_FALSE_ALARMS = 0
LEAST_FOUND = 0.97
LEAST_NAMED = 0.90


@pytest.fixture(scope="module")
def dev() -> dict[str, Program]:
    return {one.name: one for one in load("dev")}


def said(program: Program, *codes: str, verdict: str | None = None) -> Answer:
    return Answer(program, tuple(Finding(code, "warning", None, 0, "") for code in codes), verdict)


def test_a_finding_over_a_healthy_run_is_a_false_alarm(dev: dict[str, Program]) -> None:
    assert said(dev["plain_cnn"]).is_right
    assert not said(dev["plain_cnn"], "MS706").is_right


def test_only_the_first_finding_names_the_cause(dev: dict[str, Program]) -> None:
    sick = dev["mlp_without_zero_grad"]
    assert said(sick, "MS713", "MS704").is_named_first
    assert not said(sick, "MS704", "MS713").is_named_first
    assert said(sick, "MS704", "MS713").is_found
    assert not said(sick).is_found


def test_a_run_too_short_to_judge_has_to_be_told_so(dev: dict[str, Program]) -> None:
    assert said(dev["three_steps"], verdict="cannot tell").is_right
    assert not said(dev["three_steps"], verdict="nothing wrong").is_right


def test_the_table_counts_by_kind(dev: dict[str, Program]) -> None:
    sick = dev["mlp_without_zero_grad"], dev["vit_without_zero_grad"]
    answers = [said(sick[0], "MS713"), said(sick[1], "MS704"), said(dev["plain_cnn"], "MS706")]
    found = shares(answers)
    assert (found["found"].n, found["named"].n, found["named"].total) == (2, 1, 2)
    assert (found["quiet"].n, found["quiet"].total) == (0, 1)
    (row,) = (line for line in table(answers).splitlines() if line.startswith("no zero_grad"))
    assert row.split()[2:] == ["2", "2", "1"]


def test_every_kind_is_in_both_halves_by_other_programs() -> None:
    """The final half is asked for its kinds in another process: nobody sees it here."""
    kinds = "from programs.registry import load; print(*sorted({one.kind for one in load(%r)}), sep='\\n')"
    first, second = (warm.run("-c", kinds % half, cwd=RUN.parent) for half in ("dev", "final"))
    assert first.returncode == second.returncode == 0, second.stderr
    assert first.stdout == second.stdout


def test_a_few_programs_run_under_watch(dev: dict[str, Program]) -> None:
    names = ("plain_mlp_adam", "log_of_nothing", "low_rate_sgd_lstm", "dead_by_its_bias")
    answers = {one.program.name: one for one in run_all([dev[name] for name in names], jobs=1)}
    assert [answers[name].trouble for name in names] == [None] * 4
    assert [answers[name].is_found for name in names] == [False, True, True, True]
    assert answers["log_of_nothing"].is_named_first


@pytest.mark.bench
@pytest.mark.parametrize("half", ["dev", "final"])
def test_the_labels_are_true(half: str) -> None:
    truth = subprocess.run(
        [sys.executable, RUN, "--half", half, "--truth"], capture_output=True, text=True, check=False
    )
    assert truth.returncode == 0, truth.stdout + truth.stderr


@pytest.mark.bench
def test_the_targets_are_met(dev: dict[str, Program]) -> None:
    answers = list(run_all(dev.values(), jobs=2))
    found = shares(answers)
    wrong = "\n".join(one.line() for one in answers if not one.is_right)
    assert found["quiet"].total - found["quiet"].n <= MOST_FALSE_ALARMS, wrong
    assert found["told"].fraction == 1, wrong
    assert found["found"].fraction >= LEAST_FOUND, wrong
    assert found["named"].fraction >= LEAST_NAMED, wrong
