"""How a table is asked for on the command line: `--sort`, `--top`, `--all`, and what a terminal makes of it."""

import io
import re

import pytest
import test_live_line
from rich.console import Console

from modelscope_cli.report.fold import fold
from modelscope_cli.report.registry import VIEWS, view_for
from modelscope_cli.report.sheet import find_column
from modelscope_cli.report.stats.table import stats_sheet
from modelscope_cli.report.table import render_table


def at_width(sheet, width, **traits):
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, **traits)
    console.print(render_table(sheet, width, fold(sheet)))
    return console.file.getvalue()


def test_values_that_are_only_sorted_by_are_measured(run):
    names = run("stats {star} {healthy} --columns name --sort near_zero").column("name")
    rows = run("stats {star} {healthy} --columns name,near_zero").rows
    assert names == [row["name"] for row in sorted(rows, key=lambda row: -float(row["near_zero"]))]
    assert run("weights {samples}/tiny_resnet.safetensors --columns name --sort std --top 1").rows


@pytest.mark.parametrize("line", [
    "summary resnet18",
    "weights {samples}/tiny_resnet.safetensors",
    "watch {samples}/train.py",
])  # fmt: skip
def test_a_column_that_is_not_there_is_refused(refused, line):
    script = line.startswith("watch")
    line = line.replace("watch", "watch --sort nothing") if script else f"{line} --sort nothing"
    error, hint = refused(line, 2)
    assert "unknown column 'nothing' in --sort 'nothing'" in error
    assert " --sort " in hint.partition("   ")[0]


def test_bad_cells_are_marked_and_coloured():
    import torch
    from torch import nn

    import modelscope_cli as ms

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    sheet = stats_sheet(ms.stats(model, torch.randn(100, 4)))
    plain = at_width(sheet, 100)
    assert "100.0 % !" in plain
    assert plain.count("!") == 2  # the zeros and the dead channels of the ReLU
    coloured = at_width(sheet, 100, force_terminal=True, color_system="standard")
    assert "\x1b[1;31m100.0 % !" in coloured


BUSY = """
import sys, time
from modelscope_cli.shell import console, live
live.Busy._DELAY_S = {delay}
live._LiveLine._INTERVAL_S = 0.01
console.begin(())
console.begin_work()
list(console.PROGRESS.track([1], "activations", 1))
time.sleep(0.5)
console.note("a note")
time.sleep(0.2)
console.write("result\\n")
time.sleep(0.2)
console.end()
"""


def test_what_takes_long_says_so_until_there_is_something_to_say():
    raw = test_live_line.on_a_terminal(BUSY.format(delay=0.05))
    assert " activations, 0 s" in raw
    assert " s" not in raw.partition("result")[2]
    assert test_live_line.screen(raw) == ["a note", "result", ""]


def test_what_is_quick_says_nothing():
    assert test_live_line.on_a_terminal(BUSY.format(delay=60)) == "a note\r\nresult\r\n"


NOTES = """
from modelscope_cli.shell import console
from modelscope_cli.errors import ModelscopeError
console.begin(())
console.note("images: " + "IMAGENET1K_V1 " * 12)
console.warn("weights: " + "IMAGENET1K_V1 " * 12)
console.fail(ModelscopeError("cannot load " + "IMAGENET1K_V1 " * 12, "modelscope " + "IMAGENET1K_V1 " * 12))
"""


def test_notes_and_warnings_break_between_words_and_hints_never():
    lines = re.sub(r"\x1b\[[\d;]*m", "", test_live_line.on_a_terminal(NOTES)).splitlines()
    words = [word for line in lines[:-1] for word in line.split()]
    assert set(words) == {"images:", "weights:", "warning:", "error:", "cannot", "load", "IMAGENET1K_V1"}
    assert len(lines) == 2 + 2 + 2 + 1 + 1  # 170 characters in 80 columns, an empty line, the hint
    assert lines[-1].startswith("hint: modelscope IMAGENET1K_V1")
    assert len(lines[-1]) > 100


def test_a_column_has_the_heading_on_the_screen_too(run):
    by_heading = run("weights {samples}/sick.safetensors --stats --columns 'Name, abs MAX,size'")
    assert (
        by_heading.out == run("weights {samples}/sick.safetensors --stats --columns name,abs_max,bytes").out
    )
    assert (
        ": did you mean abs_max" in run("weights {samples}/sick.safetensors --columns abs_mx", expect=2).err
    )
    assert "unknown column" not in run("diff a.json b.json --columns A,B", expect=2).err


@pytest.mark.parametrize("command", VIEWS)
def test_a_heading_names_its_own_column_and_no_other(command):
    columns = view_for(command).columns
    for column in filter(lambda one: one.title, columns):
        found = find_column(columns, column.title, "", "")
        assert column.title == found.title or column.key == found.key  # two tables may have one key
        assert find_column(columns, column.key, "", "").key == column.key


def test_the_same_number_has_the_same_heading_in_every_command():
    """A key such as `std_last`, which means one thing, is one heading wherever it stands."""
    headings: dict[str, set[str]] = {}
    for command in ("stats", "train", "watch", "predict", "ablate", "diff"):
        for column in view_for(command).columns:
            headings.setdefault(column.key, set()).add(column.title)
    shared = (
        "mean_first",
        "mean_last",
        "std_first",
        "std_last",
        "grad_norm_last",
        "near_zero",
        "kl_divergence",
    )
    assert {key: headings[key] for key in (*shared, "accuracy") if len(headings[key]) > 1} == {}


def test_a_column_has_its_name_in_json_too(run):
    line = "grads {healthy} {star} --size 32 --no-save"
    assert (
        run(f"{line} --columns name,grad_norm,zero_fraction").out
        == run(f"{line} --columns name,norm,zero").out
    )
    (row, *_) = run(f"{line} --json").json["parameters"]
    (first, *_) = run(f"{line} --columns 'name,|G|'").rows
    assert float(first["norm"]) == row["grad_norm"]


def test_columns_help_lists_them(run):
    out = run("stats --columns help").out.splitlines()
    assert "name       layer" in out
    assert len(out) == len({line.split()[0] for line in out}) > 10


_DIFF = """
from modelscope_cli.shell.app import run
run(["diff", {a!r}, {b!r}, *{more!r}])
"""


@pytest.mark.parametrize("more", [[], pytest.param(["--all"], marks=pytest.mark.slow)])
def test_a_diff_of_many_tensors_is_folded_unless_all_are_asked_for(tmp_path, more):
    import torch

    paths = [str(tmp_path / f"{name}.pt") for name in "ab"]
    for n, path in enumerate(paths):
        torch.save({f"layer{k}.weight": torch.full((2, 2), 1.0 + n * k) for k in range(40)}, path)
    text = re.sub(
        r"\x1b\[[\d;]*m", "", test_live_line.on_a_terminal(_DIFF.format(a=paths[0], b=paths[1], more=more))
    )
    shown = {int(k) for k in re.findall(r"^layer(\d+)\.weight", text, re.MULTILINE)}
    assert len(shown) == (40 if more else 20)
    assert shown >= set(range(30, 40))  # the largest changes
    assert ("hidden" in text) == (not more)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("name,norm,ratio,findings", "name,norm,ratio"),
        ("findings,name,norm", "name,norm"),
        ("name,nrm,ratio", "name,norm,ratio"),
    ],
)
def test_the_hint_for_an_unknown_column_repeats_no_column(run, typed, meant):
    line = f"grads squeezenet1_1 -w none --input-shape 1,3,64,64 --columns {typed}"
    assert f"--columns {meant} " in run(line, expect=2).err
