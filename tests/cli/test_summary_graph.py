"""`summary --graph`, and the columns that are measured: what is typed, written and refused."""

import json
import os
import re
from xml.etree import ElementTree as ET

import pytest

import modelscope_cli as ms

NETS = """
import torch
from torch import nn

class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(3, 3)
    def forward(self, x):
        return self.b(self.a(x))
"""


def words(file):
    """Return the texts of an SVG of matplotlib, which has them as comments beside their letters."""
    return re.findall("<!-- (.*?) -->", file.read_text())


@pytest.mark.drawn
@pytest.mark.parametrize(("name", "start"), [
    ("net.svg", b"<?xml"), ("net.png", b"\x89PNG"), ("net.dot", b"digraph"), ("net.mmd", b"flowchart TB"),
])  # fmt: skip
def test_the_suffix_is_the_format(run, cwd, name, start):
    run(f"summary {{TINY}} --graph {name}")
    assert (cwd / name).read_bytes().startswith(start)


def test_the_page_of_a_summary_has_the_graph_whenever_it_is_made(run, cwd):
    run("summary {TINY} --html page.html -o net.json")
    run("report net.json --html again.html")
    page = (cwd / "page.html").read_text()
    assert re.search(
        '<img src="data:image/[^>]* alt="[^"]* calls in the order of execution. largest MACs: ', page
    )
    assert page == (cwd / "again.html").read_text()
    assert ms.read("page.html").flow.edges
    run("summary {TINY} -o plain.json")
    run("report plain.json --html plain.html")
    assert "<img" not in (cwd / "plain.html").read_text()


@pytest.mark.parametrize(("options", "code", "said"), [
    ("--graph net.html", 2, "does not end in one of .png, .svg, .pdf, .dot, .mmd\n\nhint: --graph net.svg"),
    ("--graph net", 2, "hint: --graph net.svg"),
    ("--color params", 2, "hint: --graph model.svg --color params"),
    ("--graph net.svg --color zeros", 2, "did you mean zero"),
    ("--graph there.svg", 2, "'there.svg' already exists"),
    ("--graph no/net.svg", 4, "there is no folder 'no'"),
    ("--graph folder.svg", 4, "it is a folder"),
    ("--weights auto", 2, "has no effect: no column"),
    ("--columns name,tim", 2, "did you mean time"),
])  # fmt: skip
def test_what_is_refused_costs_nothing(run, cwd, monkeypatch, options, code, said):
    (cwd / "there.svg").write_text("kept")
    (cwd / "folder.svg").mkdir()
    monkeypatch.setattr("modelscope_cli.analysis.summary.summary.measure_shapes", None)
    outcome = run(f"summary {{TINY}} {options}", expect=code)
    assert said in outcome.err
    assert (cwd / "there.svg").read_text() == "kept"
    assert sorted(os.listdir(cwd)) == ["folder.svg", "there.svg"]


def test_a_file_that_is_there_is_replaced_with_force(run, cwd):
    (cwd / "there.svg").write_text("old")
    run("summary {TINY} --graph there.svg --force")
    ET.parse("there.svg")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
def test_a_full_disk_is_reported(run, cwd):
    os.symlink("/dev/full", "full.svg")
    assert "cannot write 'full.svg'" in run("summary {TINY} --graph full.svg", expect=4).err


@pytest.mark.drawn
def test_a_forward_that_raises_is_drawn_up_to_there(run, cwd):
    (cwd / "nets.py").write_text(NETS)
    outcome = run("summary nets.py:Fails --input-shape 1,4 --graph net.svg", expect=4)
    assert "forward raised in b (Linear)" in outcome.err
    assert "Linear · raised an error" in words(cwd / "net.svg")


@pytest.mark.drawn
def test_measured_columns_are_there_where_they_are_asked_for(run, cwd):
    assert list(run("summary {TINY} --columns name,time,zero,gradient").rows[1]) == [
        *("name", "time", "zero", "gradient")
    ]
    assert not {"time", "zero", "gradient"} & set(run("summary {TINY}").rows[0])
    by_time = run("summary {TINY} --sort time").rows
    times = [float(row["time"]) for row in by_time]
    assert times == sorted(times, reverse=True)
    assert "zero" not in by_time[0]
    run("summary {TINY} --graph net.svg --color zero")
    assert "zeros of a call" in words(cwd / "net.svg")


@pytest.mark.drawn
def test_what_is_kept_is_kept_for_a_graph_by_itself(run, cwd, tmp_path, monkeypatch):
    monkeypatch.setenv("MSCOPE_CACHE", str(tmp_path / "cache"))
    run("summary squeezenet1_1")
    run("summary squeezenet1_1 --graph net.svg")
    first = words(cwd / "net.svg")
    outcome = run("summary squeezenet1_1 --graph net.svg --force")
    assert "cached result" in outcome.err
    assert words(cwd / "net.svg") == first
    for _ in range(2):
        measured = run("summary squeezenet1_1 --input-shape 1,3,32,32 --columns name,time")
        assert "cached" not in measured.err
    kept = [json.loads(file.read_text()) for file in (tmp_path / "cache" / "summary").iterdir()]
    assert sorted(one["document"]["flow"] is None for one in kept) == [False, True]
