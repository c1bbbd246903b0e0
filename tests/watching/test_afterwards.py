"""Whatever fails once a training is over changes nothing about its exit code, and is said in one sentence."""

import errno
import json
import os
from pathlib import Path

import pytest

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records.progress import Silent
from modelscope_cli.report.page import results
from modelscope_cli.report.watch import figures
from modelscope_cli.shell.app import run
from modelscope_cli.watching import read_series, run_script, watcher

SCRIPT = """
import sys, torch
from torch import nn
model = nn.Linear(4, 3)
if "--vectors" in sys.argv:
    model.weight.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,))).backward()
    optimizer.step()
print("trained")
sys.exit(7)
"""


class Told(Silent):
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def fail(*args, **kwargs):
    raise IndexError("index 0 is out of bounds")


def watched(place, *arguments):
    (place / "train.py").write_text(SCRIPT)
    told = Told()
    record = ms.watch(str(place / "train.py"), arguments=arguments, out=place / "out", progress=told)
    assert record.exit_code == 7
    return record, told.warnings


BROKEN = {
    "the table": (figures, "render_csv", "layers.csv was not written"),
    "the page": (results, "save_result", "report.html was not written"),
    "reading": (read_series, "read_log", "the record could not be read"),
    "judging": (run_script, "read_record", "the record could not be read"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_mistake_of_ours_is_said_and_the_rest_is_written(tmp_path, monkeypatch, what):
    owner, name, said = BROKEN[what]
    monkeypatch.setattr(owner, name, fail)
    record, warnings = watched(tmp_path)
    assert any(said in one and "this is a bug in modelscope: IndexError: index 0" in one for one in warnings)
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert "log.jsonl" in found
    if what != "the page":
        assert json.loads((tmp_path / "out" / "report.json").read_text())["exit_code"] == 7
    assert record.steps == 3


def test_a_mistake_while_a_step_is_written_ends_no_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watcher.Watcher, "_write", fail)
    _, warnings = watched(tmp_path)
    assert capsys.readouterr().out == "trained\n"
    (one,) = {text for text in warnings if "recording stopped" in text}
    assert "this is a bug in modelscope" in one


@pytest.mark.parametrize("n", [3, 9])
def test_a_full_disk_ends_no_training(tmp_path, monkeypatch, capsys, n):
    write, calls = os.write, []

    def full(file, data):
        if data.startswith(b'{"'):
            calls.append(data)
            if len(calls) > n:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    _, warnings = watched(tmp_path)
    assert capsys.readouterr().out == "trained\n"
    assert "the log is incomplete: No space left on device" in warnings
    assert Path(tmp_path / "out" / "report.json").exists()


def test_a_report_made_later_goes_where_it_is_asked_for(tmp_path, monkeypatch, capsys):
    watched(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in Path("out").iterdir()}
    ms.watch(report="out", out="other")
    assert {path.name for path in Path("out").iterdir()} == before
    assert {"layers.csv", "report.html", "report.json", "gradients.png"} <= {
        path.name for path in Path("other").iterdir()
    }
    with pytest.raises(UsageError, match="'other' is not empty"):
        ms.watch(report="out", out="other")
    assert run(["watch", "--report", "out", "--out", "other"]) == 2
    assert "\nhint: modelscope watch --report out --out other --force\n" in capsys.readouterr().err
    assert run(["watch", "--report", "out", "--out", "other", "--force"]) == 0
    ms.watch(report="out", out="out")  # which holds the log
    assert "gradients.png" in {path.name for path in Path("out").iterdir()}
