"""`--hook` on the commands: what changes, what the record says of it, and what is typed wrong."""

import pytest
import torch
from safetensors.torch import load_file
from tolerance import close

HOOKS = """
import torch

def double(module, args, output):
    print("to stdout")
    return output * 2

def in_place(module, args, output):
    output.mul_(2)

def text(module, args, output):
    return "text"

def narrow(module, args, output):
    return output[:, :1]

def raises(module, args, output):
    raise ValueError("no luck")

def leaves(module, args, output):
    raise SystemExit(5)

def zero(grad):
    grad.zero_()

number = 3
"""


@pytest.fixture(autouse=True)
def hooks_file(cwd):
    (cwd / "hooks.py").write_text(HOOKS)
    (cwd / "broken.py").write_text("1 / 0\n")


def rows_of(document):
    return {(row["name"], row["call"]): row for row in document["layers"]}


def test_stats_show_what_follows(run):
    plain, hooked = (
        run(f"stats {{star}} {{healthy}} {hook} --json").json
        for hook in ("", "--hook 'zero[3,7]@block1.conv1'")
    )
    before, after = rows_of(plain), rows_of(hooked)
    assert before["conv", 0] == after["conv", 0]
    assert after["block1.conv1", 0]["dead_channels"] == before["block1.conv1", 0]["dead_channels"] + 2
    assert before["head", 0]["mean"] != after["head", 0]["mean"]
    assert plain["hooks"] == []
    (report,) = hooked["hooks"]
    assert {key: report[key] for key in ("spec", "kind", "action", "layers", "fired", "never_fired")} == {
        "spec": "zero[3,7]@block1.conv1",
        "kind": "forward",
        "action": "zero",
        "layers": ["block1.conv1"],
        "fired": 1,
        "never_fired": [],
    }
    assert report["changed_fraction"] == 2 / 16
    row = before["block1.conv1", 0]
    assert 0 < report["max_abs_difference"] <= max(-row["min"], row["max"])


def test_the_second_pass_of_stats_sees_the_same_and_counts_nothing_twice(run):
    line = "stats {star} {harbour} {healthy} --batch {n} -l head --hook noise=1@head --hook print@head --json"
    one, two = (run(line.replace("{n}", n)) for n in "21")
    (row,) = two.json["layers"]
    assert [report["fired"] for report in two.json["hooks"]] == [2, 2]
    assert two.err.count("print head: 1x10 float32") == 2
    assert one.err.count("print head: 2x10 float32") == 1
    run(
        "stats {star} {harbour} {healthy} --batch 1 -l head --hook noise=1@head --hook save=x.safetensors@head"
    )
    values = torch.cat(list(load_file("x.safetensors").values())).double()
    assert len(values) == 2
    assert row["mean"] == close(values.mean().item())
    assert row["std"] == close(values.std(correction=0).item())


# The command; what is typed; the exit code; what the error says; the hint.
WRONG = [
    ("stats", "zreo@conv", 2, "unknown action 'zreo' at character 1: did you mean zero", "--hook zero@conv"),
    ("stats", "clamp=1@conv", 2, "clamp takes 2 arguments, not 1, at character 6", "--hook clamp=-1,1@conv"),
    ("stats", "zero@nothing", 2, "layer pattern 'nothing' matches no layer", "types: "),
    ("featuremaps", "zero@conv@3", 2, "'conv' has 1 call", "zero@type:Conv2d@3   # counted among all Conv2d"),
    ("stats", "grad:zero@conv", 2, "stats runs no backward pass", "--hook grad:zero@conv"),
    ("stats", "zero[99]@conv", 2, "channel 99 does not exist at the output of conv", "--hook 'zero[0..15]@conv'"),
    ("stats", "save=no/x.safetensors@conv", 4, "there is no folder 'no'", "mkdir -p no"),
    ("stats", "call=missing.py:fn@conv", 4, "no file 'missing.py'", "ls ."),
    ("stats", "call=hooks.py:duble@conv", 2, "'duble': did you mean double", "call=hooks.py:double@conv"),
    ("stats", "call=hooks.py:number@conv", 2, "'hooks.py:number' is of type int, not a function", "--hook call="),
    ("stats", "call=hooks.py:raises@conv", 4, "raised ValueError: no luck at", "hooks.py"),
    ("stats", "call=hooks.py:narrow@conv", 4, "returned a tensor of 1x1x112x112 float32, not", "return None"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "hook", "code", "said", "hint"), WRONG, ids=[hook for _, hook, *_ in WRONG]
)
def test_bad_hooks(run, cwd, command, hook, code, said, hint):
    before = sorted(path.name for path in cwd.iterdir())
    outcome = run(f"{command} {{star}} {{healthy}} --hook '{hook}'", expect=code)
    assert outcome.out == ""
    error, _, advice = outcome.err.partition("error: ")[2].partition("\n\nhint: ")
    assert said in error
    assert hint in advice
    assert "\n" not in error
    assert sorted(path.name for path in cwd.iterdir() if path.name != "__pycache__") == before


def test_raise_on_nan_ends_the_command(run):
    line = "stats {star} {healthy} --hook scale=inf@conv --hook scale=0@conv"
    outcome = run(f"{line} --hook raise-on-nan@type:ReLU", expect=4)
    assert "values are NaN: the output of relu\n" in outcome.err
    assert (
        run(f"{line} --hook nan-to-num@conv --hook raise-on-nan@type:ReLU --json").json["hooks"][2]["fired"]
        == 1
    )
