"""`modelscope report`, `--html`, and what takes a page: read, diff, check --baseline."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import safetensors.torch
import torch
from made_trainings import watch_document

import modelscope_cli as ms
from modelscope_cli.records.page_data import extract
from modelscope_cli.report.page import results
from modelscope_cli.report.page.html import element, joined, within
from modelscope_cli.shell.app import run

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet -c {SAMPLES}/sick.safetensors --size 32"
HEALTHY = TINY.replace("sick", "tiny_resnet").replace("--size 32", "--size 64")
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


def test_a_model_and_an_image_make_one_page_of_what_the_commands_say(capsys):
    assert typed(f"report {HEALTHY} {STAR} --html star.html --json") == 0
    out, err = capsys.readouterr()
    parts = json.loads(out)["pages"]
    every = ["predict", "explain", "check", "summary", "stats", "featuremaps", "grads"]
    assert [part["command"] for part in parts] == every
    (prediction,) = ms.read("star.html").predictions
    assert parts[0]["verdict"].startswith(f"{prediction.top[0].label}, ")
    assert parts[2]["verdict"].startswith("Passed: ")
    page = Path("star.html").read_text(encoding="utf-8")
    anchors = re.findall(r'<[^>]* id="([^"]*)"', page)
    assert len(anchors) == len({*anchors})
    links = re.findall(r'<[^>]* href="#([^"]*)"', page)
    assert {*links} <= {*anchors}
    filtered = re.findall(r'<[^>]* data-for="([^"]*)"', page)
    assert {*filtered} <= {*anchors}
    assert [one["schema"].rpartition("/")[0] for one in extract(page.encode())] == [
        f"modelscope/{name}" for name in every
    ]
    assert ms.read("star.html").command == "predict"
    assert err.count("preprocessing") <= 1
    Path("star").mkdir()
    Path("star/report.html").write_text(page, encoding="utf-8")
    for line in ("star.html", "star.html --html other.html", "star --force"):
        assert typed(f"report {line}") == 2
        assert "is a page of 7 results, which only their model can make again" in capsys.readouterr().err
    typed(f"stats {TINY} -o star/report.json -q")
    assert typed("report star") == typed("report star/report.json --html star.html") == 2
    assert "'star.html' already exists" in capsys.readouterr().err
    assert Path("star/report.html").read_text() == Path("star.html").read_text() == page
    assert not Path("other.html").exists()
    assert typed("report star --force") == 0


def test_without_an_image_the_page_says_what_needs_one(capsys):
    assert typed(f"report {TINY} -f tsv") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows[1:]} == {"runs/report-tiny_resnet.py-TinyResNet/report.html"}
    answers = {row[2]: row[4] for row in rows[1:]}
    assert [name for name, answer in answers.items() if answer == "not run: it needs an image"] == [
        *("predict", "explain", "featuremaps")
    ]
    assert "it needs an image" in Path(rows[1][0]).read_text(encoding="utf-8")


def test_random_weights_in_place_of_a_download_are_not_checked(capsys):
    assert typed("report squeezenet1_0 --input-shape 3,64,64 --html random.html --json") == 0
    answers = {one["command"]: one["verdict"] for one in json.loads(capsys.readouterr().out)["pages"]}
    assert answers["check"].startswith("not run: 'squeezenet1_0' has random weights")


def test_a_module_gets_a_page_from_python():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    record = ms.make_report(model, torch.ones(1, 3, 8, 8), html="mine.html")
    assert len(record.pages) == 7
    assert not any(one.verdict.startswith("not run") for one in record.pages)
    assert Path("mine.html").stat().st_size == record.pages[0].bytes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report", "missing argument 'MODEL'"),
        ("report sick", "'sick' is neither a model nor a folder"),
        ("report missing.json", "there is no 'missing.json'"),
        ("report runs/old star.png", "is a saved result: its images are in it"),
        (f"report {TINY} missing.png", "'missing.png' does not exist"),
        (f"report {TINY} --html page.txt", "does not end in .html"),
        (f"report {TINY.replace('--size 32', '--input-shape 7,32,32')} --html page.html", "7 channels"),
    ],
)
def test_mistakes_write_nothing(watched, capsys, line, message):
    before = sorted(Path.cwd().rglob("*"))
    assert typed(line) != 0
    assert message in capsys.readouterr().err
    assert sorted(Path.cwd().rglob("*")) == before


def test_anchors_of_a_part_change_in_tags_alone():
    body = element("p", ' id="a" href="#b"', id="a", title='href="#c"')
    link = element("a", "to a", href="#a")
    shown = within("stats", joined([body, link]))
    assert shown == joined(
        [
            element("p", ' id="a" href="#b"', id="stats-a", title='href="#c"'),
            element("a", "to a", href="#stats-a"),
        ]
    )


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
    ("[]", 4, "not a modelscope result"),
    ('{"schema": "modelscope/watch/1"}', 4, "not a modelscope result"),
    ("<html></html>", 4, "not a modelscope page"),
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
    ("report empty", 4, "contains neither report.json nor"),
    ("diff runs/old runs/stats.json", 2, "give two results of the same command"),
    ("report runs/old --html there", 2, "does not end in .html"),
    ("summary x.py:Net -o page.html", 2, "hint: modelscope summary x.py:Net   # --html"),
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
    assert "may open slowly" in capsys.readouterr().err
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
    assert " --baseline known-known.json --update-baseline " in capsys.readouterr().err
    assert typed(f"check {TINY} {STAR} --baseline known.html --update-baseline") == 2
    assert Path("known.html").read_bytes() == before


def test_a_page_opens_none_of_the_images_that_its_result_names():
    """Anyone who sends a result could otherwise have files of the reader put into a page."""
    assert typed(f"predict {TINY} {SAMPLES}/shapes --truth folders -q -o own.json") == 0
    assert typed("report own.json") == 0
    page = Path("own.html").read_text(encoding="utf-8")
    assert "page was made without the image files" in page
    assert "The wrong predictions" not in page


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_the_file_of_a_loaded_model_is_scanned(capsys):
    checkpoint = {"model": safetensors.torch.load_file(SAMPLES / "tiny_resnet.safetensors"), "extra": Evil()}
    torch.save(checkpoint, "evil.pt")
    model = TINY.split(maxsplit=1)[0]
    assert typed(f"report {model} {STAR} -c evil.pt --size 48 --html evil.html --json") == 0
    verdicts = {row["command"]: row["verdict"] for row in json.loads(capsys.readouterr().out)["pages"]}
    assert verdicts["check"].startswith("Failed with 1 error: MS001")
    findings = ms.check(ms.load(model, checkpoint="evil.pt"), size=48).findings
    assert "MS001" in [finding.code for finding in findings]


@pytest.fixture(scope="module")
def labels():
    return [f"kind-{n}" for n in range(10)]


def test_out_is_the_folder_of_the_page(watched, capsys):
    assert typed("report runs/old --out pages/new") == 0
    assert typed("report runs/old --html old.html") == 0
    assert Path("pages/new/report.html").read_bytes() == Path("old.html").read_bytes()
    assert typed("report runs/old --out pages/new") == 2
    hint = capsys.readouterr().err.rpartition("hint: modelscope ")[2].strip()
    assert typed(hint) == 0
    assert typed("report runs/old --out a --html b.html") == 2
    assert typed("report nowhere --out other") != 0
    assert not Path("other").exists()


def test_labels_are_on_all_parts_of_the_page_of_a_model(labels, capsys):
    assert typed(f"report {HEALTHY} {STAR} --labels {','.join(labels)} --out page --json") == 0
    answers = {page["command"]: page["verdict"] for page in json.loads(capsys.readouterr().out)["pages"]}
    assert re.search(r"kind-\d, ", answers["predict"])
    assert re.search(r"\d \(kind-\d\)", answers["explain"])
    text = Path("page/report.html").read_text()
    assert "triangle" not in text
    assert "kind-" in text


@pytest.mark.parametrize("n", [1, 9, 11])
@pytest.mark.parametrize("command", ["explain --no-save", "explain --target kind-8 --no-save", "report"])
def test_labels_of_another_number_of_classes_are_refused(command, n, labels, capsys):
    names = ",".join(f"kind-{number}" for number in range(n)) + ","[: n == 1]
    if "target" in command and n == 1:
        command = "explain --target 0 --no-save"
    name, *rest = command.split()
    assert typed(f"{name} {HEALTHY} {STAR} --labels {names} {' '.join(rest)}") == 4
    assert "labels, but the model has 10 classes" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_labels_of_a_saved_result_are_refused(watched, capsys):
    assert typed("report runs/old --labels a,b") == 2
    assert typed("report runs/old") == 0  # its hint


def test_the_label_names_the_target_of_an_explanation(labels, capsys):
    line = f"explain {HEALTHY} {STAR} --method hirescam --receipt none --no-save --json --labels {','.join(labels)}"
    for target, index in (("kind-3", 3), ("7", 7)):
        assert typed(f"{line} --target {target}") == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["target"], document["target_index"]) == (f"{index} (kind-{index})", index)


def test_ablate_writes_nothing_with_no_save(capsys):
    assert typed(f"ablate {HEALTHY} {STAR} -l head --no-save") == 0
    assert not Path("runs").exists()
    assert typed(f"ablate {HEALTHY} {STAR} -l head --no-save --out a") == 2


def test_a_folder_that_is_not_there_is_not_only_an_unknown_model(here, capsys):
    Path("my_result").mkdir()
    assert typed("report my_result2") == 2
    told = capsys.readouterr().err
    assert "'my_result2' is neither a model nor a folder with a saved result" in told
    assert "hint: modelscope report my_result   # or modelscope summary --list" in told
    assert typed("report resnt18") == 2
    assert "did you mean resnet18" in capsys.readouterr().err
