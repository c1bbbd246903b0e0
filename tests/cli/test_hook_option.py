"""`--hook` on the commands: what changes, what the record says of it, and what is typed wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tolerance import close
from typer.main import get_command

from modelscope_cli.shell.typer_app import make_app

COMMANDS = get_command(make_app()).commands

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
    assert row["mad"] == close((values - values.mean()).abs().mean().item())


def test_featuremaps_are_drawn_of_what_was_changed(run, cwd):
    run("featuremaps {star} {healthy} -l relu --hook 'zero[0]@bn' --save-tensors y.safetensors --out here")
    maps = load_file(cwd / "y.safetensors")["relu"]
    assert not maps[0].any()
    assert maps[1:].any()
    report = json.loads((cwd / "here" / "report.json").read_text())
    assert [hook["spec"] for hook in report["hooks"]] == ["zero[0]@bn"]


def test_what_a_function_prints_goes_to_stderr(run):
    plain, doubled = (
        run(f"stats {{star}} {{healthy}} -l conv {hook} -q")
        for hook in ("", "--hook call=hooks.py:double@conv")
    )
    assert doubled.err == "to stdout\n"
    assert float(doubled.rows[0]["std"]) == close(2 * float(plain.rows[0]["std"]))


@pytest.mark.parametrize(("line", "warning"), [
    (
        "stats -m vit_b_32 -w none --input-shape 1,3,224,224 -l heads.head --hook 'zero@re:layer_0.*out_proj'",
        "--hook 'zero@re:layer_0.*out_proj' never ran at "
        "encoder.layers.encoder_layer_0.self_attention.out_proj: not called",
    ),
])  # fmt: skip
def test_what_a_hook_did_not_do_or_did_besides_is_a_warning(run, line, warning):
    outcome = run(f"{line} --json -q")
    assert f"warning: {warning}\n" in outcome.err
    assert warning in [notice["message"] for notice in outcome.json["warnings"]]


# The command; what is typed; the exit code; what the error says; the hint.
WRONG = [
    ("stats", "zreo@conv", 2, "unknown action 'zreo' at character 1: did you mean zero", "--hook 'zero@conv'"),
    ("grads", "prr:zero@conv", 2, "unknown kind 'prr' at character 1: did you mean pre", "--hook 'pre:zero@conv'"),
    ("stats", "clamp=1@conv", 2, "clamp takes 2 arguments, not 1, at character 6", "--hook 'clamp=-1,1@conv'"),
    ("stats", "scale=x@conv", 2, "'x' is not a number at character 7", "--hook 'scale=2@conv'"),
    ("stats", "zero@nothing", 2, "layer pattern 'nothing' matches no layer", "types present"),
    ("featuremaps", "zero@conv@3", 2, "'conv' has 1 call", "try type:Conv2d@3   counted among all Conv2d"),
    ("stats", "grad:zero@conv", 2, "stats runs no backward pass", "--hook grad:zero@conv"),
    ("stats", "zero[99]@conv", 2, "no channel 99 at the output of conv, only 0..15", "--hook 'zero[0..15]@conv'"),
    ("grads", "grad:zero[16]@conv", 2, "no channel 16 at the gradient at the output of conv", "[0..15]@conv'"),
    ("stats", "save=no/x.safetensors@conv", 4, "there is no folder 'no'", "mkdir -p no"),
    ("stats", "call=missing.py:fn@conv", 4, "no file 'missing.py'", "ls ."),
    ("stats", "call=hooks.py:duble@conv", 2, "'duble': did you mean double", "did you mean hooks.py:double"),
    ("stats", "call=no_such_module:fn@conv", 2, "no module 'no_such_module'", "python -c"),
    ("stats", "call=hooks.py:number@conv", 2, "'hooks.py:number' is of type int, not a function", "--hook 'call="),
    ("stats", "call=broken.py:fn@conv", 4, "raised ZeroDivisionError: division by zero at", "broken.py"),
    ("stats", "call=hooks.py:raises@conv", 4, "raised ValueError: no luck at", "hooks.py"),
    ("stats", "call=hooks.py:leaves@conv", 4, "raised SystemExit: 5 at", "hooks.py"),
    ("featuremaps", "call=hooks.py:text@conv", 4, "returned a str, not a tensor of 1x16x112x112", "return None"),
    ("stats", "call=hooks.py:narrow@conv", 4, "returned a tensor of 1x1x112x112 float32, not", "return None"),
    ("grads", "grad:call=hooks.py:text@conv", 2, "and is called with (grad)", "def text(grad)"),
    ("prune", "grad:zero@conv", 2, "prune runs no backward pass", "modelscope grads"),
    ("ablate", "zero@nothing", 2, "'nothing' matches no layer", "types present"),
    ("attack", "zreo@conv", 2, "unknown action 'zreo'", "zero@"),
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


def test_two_hooks_cannot_save_to_one_file(run, cwd):
    hooks = "--hook save=x.safetensors@conv --hook save=./x.safetensors@bn"
    outcome = run(f"stats {{star}} {{healthy}} {hooks}", expect=2)
    assert "another hook saves to 'x.safetensors', too" in outcome.err
    assert not (cwd / "x.safetensors").exists()


def test_every_command_that_takes_hooks_says_where_they_are_explained():
    takes_hooks = [command for command in COMMANDS.values() if any(p.name == "hook" for p in command.params)]
    assert len(takes_hooks) > 5
    for command in takes_hooks:
        (text,) = (option.help for option in command.params if option.name == "hook")
        assert "`modelscope help hooks`" in text
