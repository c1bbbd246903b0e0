"""A second `summary` of a model of torchvision comes from the user's cache, and is the same."""

import json

import pytest

import modelscope_cli as ms


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MSCOPE_CACHE", str(tmp_path))
    return tmp_path / "summary"


def document(outcome):
    found = json.loads(outcome.out)
    return {key: value for key, value in found.items() if key not in ("elapsed_ms", "argv")}


def test_the_second_is_the_same_and_says_so(run, cache):
    first, second = (run("summary squeezenet1_1 --json") for _ in range(2))
    assert document(first) == document(second)
    assert "cached result" not in first.err
    assert second.err == first.err + "cached result\n"
    assert len(list(cache.iterdir())) == 1


def test_it_builds_nothing(run, cache, monkeypatch):
    table = run("summary squeezenet1_1 --format table").out
    monkeypatch.setattr(ms, "summary", None)
    assert run("summary squeezenet1_1 --format table").out == table


@pytest.mark.parametrize("option", [
    "--batch 2", "--depth 1", "--layer conv", "--freeze conv", "--input-shape 1,3,96,96", "--num-classes 10",
])  # fmt: skip
def test_every_option_has_a_summary_of_its_own(run, cache, option):
    plain = document(run("summary squeezenet1_1 --json"))
    changed = document(run(f"summary squeezenet1_1 --json {option}"))
    assert changed != plain
    assert document(run(f"summary squeezenet1_1 --json {option}")) == changed
    assert document(run("summary squeezenet1_1 --json")) == plain


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"notes": [], "document": {}}'])
def test_a_damaged_file_is_made_again(run, cache, damage):
    first = run("summary squeezenet1_1 --json")
    (kept,) = cache.iterdir()
    kept.write_text(damage)
    assert document(run("summary squeezenet1_1 --json")) == document(first)
    assert json.loads(kept.read_text())["document"]["schema"] == "modelscope/summary/1"


def test_what_may_change_is_not_kept(run, cache, monkeypatch):
    run("summary {TINY}")
    assert not cache.exists()
    monkeypatch.setenv("MSCOPE_CACHE", "0")
    run("summary squeezenet1_1")
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_to_is_not_an_error(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MSCOPE_CACHE", str(tmp_path / "file"))
    assert "squeezenet1_1" in run("summary squeezenet1_1 --format table").out
