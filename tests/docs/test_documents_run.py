"""Every command and every program on the pages runs; every output is what the tool prints.

Words are compared to the letter, numbers as close as CPUs are. A page's steps are done in order, in one folder.
"""

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from modelscope_cli.shell.app import run
from tools.docs import ROOT, pages
from tools.docs.printed import arguments, fresh_folder, on_terminal, settings, write_file
from tools.docs.regions import without
from tools.docs.steps import Step, steps

# Training goes another way on another CPU: what stays is the line above the table, its columns and its rows.
TRAINED = ("watch", "train", "lrfind")
# Options that make a command quicker and leave what is compared.
QUICKER = {"lrfind": ["--steps", "60"], "train": ["--steps", "4"]}
# A training that is watched and of which nothing is compared need not be long.
WATCHED = re.compile(r"modelscope watch (?!.*--(steps|fail-on|strict))")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
VERSION = re.compile(r"\d+\.\d+\.\d+")  # of a library
# They install something, or start what a test must not: the pages say them, and others try them.
OTHERS = ("pip ", "python3 -m venv", "git ", "pre-commit ", "zensical ")


def steps_of(page: Path) -> list[Step]:
    """Return the steps that people wrote; the examples of a command's help are tried in `test_examples`."""
    return list(steps(without(page.read_text(encoding="utf-8"))))


# A page a rule holds one command each, and is made from what that command prints.
WITH_STEPS = [page for page in pages() if page.parent.name != "rules" and steps_of(page)]


def page_id(page):
    return str(page.relative_to(ROOT))


# What newcomers read is tried each time, the pages of reference with the slow tests.
TRIED = [
    pytest.param(page, id=page_id(page), marks=() if is_first else pytest.mark.slow)
    for page in WITH_STEPS
    for is_first in [page.name in ("README.md", "start.md", "student.md")]
]


@pytest.fixture
def folder():
    with fresh_folder() as folder, settings(folder):
        yield folder


@pytest.mark.parametrize("page", TRIED)
def test_a_reader_can_do_what_the_page_says(request, page, folder, capsys):
    if page.name != "README.md":  # which draws what all write
        request.getfixturevalue("undrawn")
    for step in steps_of(page):
        if is_of_trials(step):
            continue
        if step.kind == "shown":
            check_what_is_shown(step)
        elif step.kind == "file":
            write_file(step, folder)
        elif step.kind == "python":
            exec(compile(step.what, page_id(page), "exec"), {"__name__": "__main__"})
        else:
            check_line(step, folder)
        printed = capsys.readouterr()
        assert step.says in printed.err + printed.out, step.what


def is_of_trials(step: Step) -> bool:
    """Say whether a step shows trials, each of which is a process that imports torch: the slow tests try these."""
    return step.kind == "shown" and "--try-fixes" in step.what


@pytest.mark.slow
def test_trials_print_what_the_pages_show(folder):
    shown = [step for page in WITH_STEPS for step in steps_of(page) if is_of_trials(step)]
    assert shown
    for step in shown:
        check_what_is_shown(step)


def check_what_is_shown(step: Step) -> None:
    command, *typed = arguments(f"modelscope {step.what.partition(' ')[2]}")
    typed = [command, *typed, *QUICKER.get(command, ())]
    printed = tried(shlex.join(typed)) if "--try-fixes" in typed else on_terminal(typed)
    if command in TRAINED:
        assert frame_of(printed, command) == frame_of(step.text, command), step.what
        return
    printed, text = (VERSION.sub("#", one) for one in (printed, step.text))
    words, known = ("".join(NUMBER.sub("0", one).split()) for one in (printed, text))
    assert words == known, step.what
    assert numbers_of(printed) == pytest.approx(numbers_of(text), rel=2e-2, abs=2e-3), step.what


@cache
def tried(line: str) -> str:
    """Return what trials print: three pages begin with the same ones, of the same script."""
    return on_terminal(shlex.split(line))


def frame_of(text: str, command: str) -> list[str]:
    """Return the columns of a table, of watch also the line above it, and but for lrfind the names of its rows."""
    above, table = text.split("\n\n")[:2]
    columns, *rows = table.splitlines()
    names = [] if command == "lrfind" else [row.split("  ")[0] for row in rows]
    title = NUMBER.sub("0", " ".join(above.rpartition("(")[2].split())) if command == "watch" else ""
    return [title, " ".join(columns.split()), *names]


def numbers_of(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def check_line(step: Step, folder) -> None:
    if step.needs or step.what.startswith(OTHERS) or not step.what:
        return
    if step.what == "modelscope demo":
        shutil.rmtree(folder / "demo")
    if step.what.startswith("modelscope ") and not re.search(r"[|>&;]", step.what):
        line = step.what if step.says else WATCHED.sub("modelscope watch --steps 8 ", step.what)
        assert run(shlex.split(line)[1:]) == step.code, step.what
        return
    python = shlex.quote(sys.executable)
    tools = (
        f'python() {{ {python} "$@"; }}; modelscope() {{ python -m modelscope_cli "$@"; }}; set -o pipefail'
    )
    outcome = subprocess.run([shutil.which("bash"), "-c", f"{tools}; {step.what}"], cwd=folder, check=False)
    assert outcome.returncode == step.code, step.what


def test_there_are_outputs_to_check():
    assert sum(step.kind == "shown" for page in pages() for step in steps_of(page)) >= 25
