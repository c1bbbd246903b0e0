"""`summary --graph`, and the columns that are measured: what is typed, written and refused."""

import os
import re

import pytest

import modelscope_cli as ms


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
    ("--graph net.html", 2, "does not end in one of .png, .svg, .pdf\n\nhint: --graph net.png"),
    ("--graph net", 2, "hint: --graph net.png"),
    ("--graph there.svg", 2, "'there.svg' already exists"),
    ("--graph no/net.svg", 4, "there is no folder 'no'"),
    ("--graph folder.svg", 4, "it is a folder"),
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
