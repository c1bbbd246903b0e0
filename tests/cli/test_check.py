"""`modelscope check`: exit codes, formats, settings, the baseline, and what is typed wrong."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from modelscope_cli.analysis.health.examine import Sources
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.findings import SourceLine

SAMPLES = Path(__file__).parents[2] / "samples"
HEALTHY = "check {TINY} -c {samples}/tiny_resnet.safetensors"
SICK = "check {TINY} -c {samples}/sick.safetensors"
QUICK = f"{SICK} {{star}} --select MS202,MS207"
KNOWN = {"code": "MS202", "layer": "relu"}


def codes(outcome):
    return [finding["code"] for finding in outcome.json["findings"]]


@pytest.mark.parametrize(("options", "code"), [
    ("", 0),
    ("--fail-on error", 0),
    ("--fail-on warning", 1),
    ("--fail-on warning --ignore MS2", None),
    ("--max-params 70k", 1),
    ("--max-params 70k --fail-on never", 0),
    ("--max-params 90k", 0),
    ("--max-macs 0.1G --fail-on error", 0),
    ("--max-macs 10M", 1),
    ("--max-memory 1MB", 1),
    ("--expect-output 1,1000", 1),
    ("--expect-output 1x10", 0),
    ("--set MS202=0.9 --fail-on warning --ignore MS207", 0),
    ("--set dead-channels=0.8 --fail-on warning --ignore batch-norm-drift", 1),
])  # fmt: skip
def test_the_exit_code_follows_the_findings(run, options, code):
    if code is None:
        run(f"{QUICK} {options}", expect=2)
        return
    outcome = run(f"{QUICK},MS5 {options} --json", expect=code)
    assert outcome.json["passed"] is (code == 0)


class _Runs:
    def __reduce__(self):
        return os.system, ("true",)


def test_code_in_a_checkpoint_is_annotated_once_in_that_file(run, cwd):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    torch.save({"state_dict": net.state_dict(), "x": _Runs()}, cwd / "evil.pth")
    built = "nn.Sequential(nn.Flatten(), nn.Linear(12, 3))"
    (cwd / "net.py").write_text(f"from torch import nn\ndef build():\n    return {built}\n")
    out = run("check net.py:build -c evil.pth --input-shape 1,3,2,2 -f github --select MS0", expect=1).out
    about = [line for line in out.splitlines() if "system" in line]
    assert len(about) == 1
    assert about[0].startswith("::error file=evil.pth,line=1,title=MS001")


NET = """import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu: nn.Module = nn.ReLU()
    def forward(self, x):
        return self.relu(self.conv(x) - 100)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = Block()
        self.later = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    def forward(self, x):
        return self.later(self.block1(x).mean((2, 3))) + 0 * x.sum()
"""


@pytest.mark.parametrize(("attribute", "layer", "line"), [
    ("Net", "block1.relu", 8),
    ("Net", None, 12),
    ("Net", "later", 16),
])  # fmt: skip
def test_findings_name_the_line_of_the_repository_that_makes_the_layer(
    cwd, monkeypatch, attribute, layer, line
):
    (cwd / "models").mkdir()
    (cwd / ".git").mkdir()
    (cwd / "models" / "net.py").write_text(NET)
    monkeypatch.chdir(cwd / "models")
    module = load_model(ModelRequest(model=f"net.py:{attribute}", device="cpu")).module
    assert Sources(module).find(layer) == SourceLine("models/net.py", line)


def test_annotations_carry_file_and_line(run, cwd):
    (cwd / "net.py").write_text(NET)
    line = "check net.py:Net --input-shape 2,3,40,40 --mode eval --select MS202"
    (finding,) = [
        one for one in run(f"{line} --json", expect=None).json["findings"] if one["layer"] == "block1.relu"
    ]
    assert finding["made_at"] == {"file": "net.py", "line": 8}
    first, *_ = run(f"{line} --format github", expect=None).out.splitlines()
    assert re.match(
        "::error file=net.py,line=8,title=MS202 dead-channels::block1.relu: the layer is dead", first
    )


def test_annotations_name_the_checkpoint(run):
    first, *_ = run(f"{QUICK} --format github").out.splitlines()
    assert "title=MS202 dead-channels (sick.safetensors)::" in first


def test_a_summary_of_the_step_is_appended(run, cwd, monkeypatch):
    page = cwd / "summary.md"
    page.write_text("what was there\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    run(f"{QUICK} --format github")
    run(f"{HEALTHY} --select MS1 --json")
    told = page.read_text()
    assert told.startswith("what was there\n### ")
    assert "| MS202 | warning | dead-channels | relu | 14 of 16 channels are always zero |" in told
    assert "verdict: passed with 3 warnings (only errors fail the check)" in told
    assert "verdict: passed: nothing found" in told
    (cwd / "cut.pth").write_bytes(b"PK")
    run("check {TINY} -c cut.pth", expect=4)
    run("summary no.py:Net", expect=4)
    last = page.read_text().rpartition("### ")[2]
    assert last.startswith("Not judged: modelscope check ")
    assert "error: 'cut.pth' is n" in last
    assert "hint: " in last
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(cwd / "nowhere" / "summary.md"))
    assert "warning: the job summary was not written" in run(f"{HEALTHY} --select MS1").err


def test_a_baseline_lets_only_new_findings_fail(run, cwd):
    written = run(f"{QUICK} --fail-on warning --ignore MS207 --baseline known.json --update-baseline")
    assert "wrote known.json: baseline of 1 finding" in written.err
    document = {
        "schema": "modelscope/baseline/2",
        "model": "TinyResNet",
        "findings": [{**KNOWN, "value": 0.875}],
    }
    assert json.loads((cwd / "known.json").read_text()) == document
    before = (cwd / "known.json").read_bytes()
    again = run(f"{QUICK} --fail-on warning --ignore MS207 --baseline known.json --json")
    assert [finding["known"] for finding in again.json["findings"]] == [True]
    new = run(f"{QUICK} --fail-on warning --baseline known.json --json", expect=1)
    assert {finding["code"] for finding in new.json["findings"] if not finding["known"]} == {"MS207"}
    assert (cwd / "known.json").read_bytes() == before


def test_a_baseline_that_is_not_there_is_an_error_and_the_hint_writes_it(run, cwd):
    refused = run(f"{QUICK} --fail-on warning --baseline typo.json", expect=4)
    assert "error: there is no baseline 'typo.json'" in refused.err
    assert not (cwd / "typo.json").exists()
    hint = refused.err.partition("hint: modelscope ")[2].strip()
    assert hint.endswith("--baseline typo.json --update-baseline")
    run(hint)
    run(f"{QUICK} --fail-on warning --baseline typo.json")


def write_known(path, *rows, version=2):
    path.write_text(json.dumps({"schema": f"modelscope/baseline/{version}", "findings": rows}))


def test_the_project_sets_and_flags_win(run, cwd):
    (cwd / "pyproject.toml").write_text(
        '[tool.modelscope]\nselect = "MS202"\nfail-on = "warning"\nmax-params = "1k"\n'
        "[tool.modelscope.thresholds]\ndead-channels = 0.9\n"
    )
    (cwd / "below").mkdir()
    outcome = run(f"{SICK} {{star}} --json", expect=1)
    assert f"settings: {cwd / 'pyproject.toml'}" in outcome.err
    assert codes(outcome) == [
        "MS501"
    ]  # not MS202, whose threshold is higher; the budget is kept beside `select`
    line = f"{SICK} {{star}} --max-params 1M"
    assert codes(run(f"{line} --json")) == []
    assert codes(run(f"{line} --set MS202=0.5 --json", expect=1)) == ["MS202"]
    assert codes(run(f"{line} --set MS202=0.5 --fail-on error --json")) == ["MS202"]
    assert codes(run(f"{SICK} {{star}} --select MS501 --json", expect=1)) == ["MS501"]
    assert codes(run(f"{SICK} {{star}} --select MS202 --json")) == []


@pytest.fixture
def project(cwd):
    """A project that names its model, checkpoint and images, all beside its pyproject.toml."""
    for name in ("tiny_resnet.py", "sick.safetensors", "tiny_resnet.safetensors", "star.png"):
        (cwd / name).symlink_to(SAMPLES / name)
    (cwd / "pyproject.toml").write_text(
        '[tool.modelscope]\nmodel = "tiny_resnet.py:TinyResNet"\ncheckpoint = "sick.safetensors"\n'
        'images = ["star.png"]\nselect = "MS202"\n'
    )
    return cwd


def about(outcome):
    model, given = outcome.json["model"], outcome.json["input"]
    return model["name"], model["weights"]["resolved"], given["source"]


def test_the_project_names_model_checkpoint_and_images(run, project, monkeypatch):
    outcome = run("check --json")
    assert about(outcome) == ("tiny_resnet.py:TinyResNet", "sick.safetensors", "image")
    assert codes(outcome) == ["MS202"]
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    assert about(run("check --json")) == ("../tiny_resnet.py:TinyResNet", "sick.safetensors", "image")
    with (project / "pyproject.toml").open("a") as file:
        file.write("size = 160\n")
    assert "centre crop 160," in run("check").err
    assert "centre crop 192," in run("check --size 192").err


BAD = [
    ("--select MS999", 2, "unknown rule 'MS999' in --select", "modelscope check --list"),
    ("--select dead-chanels", 2, "in --select", "--select dead-channels"),
    ("--ignore MS", 2, "'--ignore MS' leaves no rule", ""),
    ("--set MS202=nan", 2, "'--set MS202=nan' is not a number", "--set MS202=0.5"),
    ("--set MS202=1e9", 2, "'--set MS202=1e9' is above 1", "--set MS202=0.5"),
    ("--max-params lots", 2, "'--max-params lots' is not a count", "--max-params 25M"),
    ("--max-params 11.5", 2, "'--max-params 11.5' is not a count", "--max-params 11.5M"),
    ("--max-memory .5", 2, "'--max-memory .5' is not an amount of memory", "--max-memory .5MB"),
    ("--max-memory 5X", 2, "'--max-memory 5X' is not an amount of memory", "--max-memory 500MB"),
    ("--expect-output 1,a", 2, "'--expect-output 1,a' is not a shape", "--expect-output 1,1000"),
    ("--fail-on eror", 2, "'eror' is not a value of --fail-on: did you mean error", "--fail-on error"),
    ("--baseline nowhere/known.json", 4, "there is no baseline 'nowhere/known.json'", "modelscope check "),
    (
        "--baseline broken.json",
        4,
        "'broken.json' is not a baseline",
        "--baseline broken-known.json --update-baseline",
    ),
    (
        "--baseline list.json",
        4,
        "'list.json' is not a baseline",
        "--baseline list-known.json --update-baseline",
    ),
    ("--baseline folder", 4, "'folder'", "ls -l folder"),
    (
        "--baseline later.json",
        4,
        "'later.json' has the schema 'modelscope/baseline/9'",
        "--baseline later-known.json --update-baseline",
    ),
    ("--update-baseline", 2, "'--update-baseline' needs a file", "--baseline known.json"),
    ("--baseline nowhere/known.json --update-baseline", 4, "there is no folder 'nowhere'", "mkdir -p nowhere"),
]  # fmt: skip
PROJECTS = [
    ("[tool.modelscope\n", "cannot be read", "python -c"),
    ("[tool.modelscope]\nselct = []\n", "unknown key 'selct' in [tool.modelscope]", "write one of model"),
    ('[tool.modelscope]\nselect = ["MS9"]\n', "unknown rule 'MS9'", "modelscope check --list"),
    ('[tool.modelscope]\nfail-on = "eror"\n', "'fail-on = eror' is not a severity", 'fail-on = "error"'),
    ('[tool.modelscope]\nfail-on = "warn"\n', "'fail-on = warn' is not a severity", 'fail-on = "warning"'),
    ('[tool.modelscope]\ncheckpoint = ""\n', "'checkpoint = '", 'write checkpoint = "last.pth"'),
    ('[tool.modelscope]\nmax-params = "lots"\n', "'max-params = lots' is not a count", "max-params = 25M"),
    ("[tool]\nmodelscope = 3\n", "'modelscope'", "write [tool.modelscope]"),
    ('[tool.modelscope.thresholds]\nMS202 = "much"\n', "'MS202 = much' is not a number", "MS202 = 0.5"),
]


def assert_refused(outcome, quoted, hint):
    error, blank, advice = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert quoted in error
    assert not error.endswith(".")
    assert blank == ""
    assert advice.startswith("hint: ")
    assert hint in advice
    assert outcome.out == ""


@pytest.mark.parametrize(("options", "code", "quoted", "hint"), BAD)
def test_bad_input(run, cwd, options, code, quoted, hint):
    (cwd / "broken.json").write_text("{")
    (cwd / "list.json").write_text("[]")
    (cwd / "folder").mkdir()
    write_known(cwd / "later.json", version=9)
    assert_refused(run(f"{HEALTHY} {options}", expect=code), quoted, hint)


@pytest.mark.parametrize(("text", "quoted", "hint"), PROJECTS)
def test_a_broken_project_file(run, cwd, text, quoted, hint):
    (cwd / "pyproject.toml").write_text(text)
    outcome = run(HEALTHY, expect=2)
    assert_refused(outcome, quoted, hint)
    assert (
        "pyproject.toml" in outcome.err or "is not a" in quoted or "no severity" in quoted or "rule" in quoted
    )


# A data set, without a model.


@pytest.fixture
def photos(tmp_path):
    """Two folders of drawn images; one image is in both, and one file is empty."""
    from samples.dataset import Shapes

    for side, seed in (("train", 1), ("val", 2)):
        (tmp_path / side).mkdir()
        images = Shapes(8, seed=seed)
        for n in range(8):
            images[n][0].save(tmp_path / side / f"{n}.png")
    (tmp_path / "val" / "again.png").write_bytes((tmp_path / "train" / "3.png").read_bytes())
    (tmp_path / "val" / "empty.png").write_bytes(b"")
    return tmp_path


def test_a_folder_without_a_model_is_judged_as_a_data_set(run, photos):
    assert "passed" in run(f"check {photos}/train -f table").out
    document = run(f"check {photos}/train --against {photos}/val --json", expect=1).json
    assert [one["code"] for one in document["findings"]] == ["MS801", "MS804"]
    assert document["dataset"]["leaks"][0]["images"] == [f"{photos}/train/3.png", f"{photos}/val/again.png"]
    assert document["model"]["source"] == "images"
    assert (document["images"], document["dataset"]["against_images"]) == (18, 10)
    run(f"check {photos}/train --against {photos}/val --ignore MS801,MS804")
    out = run(f"check {photos}/val -f junit", expect=1).out
    assert 'tests="7" failures="1"' in out
    assert "the model" not in out
    out = run(f"check {photos}/val -f github", expect=1).out
    assert out.startswith("::error title=MS801 unreadable-images::")


def test_options_about_models_have_no_effect_on_a_data_set(run, refused, photos):
    plain = run(f"check {photos}/train --json", expect=None)
    for option in ("--weights none", "--seed 1", "--size 32", "--device cpu"):
        same = run(f"check {photos}/train {option} --json", expect=plain.code)
        assert same.json["findings"] == plain.json["findings"]
    message, _ = refused(f"check {photos}/train --select MS2", 2)
    assert "selects rules for a model" in message
    message, _ = refused(f"check resnet18 --against {photos}/val", 4)
    assert "'resnet18' does not exist" in message


def test_a_folder_that_holds_weights_is_a_model(refused, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    message, _ = refused(f"check {tmp_path}", 4)
    assert "holds no image" not in message


@pytest.mark.parametrize("words", ["classes", "classes/star", "classes/star/*.png", "flat"])
def test_one_class_for_the_images_of_one_class_is_no_collapse(run, cwd, samples, words):
    """Found in a folder of folders, or in one named like a class of the model; a flat folder may hold any class."""
    for folder in ("classes/star", "flat"):
        (cwd / folder).mkdir(parents=True)
        for n in range(9):
            image = Image.open(samples / "star.png").convert("RGB")
            image.putpixel((n, n), (255, 0, 0))
            image.save(cwd / folder / f"{n}.png")
    line = (
        f"check {samples}/tiny_resnet.py:TinyResNet '{words}' -c {samples}/tiny_resnet.safetensors --size 64"
    )
    expect = 0 if words == "flat" else 4
    document = run(f"{line} --select MS601 --json", expect=expect).json
    (rule,) = document["rules"]
    if words == "flat":
        (finding,) = document["findings"]
        assert (finding["code"], ") is predicted for all 9 images" in finding["message"]) == ("MS601", True)
        return
    assert (rule["judged"], rule["reason"]) == (
        False,
        "all images are of the same class, 'star', by their folder",
    )
    (cwd / "classes" / "ring").mkdir(exist_ok=True)
    Image.open(samples / "star.png").convert("RGB").save(cwd / "classes" / "ring" / "0.png")
    assert run(f"{line.replace(words, 'classes')} --select MS601 --json").json["findings"]  # of two classes


def test_the_project_may_name_images_without_a_model(run, refused, photos, monkeypatch):
    (photos / "pyproject.toml").write_text('[tool.modelscope]\nimages = ["train"]\n')
    monkeypatch.chdir(photos)
    document = run("check --json").json
    assert (document["model"]["source"], document["images"]) == ("images", 8)
    (photos / "pyproject.toml").write_text('[tool.modelscope.check]\nimages = ["train"]\n')
    message, hint = refused("check", 2)
    assert "[tool.modelscope.check]" in message
    assert hint == "hint: write [tool.modelscope]"


def test_unreadable_images_are_counted_in_the_last_line(run, photos):
    err = run(f"check {photos}/val -o {photos}/found.sarif", expect=1).err
    assert "1 of 10 images could not be read" in err
    assert "could not be read: \n" not in err
    assert "could not be read: ;" not in err


def test_a_checkpoint_that_was_never_trained_is_told_and_random_weights_are_not(run, cwd, samples):
    import torch
    from safetensors.torch import save_file

    from samples.tiny_resnet import TinyResNet

    torch.manual_seed(0)
    save_file(TinyResNet().state_dict(), cwd / "start.safetensors")
    model = f"check {samples}/tiny_resnet.py:TinyResNet {samples}/star.png --json --select MS209"
    (found,) = run(f"{model} -c start.safetensors").json["findings"]
    assert (found["code"], found["severity"]) == ("MS209", "warning")
    assert "untrained" in found["message"]
    outcome = run(f"{model} --weights none", expect=4)
    assert outcome.json["findings"] == []


def test_the_log_of_a_ci_job_ends_with_the_verdict_once(run, samples, monkeypatch):
    monkeypatch.setattr("modelscope_cli.shell.output._is_log", lambda: True)
    done = run(f"check {samples}/tiny_resnet.py:TinyResNet -c {samples}/sick.safetensors", expect=1)
    assert done.out.count("failed with") == 1
    assert done.out.splitlines()[-1].startswith("modelscope check: failed with")


def test_layer_norms_of_a_file_that_are_as_made_are_told(run, cwd):
    from safetensors.torch import save_file
    from torch import nn

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    (cwd / "net.py").write_text("""
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.Linear(8, 3))
""")
    for is_trained in (False, True):
        model[2].bias.data += 0.1 * is_trained * model[3].weight.data[0]
        save_file(model.state_dict(), cwd / "net.safetensors")
        line = "check net.py:make -c net.safetensors --input-shape 2,3,8,8 --json --select MS209"
        assert ["untrained" in one["message"] for one in run(line).json["findings"]] == [True] * (
            not is_trained
        )


def test_a_saturated_softmax_is_named_where_the_output_is_constant(run, cwd):
    (cwd / "net.py").write_text("""
from torch import nn

def make(bias=0.0):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3), nn.Softmax(1))
    net[2].bias.data.copy_(net[2].bias.data.new_tensor([bias, 0, 0]))
    return net
""")
    line = "net.py:make --input-shape 2,3,8,8 -w none --model-arg"
    found = run(f"check {line} bias=500.0 --select MS604", expect=1).out
    assert "3 (Softmax) is the same for all images" in found
    assert "3 (Softmax) is the same for all images" in run(f"stats {line} bias=500.0").err
