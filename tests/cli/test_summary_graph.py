"""`summary --graph`, and the columns that are measured: what is typed, written and refused."""

import json
import os
import re

import pytest

import modelscope_cli as ms


def words(file):
    """Return the texts of an SVG of matplotlib, which has them as comments beside their letters."""
    return re.findall("<!-- (.*?) -->", file.read_text())


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
