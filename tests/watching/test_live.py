"""What is shown of a run while it goes: the page of `--html`."""

import math

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.shell.app import run as run_argv
from modelscope_cli.watching.watcher import Redraw

LOOP = """
import pathlib, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(2, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
page = pathlib.Path("live.html")
print(page.exists() and page.read_text().count('http-equiv="refresh"'))
print(sum(p.sum().item() for p in model.parameters()))
"""


@pytest.fixture
def at_once(monkeypatch):
    """Redraw after every step."""
    every = Redraw.every
    monkeypatch.setattr(Redraw, "every", lambda seconds, draw: every(0, draw))
    monkeypatch.setattr(Redraw, "is_due", lambda self: self.due < float("inf"))


@pytest.mark.slow
def test_the_page_is_renewed_while_the_script_runs_and_closed_afterwards(
    at_once, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(LOOP)
    outcome = []
    for options in ([], ["--html", "live.html"]):
        argv = ["watch", "-o", "t.tsv", "--force", "--out", f"run{len(options)}", *options, "loop.py"]
        assert run_argv(argv) == 0
        outcome.append(capsys.readouterr().out.split())
    (was_there, bare), (renewed, watched) = outcome
    assert (was_there, renewed) == ("False", "1")
    assert bare == watched  # the trained weights are the same
    page = (tmp_path / "live.html").read_text()
    assert 'http-equiv="refresh"' not in page
    assert "in progress" not in page
    assert not ms.read(tmp_path / "live.html").is_running


def train(steps=24, **keywords):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ms.watch(model, optimizer, **keywords) as watched:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(2, (16,)))
            loss.backward()  # the gradients are never cleared
            optimizer.step()
    return watched, torch.cat([p.flatten() for p in model.parameters()])


def test_nothing_is_shown_outside_a_notebook(capsys):
    train(2)
    assert capsys.readouterr() == ("", "")


def test_seconds_between_two_and_a_twentieth_of_the_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("modelscope_cli.watching.watcher.time.monotonic", lambda: now[0])
    redraw = Redraw.every(5, lambda record: now.__setitem__(0, now[0] + record))
    assert not redraw.is_due()
    now[0] = 105.0
    assert redraw.is_due()
    redraw(lambda: 0.1, print)
    assert redraw.due == pytest.approx(105.1 + 5)
    redraw(lambda: 2.0, print)
    assert redraw.due == pytest.approx(107.1 + 38)


@pytest.mark.parametrize("what", ["the loss", "a layer"])
def test_the_live_line_says_of_nan_what_the_verdict_says(monkeypatch, what):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lines = []
    with ms.watch(model, optimizer, every=1) as watched:
        watched._watcher._show = lines.append
        for step in range(6):
            factor = math.nan if step >= 3 else 1.0
            scores = model(torch.randn(16, 4) * (factor if what == "a layer" else 1.0))
            loss = nn.functional.cross_entropy(scores, torch.randint(2, (16,)))
            optimizer.zero_grad()
            (loss * factor).backward()
            optimizer.step()
    (birth, *_), finding = watched.record().births, watched.findings[0]
    assert birth.step == finding.since_step == 3
    assert "since" not in lines[2]
    assert all(line.endswith(f"since step 3: {birth.words}") for line in lines[3:])
