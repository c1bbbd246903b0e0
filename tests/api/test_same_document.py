"""A command and its function give the same document, and the function writes nothing to the terminal."""

import pytest
from function_and_command import HEALTHY, SAMPLES, SICK, SQUEEZENET, STAR, TINY, plain, without

import modelscope_cli as ms

NOISE = {"weights": "none", "input_shape": (2, 3, 64, 64)}
# Command line, exit code, function, its arguments, its keywords.
TABLE = [
    ("check resnet18 -w none --input-shape 2,3,64,64 --max-params 10M --ignore MS3 --fail-on warning", 1,
     ms.check, ("resnet18",), {**NOISE, "max_params": 10_000_000, "ignore": "MS3", "fail_on": "warning"}),
    (f"check {TINY} {STAR} -c {SICK} --select MS202,MS5 --set MS202=0.9 --expect-output 1,10 --max-memory 50MB", 0,
     ms.check, (TINY, STAR), {"checkpoint": SICK, "select": ["MS202", "MS5"], "set": {"dead-channels": 0.9},
                              "expect_output": (1, 10), "max_memory": "50MB"}),
    (f"check {SQUEEZENET} {STAR} --size 64 --select MS1,MS4", 0,
     ms.check, (SQUEEZENET, STAR), {"size": 64, "select": "MS1,MS4"}),
    (f"diff {HEALTHY} {SICK}", 1, ms.diff, (HEALTHY, SICK), {}),
    (f"diff {HEALTHY} {SICK} {STAR} -m {TINY}", 1, ms.diff, (HEALTHY, SICK, STAR), {"model": TINY}),
    (f"diff {TINY} {STAR} -c {HEALTHY} --tolerance 0 --b-dtype bfloat16 -l conv --hook scale=2@bn", 1,
     ms.diff, (TINY, STAR), {"checkpoint": HEALTHY, "tolerance": 0.0, "b_dtype": "bfloat16", "layer": "conv",
                             "hook": "scale=2@bn"}),
    ("diff resnet18 -w none --input-shape 2,3,64,64 --b-mode train --b-seed 1", 1,
     ms.diff, ("resnet18",), {**NOISE, "b_mode": "train", "b_seed": 1}),
    ("diff resnet18 resnet34 -w none", 1, ms.diff, ("resnet18", "resnet34"), {"weights": "none"}),
    (f"predict --doctor {STAR} {SAMPLES}/harbour.jpg -m {TINY} -c {HEALTHY} --size 64 --mean 0.5", 0,
     ms.doctor, (TINY, [STAR, f"{SAMPLES}/harbour.jpg"]), {"checkpoint": HEALTHY, "size": 64, "mean": 0.5}),
    ("grads --no-save -m resnet18 -w none --input-shape 2,3,64,64 --clip 0.1 -l conv", 0,
     ms.grads, ("resnet18",), {**NOISE, "clip": 0.1, "layer": "conv"}),
    (f"grads {STAR} --no-save -m {SQUEEZENET} --size 64 -t 1 --mode eval", 0,
     ms.grads, (SQUEEZENET, STAR), {"size": 64, "target": 1, "mode": "eval"}),
    (f"grads {STAR} --no-save -m {TINY} -c {HEALTHY} --repeat 2 --weight-decay 0.1 --hook grad:scale=2@head", 0,
     ms.grads, (TINY, STAR), {"checkpoint": HEALTHY, "repeat": 2, "weight_decay": 0.1,
                              "hook": "grad:scale=2@head"}),
    ("models resnet", 0, ms.list_models, ("resnet",), {}),
    ("rules", 0, ms.list_rules, (), {}),
    ("stats -m resnet18 -w none --input-shape 2,3,64,64 -l conv --near-zero 0.1", 0,
     ms.stats, ("resnet18",), {**NOISE, "layer": "conv", "near_zero": 0.1}),
    (f"stats {STAR} -m {SQUEEZENET} --size 64", 0, ms.stats, (SQUEEZENET, STAR), {"size": 64}),
    (f"stats {STAR} -m {TINY} -c {HEALTHY} --mode train --batch 1 --hook scale=2@bn", 0,
     ms.stats, (TINY, STAR), {"checkpoint": HEALTHY, "mode": "train", "batch": 1, "hook": "scale=2@bn"}),
    ("summary resnet18 --batch 2 --depth 1", 0, ms.summary, ("resnet18",), {"batch": 2, "depth": 1}),
    ("summary resnet18 -l conv --num-classes 7", 0,
     ms.summary, ("resnet18",), {"layer": "conv", "num_classes": 7}),
    (f"summary {SQUEEZENET}", 0, ms.summary, (SQUEEZENET,), {}),
    (f"summary {TINY} -c {HEALTHY} --freeze block1 --input-shape 2,3,64,96", 0,
     ms.summary, (TINY,), {"checkpoint": HEALTHY, "freeze": "block1", "input_shape": (2, 3, 64, 96)}),
    (f"summary {TINY} --model-arg width=8 --exclude conv", 0,
     ms.summary, (TINY,), {"model_arg": {"width": 8}, "exclude": ["conv"]}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "function", "arguments", "keywords"), TABLE)
def test_function_and_command_give_the_same_document(both, line, code, function, arguments, keywords):
    typed = both.typed(line, code)
    assert without(plain(function(*arguments, **keywords).to_dict())) == without(typed)
    assert both.said() == ""
