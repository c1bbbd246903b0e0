"""How a table is asked for on the command line: `--sort`, `--top`, `--all`, and what a terminal makes of it."""

import io
import re

import pytest
import test_live_line
from rich.console import Console

from modelscope_cli.commands.stats.table import stats_sheet
from modelscope_cli.commands.summary.table import summary_sheet
from modelscope_cli.report.fold import MOST_ROWS, fold
from modelscope_cli.report.table import render_table

RESNET = "resnet101 --input-shape 1,3,64,64"


def at_width(sheet, width, **traits):
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, **traits)
    console.print(render_table(sheet, width, fold(sheet)))
    return console.file.getvalue()


def test_the_largest_rows_of_a_tree_stand_first_with_whole_names(run):
    rows = run("summary resnet18 --sort params --top 4 -f table --columns name,params").out.splitlines()[3:7]
    names = [row.split()[0] for row in rows]
    assert names == ["ResNet", "layer4", "layer4.1", "layer4.0"]


def test_sort_and_top_are_for_rows_and_json_has_all_in_order(run):
    outcome = run("summary {TINY} --sort params --top 2 --json")
    assert outcome.json["layers"] == run("summary {TINY} --json").json["layers"]
    assert len(run("summary {TINY} --sort params --top 2").rows) == 2


@pytest.mark.parametrize("format", ["csv", "markdown", "tsv", "table"])
def test_every_format_of_rows_is_sorted(run, format):
    out = run(f"stats {{star}} {{healthy}} -l relu --columns name --sort zero --top 1 -f {format}").out
    by_zero = max(run("stats {star} {healthy} -l relu").rows, key=lambda row: float(row["zero"]))
    names = set(run("stats {star} {healthy} -l relu").column("name"))
    assert {name for name in names if name in out.replace("\\", "").split()} or by_zero["name"] in out
    assert by_zero["name"] in out


def test_values_that_are_only_sorted_by_are_measured(run):
    names = run("stats {star} {healthy} --columns name --sort mad").column("name")
    rows = run("stats {star} {healthy} --columns name,mad").rows
    assert names == [row["name"] for row in sorted(rows, key=lambda row: -float(row["mad"]))]
    assert run("weights {samples}/tiny_resnet.safetensors --columns name --sort std --top 1").rows


@pytest.mark.parametrize("line", [
    "summary resnet18",
    "stats {star} {tiny}",
    "grads {star} {tiny} --no-save",
    "predict {star} {tiny}",
    "predict --doctor {star} {tiny}",
    "ablate {star} {tiny} --no-save",
    "check {TINY}",
    "weights {samples}/tiny_resnet.safetensors",
    "weights --scan {samples}",
    "diff {TINY} {TINY}",
    "explain {star} {tiny} --no-save",
    "watch {samples}/train.py",
    "featuremaps {star} {tiny}",
    "prune {star} {tiny}",
    "models resnet",
])  # fmt: skip
def test_a_column_that_is_not_there_is_refused(refused, line):
    script = line.startswith("watch")
    line = line.replace("watch", "watch --sort nothing") if script else f"{line} --sort nothing"
    error, hint = refused(line, 2)
    assert "unknown column 'nothing' in --sort 'nothing'" in error
    assert hint.startswith("hint: --sort ")


def test_a_pipe_and_a_file_have_every_row(run, cwd):
    n = len(run(f"summary {RESNET} --json").json["layers"])
    assert n > 5 * MOST_ROWS
    assert len(run(f"summary {RESNET}").rows) == n
    run(f"summary {RESNET} -o all.txt")
    assert len((cwd / "all.txt").read_text().splitlines()) > n


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_deep_model_fits_on_some_screens_with_type_and_params(width):
    import modelscope_cli as ms

    sheet = summary_sheet(ms.summary("resnet152"))
    lines = at_width(sheet, width).splitlines()
    assert len(lines) < MOST_ROWS + 20
    assert max(map(len, lines)) <= width
    assert {"type", "output", "params", "MACs"} <= set(lines[2].split())
    assert any(re.match(r"⋯ \d+ rows", line) for line in lines)
    assert any(line.startswith("folded: ") and "--all" in line for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_type_and_zero_stay_where_names_are_long(width):
    import torch
    from torch import nn

    import modelscope_cli as ms

    model = nn.Sequential()
    inner = model
    for name in ("backbone", "body", "a_very_long_stage_name", "downsample"):
        inner.add_module(name, nn.Sequential())
        inner = getattr(inner, name)
    inner.add_module("convolution", nn.Conv2d(3, 4, 3))
    inner.add_module("rectifier", nn.ReLU())
    text = at_width(stats_sheet(ms.stats(model, torch.randn(2, 3, 8, 8))), width)
    header = text.splitlines()[2].split()
    assert {"type", "zero", "std", "mean"} <= set(header)
    assert "downsample.rectifier" in text  # the end of a name says most


def test_bad_cells_are_marked_and_coloured():
    import torch
    from torch import nn

    import modelscope_cli as ms

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    sheet = stats_sheet(ms.stats(model, torch.randn(8, 4)))
    plain = at_width(sheet, 100)
    assert "100.0 % !" in plain
    assert plain.count("!") == 2  # the zeros and the dead channels of the ReLU
    coloured = at_width(sheet, 100, force_terminal=True, color_system="standard")
    assert "\x1b[1;31m100.0 % !" in coloured


def test_a_reused_layer_stands_where_it_is_called(run):
    outcome = run("summary resnet18 -f table --all --columns name")
    names = [line.strip() for line in outcome.out.splitlines()]
    start = names.index("layer1") + 1
    assert names[start : start + 8] == ["0", "conv1", "bn1", "relu", "conv2", "bn2", "relu#1", "1"]
    assert "the second call of a layer" in outcome.out
    orders = [int(order) for order in run("summary resnet18 --columns order").column("order")]
    assert orders == sorted(orders)


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
