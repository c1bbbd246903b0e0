"""`modelscope report`, `--html`, and what takes a page: read, diff, check --baseline."""

import json
import shlex
from pathlib import Path

import pytest
from made_trainings import watch_document

from modelscope_cli.report.page import results
from modelscope_cli.shell.app import run

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet -c {SAMPLES}/sick.safetensors --size 32"
STAR = f"{SAMPLES}/star.png"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")


@pytest.fixture
def watched():
    """Two folders of `watch`, with a loss that is not the same."""
    for seed, name in enumerate(("old", "new")):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "report.json").write_text(json.dumps(watch_document(seed=seed)), encoding="utf-8")


def typed(line):
    return run(shlex.split(line))


def test_a_folder_gets_its_page_and_a_page_of_ours_is_renewed(watched, capsys):
    assert typed("report runs/old") == 0
    page = Path("runs/old/report.html").read_bytes()
    out, err = capsys.readouterr()
    assert "runs/old/report.html" in out
    assert "wrote runs/old/report.html" in err
    assert typed("report runs/old") == 0
    assert Path("runs/old/report.html").read_bytes() == page


def test_what_is_not_a_page_of_ours_is_not_replaced(watched, capsys):
    Path("runs/old/report.html").write_text("<html>mine</html>")
    assert typed("report runs/old") == 2
    assert "already exists" in capsys.readouterr().err
    assert Path("runs/old/report.html").read_text() == "<html>mine</html>"
    assert typed("report runs/old --force") == 0


def test_images_are_taken_from_beside_a_result_and_not_from_where_it_says():
    typed(f"featuremaps {TINY} {STAR} --layer conv --out mine -q")
    document = json.loads(Path("mine/report.json").read_text(encoding="utf-8"))
    Path("handed").mkdir()
    Path("handed/report.json").write_text(json.dumps(document | {"out_dir": str(Path("mine").resolve())}))
    assert typed("report handed -q") == 0
    assert "<img" not in Path("handed/report.html").read_text(encoding="utf-8")
    for name in ("../mine/002_conv.png", str(Path("mine/002_conv.png").resolve())):
        Path("handed/report.json").write_text(json.dumps(document | {"files": [name]}))
        assert typed("report handed -q") == 0
        assert "<img" not in Path("handed/report.html").read_text(encoding="utf-8")
    Path("mine/002_conv.png").rename("handed/002_conv.png")
    Path("handed/report.json").write_text(json.dumps(document))
    assert typed("report handed -q") == 0
    assert "<img" in Path("handed/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("content", "code", "words"), [
    (None, 4, "there is no 'it.json'"),
    ("{", 4, "neither a page nor JSON"),
    ("[]", 4, "not a result of modelscope"),
    ('{"schema": "modelscope/watch/1"}', 4, "not a result of modelscope"),
    ("<html></html>", 4, "not a page of modelscope"),
    ('<script type="application/json" id="modelscope-data">{}</script>', 4, "its data is damaged"),
])  # fmt: skip
def test_what_is_not_a_result_is_refused(content, code, words, capsys):
    if content is not None:
        Path("it.json").write_text(content)
    assert typed("report it.json") == code
    err = capsys.readouterr().err
    assert words in err
    assert "hint: " in err
    assert not Path("it.html").exists()


@pytest.mark.parametrize(("line", "code", "words"), [
    ("report empty", 4, "holds no report.json"),
    ("diff runs/old runs/stats.json", 2, "give two results of one command"),
    ("report runs/old --html there", 2, "does not end in .html"),
    ("summary x.py:Net -o page.html", 2, "hint: leave out --output page.html   --html"),
    ("report runs/old --html nowhere/page.html", 4, "there is no folder 'nowhere'"),
])  # fmt: skip
def test_what_cannot_be_done_is_said(line, code, words, watched, capsys):
    Path("empty").mkdir()
    typed(f"stats {TINY} {STAR} -o runs/stats.json -q")
    assert typed(line) == code
    assert words in capsys.readouterr().err
    assert not [*Path().glob("*.html")]


def test_a_large_page_is_noted_and_a_larger_one_refused_without_force(watched, monkeypatch, capsys):
    monkeypatch.setattr(results, "NOTED", 1000)
    assert typed("report runs/old") == 0
    assert "opens slowly" in capsys.readouterr().err
    monkeypatch.setattr(results, "REFUSED", 2000)
    assert typed("report runs/new") == 2
    assert "--force" in capsys.readouterr().err
    assert not Path("runs/new/report.html").exists()
    assert typed("report runs/new --force") == 0


def test_a_page_of_check_is_not_a_baseline(capsys):
    assert typed(f"check {TINY} {STAR} --html known.html --fail-on warning -q") == 1
    capsys.readouterr()
    before = Path("known.html").read_bytes()
    assert typed(f"check {TINY} {STAR} --baseline known.html") == 4
    assert "hint: --baseline known-known.json --update-baseline" in capsys.readouterr().err
    assert typed(f"check {TINY} {STAR} --baseline known.html --update-baseline") == 2
    assert Path("known.html").read_bytes() == before


def test_a_page_opens_none_of_the_images_that_its_result_names():
    """Anyone who sends a result could otherwise have files of the reader put into a page."""
    assert typed(f"predict {TINY} {SAMPLES}/shapes --truth folders -q -o own.json") == 0
    assert typed("report own.json") == 0
    page = Path("own.html").read_text(encoding="utf-8")
    assert "opens none of the files that its result names" in page
    assert "The wrong predictions" not in page
