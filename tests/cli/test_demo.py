"""`modelscope demo`: the samples, for an installation without a checkout."""

import shlex

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_samples_are_under_a_megabyte(here, run):
    assert run("demo").code == 0
    assert 100_000 < size(here / "demo") < 1_000_000
    assert len(list((here / "demo/shapes").glob("*/*.jpg"))) == 30


def test_a_folder_that_is_not_empty_is_kept_unless_forced(here, run):
    (here / "demo").mkdir()
    (here / "demo/mine.txt").write_text("mine")
    refused = run("demo", expect=2)
    hint = refused.err.rpartition("hint: ")[2].strip()
    assert run(shlex.join(shlex.split(hint)[1:])).code == 0
    assert (here / "demo/mine.txt").read_text() == "mine"
    assert run("demo --force").code == 0


def test_what_it_says_to_try_runs(here, run):
    tried = [line.partition("try: modelscope ")[2] for line in run("demo").err.splitlines() if "try:" in line]
    assert len(tried) == 3
    codes = [run(command, expect=None).code for command in tried[:2]]
    assert codes == [0, 1]  # the check fails on the sick sample
