"""The keys of every document and the columns of every TSV, kept as files. `--update-golden` rewrites them."""

import csv
import io
import json
import shlex
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from documents import assert_fits
from undrawn import DRAWN

from modelscope_cli.errors import UsageError
from modelscope_cli.plain_text import spreadsheet_cell
from modelscope_cli.report.formats import _cell
from modelscope_cli.report.sheet import Value
from modelscope_cli.report.views import figures_of, sheet_of
from modelscope_cli.shell.app import run
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.overview import COMMANDS

pytestmark = pytest.mark.usefixtures("undrawn")

HERE = Path(__file__).parent / "contract"
SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"-m {SAMPLES}/tiny_resnet.py:TinyResNet -c {SAMPLES}/tiny_resnet.safetensors"
LINES = {
    "ablate": f"ablate {SAMPLES}/star.png {TINY} -l block3.conv2 --by-channel --no-save "
    "--hook scale=2@block1.conv1",
    "attack": f"attack {SAMPLES}/star.png {TINY} --steps 1 --hook scale=1@block1.conv1",
    "check": f"check {SAMPLES}/tiny_resnet.py:TinyResNet {SAMPLES}/star.png -w none --max-params 1000",
    "check_images": f"check {SAMPLES}/shapes {SAMPLES}/../docs/pictures --against {SAMPLES}/shapes/star",
    "diff": f"diff {SAMPLES}/tiny_resnet.safetensors {SAMPLES}/sick.safetensors",
    "diff_run": f"diff {SAMPLES}/tiny_resnet.py:TinyResNet {SAMPLES}/star.png -c {SAMPLES}/tiny_resnet.safetensors "
    "--tolerance 0 --b-dtype bfloat16 --hook scale=1@block1.conv1",
    "explain": f"explain --force {SAMPLES}/star.png {SAMPLES}/star.png {TINY} --method hirescam,input-x-gradient "
    "--box 10,10,90,90 --require border>0 --save-tensors maps.safetensors --size 32 --batch 64 "
    "--hook scale=1@block1.conv1",
    "featuremaps": f"featuremaps {SAMPLES}/star.png {TINY} -l conv --max-channels 2 --hook scale=1@block1.conv1",
    "featuremaps_top": f"featuremaps {SAMPLES}/star.png {SAMPLES}/harbour.jpg {TINY} -l conv --max-channels 2 "
    "--top-images 2",
    "grads": f"grads {SAMPLES}/star.png {SAMPLES}/star.png {TINY} --mode train --clip 1 --train-only head "
    "--hook grad:scale=1@head --no-save",
    "lrfind": f"lrfind -m {SAMPLES}/tiny_resnet.py:TinyResNet --steps 12 --pictures 40 --size 16 --batch 4",
    "models": "models alexnet",
    "predict": f"predict {SAMPLES}/star.png {TINY} --top 2 --hook scale=1@block1.conv1",
    "predict_truth": f"predict {SAMPLES}/star.png {SAMPLES}/harbour.jpg {TINY} --truth {HERE}/predict_truth.csv",
    "predict_doctor": f"predict --doctor {SAMPLES}/star.png {TINY}",
    "prune": f"prune --force {SAMPLES}/star.png {TINY} --save-weights pruned.safetensors --sweep 0.5 "
    "--hook scale=1@block1.conv1",
    "report": f"report {HERE.parent}/summary.json --html page.html",
    "rules": "rules",
    "stats": f"stats {SAMPLES}/star.png {TINY} --mode train --batch 1 --correlation -l conv "
    "--hook scale=1@block1.conv1",
    "stats_blocks": f"stats --force {SAMPLES}/star.png {SAMPLES}/star.png {TINY} --batch 1 --out kept",
    "summary": f"summary {SAMPLES}/tiny_resnet.py:TinyResNet --html summary.html",
    "train": f"train -m {SAMPLES}/tiny_resnet.py:TinyResNet --steps 3 --pictures 40 --size 16 --batch 4 "
    "--vary lr=0.1,1e12",  # one of them with findings
    "verify": "verify kept",
    "watch": f"watch --steps 3 {SAMPLES}/train.py",
    "weights": f"weights {SAMPLES}/tiny_resnet.safetensors --stats",
    "weights_scan": f"weights {SAMPLES} --scan",
}
ENDS_WITH_A_FINDING = {"check", "diff", "diff_run"}


def keys(value, path=""):
    """Return every path in a document: `layers[].name`; what a list holds is one path, whatever its length."""
    if isinstance(value, dict):
        return {path, *(found for key, item in value.items() for found in keys(item, f"{path}.{key}"))}
    if isinstance(value, list):
        return {path, *(found for item in value for found in keys(item, f"{path}[]"))}
    return {path}


@pytest.fixture
def printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run_it(line):
        assert run(shlex.split(line)) == (1 if line.partition(" ")[0] in ENDS_WITH_A_FINDING else 0)
        return capsys.readouterr().out

    return run_it


@pytest.fixture
def records(monkeypatch):
    """The records that were printed, in that order."""
    seen = []

    def remember(where, sheet, record, more=None):
        seen.append(record)
        emit(where, sheet, record, more)

    for name in COMMANDS:
        module = import_module(f"modelscope_cli.commands.{name}.command")
        if hasattr(module, "emit"):
            monkeypatch.setattr(module, "emit", remember)
    return seen


class Cells(HTMLParser):
    """The texts of a table's cells, row by row."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.open, self.tags = [], [], set()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
            self.is_gap = ("class", "gap") in attrs
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "tr" and self.is_gap:
            self.rows.pop()

    def handle_data(self, text):
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += text


def _cell_of_tsv(value):
    text = " ".join(_cell(value).split())
    return spreadsheet_cell(text) if isinstance(value, str) else text


def look_at_it_in_python(record, tsv):
    """Hold what a record shows in Python against what its command printed."""
    keys, *cells = csv.reader(io.StringIO(tsv), delimiter="\t", quoting=csv.QUOTE_NONE)
    rows = record.to_rows()
    assert all(list(row) == keys for row in rows)
    assert all(isinstance(value, Value) for row in rows for value in row.values())
    texts = [[_cell_of_tsv(value) for value in row.values()] for row in rows]
    assert [row for row in cells if row not in texts] == []
    assert len(texts) == len(cells) or record.command == "diff"  # which prints only what differs

    labels = [label for label, _ in record.labelled()]
    assert list(record) == [record[n] for n in range(len(record))]
    assert all(record[label] in record for label in labels if labels.count(label) == 1)
    with pytest.raises(KeyError):
        record["no such row"]

    sheet = sheet_of(record)
    shown = Cells(record._repr_html_())
    assert len(shown.rows) == 1 + len(sheet.rows)
    assert [row[0] for row in shown.rows[1:]] == sheet.columns[0].cells(sheet.rows)
    assert "script" not in shown.tags
    assert sheet.title.splitlines()[0] in str(record)

    is_undrawn = record.command == "predict" and getattr(record, "truth", None) is None
    if hasattr(figures_of(record.command), "FIGURES") and not is_undrawn:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("matplotlib.figure.Figure", DRAWN)
            assert record.plot().axes
        with pytest.raises(UsageError, match="is not a figure"):
            record.plot(picture="nonsense")
    else:
        with pytest.raises(UsageError, match=r"does not draw|draws a figure only"):
            record.plot()


def test_every_command_is_here():
    without_a_table = {"demo", "help", "schema"}
    assert {name.partition("_")[0] for name in LINES} == set(COMMANDS) - without_a_table


@pytest.mark.parametrize("name", LINES)
def test_no_key_and_no_column_went_away_or_came_unseen(name, printed, records, request):
    command, _, arguments = LINES[name].partition(" ")
    if name == "verify":
        printed(LINES["stats_blocks"])
    document = json.loads(printed(f"{command} --json {arguments}"))
    tsv = printed(f"{command} --format tsv {arguments}")
    look_at_it_in_python(records[-1], tsv)
    assert_fits(document)
    header = tsv.partition("\n")[0]
    found = "\n".join([*sorted(keys(document) - {""}), "", *header.split("\t"), ""])
    golden = HERE / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")
