"""Every command in every format: strict, whole, and no wider than the terminal."""

import csv
import io
import re
import sys

import pytest
from rich.cells import cell_len

from modelscope_cli.shell.overview import FORMER

COMMANDS = {
    "summary": "summary {TINY}",
    "stats": "stats {healthy} --input-shape 1,3,48,48",
    "diff of tensors": "diff {samples}/tiny_resnet.safetensors {samples}/sick.safetensors --all --tolerance 1e9",
    "models": "models resnet",
}
ROWS = {"summary": 30, "stats": 26, "models": 21, "diff of tensors": 46}

pytestmark = pytest.mark.parametrize("command", COMMANDS)


def tidied(text):
    """Leave out what differs between two runs: what was typed, how long it took, which folder was free."""
    text = re.sub(r'"argv": \[.*?\]', "", text, flags=re.DOTALL)
    return re.sub(r'"elapsed_ms": [\d.]+|runs/[\w.\\-]+', "", text)


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture
def once(run, made):
    """Run a line, but only the first time: what it prints is all that is looked at."""

    def run_it(line):
        if line not in made:
            made[line] = run(line)
        return made[line]

    return run_it


def test_json_is_strict_and_short_for_format_json(once, command):
    outcome = once(f"{COMMANDS[command]} --json")
    document = outcome.json
    name = COMMANDS[command].partition(" ")[0]
    assert document["schema"] == f"modelscope/{name}/1"
    assert document["argv"][0] == FORMER.get(name, (name,))[0]
    assert len(rows_of(document)) == ROWS[command]
    assert tidied(once(f"{COMMANDS[command]} --format json").out) == tidied(outcome.out)


@pytest.mark.parametrize("format", ["tsv", "csv"])
def test_delimited_lines_have_as_many_cells_as_the_header(once, command, format):
    outcome = once(f"{COMMANDS[command]} --format {format}")
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if format == "tsv" else {}
    header, *rows = csv.reader(io.StringIO(outcome.out), strict=True, **dialect)
    assert len(rows) == ROWS[command]
    assert {len(row) for row in rows} == {len(header)}
    assert "…" not in outcome.out
    assert "\x1b" not in outcome.out
    document = once(f"{COMMANDS[command]} --json").json
    for row, entry in zip(rows, rows_of(document), strict=True):
        cells = dict(zip(header, row, strict=True))
        assert cells["name"].partition("#")[0] == (entry["name"] or entry["type"])


def rows_of(document):
    keys = ("layers", "maps", "parameters", "rows", "tensors", "models")
    return next(document[key] for key in keys if key in document)


def test_auto_is_tsv_where_there_is_no_terminal(once, command):
    outcome = once(COMMANDS[command])
    assert tidied(outcome.out) == tidied(once(f"{COMMANDS[command]} --format tsv").out)


def test_output_writes_what_the_suffix_says_and_nothing_to_stdout(run, once, cwd, command):
    suffixes = (".txt", ".tsv", ".csv", ".json", ".md")
    for suffix in suffixes if command == "summary" else (suffixes[len(command) % 5],):
        outcome = run(f"{COMMANDS[command]} -o result{suffix}")
        assert outcome.out == ""
        assert f"wrote result{suffix}\n" in outcome.err
        format = {".txt": "table", ".md": "markdown"}.get(suffix, suffix.removeprefix("."))
        printed = once(f"{COMMANDS[command]} --format {format}").out
        assert tidied((cwd / f"result{suffix}").read_text()) == tidied(printed)


def test_a_table_in_a_pipe_is_plain_and_as_wide_as_it_needs(once, command):
    out = once(f"{COMMANDS[command]} --format table").out
    assert "\x1b" not in out
    assert "…" not in out
    assert "not shown" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(run, monkeypatch):
    """Run a command in front of a terminal and return what it shows."""

    def run_it(line, width, **environment):
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": str(width), **environment}.items():
            monkeypatch.setenv(name, value)
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            run(line)
        return terminal.getvalue()

    return run_it


@pytest.mark.parametrize("width", [80, 120, 160])
def test_a_table_is_no_wider_than_the_terminal_and_says_what_it_left_out(on_terminal, once, command, width):
    shown = on_terminal(COMMANDS[command], width, NO_COLOR="1")
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= width
    dropped = re.findall(r"hidden at this width: ([\w, ]+?) \(", " ".join(line.strip() for line in lines))
    full = once(f"{COMMANDS[command]} --format table").out
    if dropped:
        assert all(key in once(f"{COMMANDS[command]} --format tsv").rows[0] for key in dropped[0].split(", "))
    else:
        assert sorted(tidied(" ".join(shown.split())).split()) == sorted(
            tidied(" ".join(full.split())).split()
        )


def test_colour_is_for_terminals_that_want_it(on_terminal, command):
    assert "\x1b[" in on_terminal(COMMANDS[command], 200)
    if command in ("summary", "models"):  # whether there is a colour is decided for all commands in one place
        assert "\x1b" not in on_terminal(COMMANDS[command], 200, NO_COLOR="1")
        assert "\x1b" not in on_terminal(COMMANDS[command], 200, TERM="dumb")
        assert "\x1b" not in on_terminal(f"{COMMANDS[command]} --format tsv", 200)
