"""`modelscope report`, `--html`, and what takes a page: read, diff, check --baseline."""

import json
import shlex
from pathlib import Path

import pytest
from made_trainings import watch_document

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
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


def test_a_page_is_made_of_a_page_as_of_its_folder(watched):
    assert typed("report runs/old --html a.html -q") == 0
    assert typed("report a.html --html b.html -q") == 0
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()


def test_a_file_of_json_gets_a_page_beside_it(watched):
    Path("runs/old/report.json").rename("mine.json")
    assert typed("report mine.json -q") == 0
    assert Path("mine.html").is_file()


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


@pytest.mark.parametrize(("what", "most"), [("REFUSED", 2000), ("_MOST_ROWS", 3)])
def test_a_folder_whose_page_would_be_too_large_says_how_to_make_it(what, most, monkeypatch):
    monkeypatch.setattr(results, what, most)
    assert typed(f"grads {TINY} {STAR} --out it -q") == 0
    assert "modelscope report FOLDER --force" in Path("it/report.html").read_text(encoding="utf-8")
    assert typed("report it --force -q") == 0
    assert "Activations" in Path("it/report.html").read_text(encoding="utf-8")


def test_a_guess_is_not_written_before_the_page_is_made(capsys):
    """Rows are not streamed then: there is a page at the end, with all of them."""
    model = f"-m {SAMPLES}/tiny_resnet.py:TinyResNet -c {SAMPLES}/tiny_resnet.safetensors"
    assert typed(f"predict {STAR} {SAMPLES}/harbour.jpg {model} --size 32 --top 1 --html page.html") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert len(ms.read("page.html").predictions) == 2


def test_a_read_result_is_the_record_again(watched):
    typed("report runs/old -q")
    record = ms.read("runs/old/report.html")
    assert record.run.command == "watch"
    assert record["layer1.0.conv1"].type == "ReLU"
    assert record.to_rows() == ms.read("runs/old").to_rows()
    assert record.to_html() == Path("runs/old/report.html").read_text(encoding="utf-8")
    with pytest.raises(CannotRunError):
        ms.read("nowhere.html")


def test_diff_compares_two_pages_number_by_number(watched, capsys):
    for name in ("old", "new"):
        typed(f"report runs/{name} --html {name}.html -q")
    assert typed("diff old.html runs/old") == 0
    capsys.readouterr()
    assert typed("diff old.html new.html --json") == 1
    document = json.loads(capsys.readouterr().out)
    rows = {(row["name"], row["figure"]): row for row in document["figures"]}
    old, new = (watch_document(seed=seed)["layers"][0]["series"]["std"][-1] for seed in (0, 1))
    row = rows["conv1", "std_last"]
    assert (row["a"], row["b"], row["status"]) == (old, new, "changed")
    assert row["rel_l2"] == pytest.approx(abs(old - new) / old)
    assert typed("diff old.html new.html --tolerance 1e9 --html diff.html -q") == 0
    assert 'alt="The relative difference of B from A' in Path("diff.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "option", ["--layer conv", "--mode train", "--b-dtype bfloat16", "--hook zero@conv1"]
)
def test_diff_passes_over_nothing_that_is_said_of_pages(option, watched, capsys):
    assert typed(f"diff runs/old runs/new {option}") == 2
    assert "saved results" in capsys.readouterr().err


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
    assert typed(f"predict {TINY} {SAMPLES}/shapes --truth folders -q --html own.html") == 0
    page = Path("own.html").read_text(encoding="utf-8")
    assert "opens none of the files that its result names" in page
    assert "The wrong predictions" not in page
