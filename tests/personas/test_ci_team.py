"""The CI team: a gate that cannot switch itself off, and findings where people look."""

import json
import re
from xml.etree import ElementTree as ET

import pytest
import torch
from safetensors.torch import load_file, save_file

GATE = "modelscope check --model demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors --select MS2"
HEALTHY = GATE.replace("sick", "tiny_resnet")


def line_of(demo, text):
    """Return the numbers of the lines of the sample that hold some text."""
    lines = (demo / "tiny_resnet.py").read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line]


def test_the_verdict_is_in_the_log_whatever_it_is(person):
    passed = person.types(GATE)
    assert "result: passed with 4 warnings (only errors fail the check)" in passed.err
    failed = person.types(f"{GATE} --fail-on warning", code=1)
    assert "result: failed with 4 warnings" in failed.err
    assert "modelscope check: passed: nothing found" in person.types(f"{HEALTHY} --format github").out


def test_a_baseline_that_is_misspelt_in_ci_is_an_error_and_nothing_is_written(person):
    line = f"CI=true GITHUB_ACTIONS=true {GATE} --fail-on warning --baseline typo.json"
    answer = person.types(line, code=4)
    assert "there is no baseline 'typo.json'" in answer.error
    assert not (person.folder / "typo.json").exists()
    person.pastes(answer)
    assert len(json.loads((person.folder / "typo.json").read_text())["findings"]) == 4
    person.types(line)


def test_a_baseline_sees_what_grows_worse_and_what_is_gone(person, demo):
    person.types(f"{GATE} --fail-on warning --baseline known.json --update-baseline")
    weights = load_file(demo / "sick.safetensors")
    weights["bn.bias"][:] = -30  # 16 dead channels instead of 14
    save_file(weights, person.folder / "worse.safetensors")
    worse = GATE.replace("demo/sick", "worse")
    answer = person.types(f"{worse} --fail-on warning --baseline known.json --json", code=1)
    new = [one for one in answer.json["findings"] if one["code"] == "MS202" and not one["known"]]
    assert any(one["layer"] == "relu" and one["value"] == 1.0 for one in new)
    gone = person.types(f"{HEALTHY} --fail-on warning --baseline known.json")
    assert re.search("gone.*MS202 relu", gone.err)


def test_annotations_stand_at_the_line_that_makes_the_layer(person, demo):
    summary = person.folder / "summary.md"
    answer = person.types(f"GITHUB_ACTIONS=true GITHUB_STEP_SUMMARY={summary} {GATE} --format github")
    lines = dict(re.findall(r"::warning file=demo/tiny_resnet.py,line=(\d+),title=(MS\d+)", answer.out))
    assert {int(line) for line in lines} <= {
        number for text in ("nn.BatchNorm2d(", "nn.Conv2d(", "nn.ReLU(") for number in line_of(demo, text)
    }
    assert len(re.findall("^::warning ", answer.out, re.MULTILINE)) == 4
    assert summary.read_text().count("| MS207 | warning |") == 2


def test_junit(person):
    person.types(f"{GATE} --fail-on warning --output check.xml", code=1)
    suite = ET.parse(person.folder / "check.xml").getroot()
    failed = {
        case.get("name").split()[0] for case in suite.iter("testcase") if case.find("failure") is not None
    }
    assert failed == {"MS202", "MS206", "MS207"}
    assert (suite.get("failures"), suite.get("errors")) == ("3", "0")


@pytest.mark.parametrize(("fail_on", "max_params"), [("fail-on", "max-params"), ("fail_on", "max_params")])
def test_everything_that_is_fixed_stands_in_pyproject(person, fail_on, max_params):
    (person.folder / "pyproject.toml").write_text(
        '[tool.modelscope]\nmodel = "demo/tiny_resnet.py:TinyResNet"\ncheckpoint = "demo/sick.safetensors"\n'
        f'images = ["demo/star.png"]\nselect = ["MS2"]\n{fail_on} = "warning"\n{max_params} = "10k"\n'
    )
    answer = person.types("modelscope check --json", code=1)
    codes = [one["code"] for one in answer.json["findings"]]
    assert codes == ["MS501", "MS202", "MS206", "MS207", "MS207"]
    n_params = next(one["value"] for one in answer.json["findings"] if one["code"] == "MS501")
    weights = load_file(person.folder / "demo/sick.safetensors")
    assert n_params == sum(
        x.numel() for name, x in weights.items() if "running" not in name and "num_" not in name
    )
    person.types("modelscope check -c demo/tiny_resnet.safetensors --max-params 100k")


def test_a_wrong_class_and_a_missing_checkpoint(person):
    wrong = person.types(
        "modelscope check --model demo/tiny_resnet.py:TinyRsNet -w none --select MS1", code=2
    )
    assert wrong.hint.startswith("did you mean demo/tiny_resnet.py:TinyResNet,")
    person.pastes(wrong)
    assert "no checkpoint file 'last.pth'" in person.types("modelscope check last.pth", code=4).error


def test_a_training_gate(person):
    (person.folder / "mine.py").write_text(
        "import torch\nnet = torch.nn.Linear(4, 2)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(30):\n    net(torch.randn(8, 4)).square().mean().backward()\n"
    )
    answer = person.types("modelscope watch --json --fail-on error --strict mine.py", code=1)
    assert [one["code"] for one in answer.json["findings"]] == ["MS711"]


def test_code_in_a_checkpoint_is_found_and_not_run(person):
    class Evil:
        def __reduce__(self):
            return eval, ("open('ran', 'w')",)

    torch.save(Evil(), person.folder / "evil.pth")
    answer = person.types("modelscope weights . --scan --json", code=1)
    ranks = {one["file"]: one["rank"] for one in answer.json["files"]}
    assert [rank for path, rank in ranks.items() if "evil" in path] == ["dangerous"]
    assert not (person.folder / "ran").exists()
