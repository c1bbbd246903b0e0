"""A command and its function give the same document, and the function writes nothing to the terminal."""

from contextlib import nullcontext

import pytest
import torch
from function_and_command import HEALTHY, SAMPLES, SICK, STAR, TINY, plain, tiny_resnet, without

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError, UsageError

TRAINED = "--size 32 --pictures 40 --batch 8 --steps 5 --out run -q"
SMALL = {"size": 32, "pictures": 40, "batch": 8, "steps": 5}
LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
generator = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10)
loaders = DataLoader(data, batch_size=8), DataLoader(data, batch_size=32)
"""
# Command line, exit code, function, its arguments, its keywords.
TABLE = [
    (f"check {TINY} {STAR} -c {SICK} --select MS202,MS5 --set MS202=0.9 --expect-output 1,10 --max-memory 50MB", 0,
     ms.check, (TINY, STAR), {"checkpoint": SICK, "select": ["MS202", "MS5"], "set": {"dead-channels": 0.9},
                              "expect_output": (1, 10), "max_memory": "50MB"}),
    (f"diff {HEALTHY} {SICK}", 1, ms.diff, (HEALTHY, SICK), {}),
    (f"diff {TINY} {STAR} -c {HEALTHY} --tolerance 0 --b-dtype bfloat16 -l conv", 1,
     ms.diff, (TINY, STAR), {"checkpoint": HEALTHY, "tolerance": 0.0, "b_dtype": "bfloat16", "layer": "conv"}),
    (f"predict --doctor {STAR} {SAMPLES}/harbour.jpg -m {TINY} -c {HEALTHY} --size 64 --mean 0.5", 0,
     ms.doctor, (TINY, [STAR, f"{SAMPLES}/harbour.jpg"]), {"checkpoint": HEALTHY, "size": 64, "mean": 0.5}),
    (f"grads {STAR} --no-save -m {TINY} -c {HEALTHY} --hook grad:scale=2@head", 0,
     ms.grads, (TINY, STAR), {"checkpoint": HEALTHY, "hook": "grad:scale=2@head"}),
    ("models resnet", 0, ms.list_models, ("resnet",), {}),
    ("rules", 0, ms.list_rules, (), {}),
    (f"stats {STAR} -m {TINY} -c {HEALTHY} --mode train --batch 1 --hook scale=2@bn", 0,
     ms.stats, (TINY, STAR), {"checkpoint": HEALTHY, "mode": "train", "batch": 1, "hook": "scale=2@bn"}),
    (f"summary {TINY} -c {HEALTHY} --freeze block1 --input-shape 2,3,64,96", 0,
     ms.summary, (TINY,), {"checkpoint": HEALTHY, "freeze": "block1", "input_shape": (2, 3, 64, 96)}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "function", "arguments", "keywords"), TABLE)
def test_function_and_command_give_the_same_document(both, line, code, function, arguments, keywords):
    typed = both.typed(line, code)
    assert without(plain(function(*arguments, **keywords).to_dict())) == without(typed)
    assert both.said() == ""


@pytest.mark.parametrize(("line", "function", "arguments", "keywords"), [
    (f"train -m {TINY} -c {HEALTHY} {TRAINED}", ms.train, (TINY,), {"checkpoint": HEALTHY, **SMALL}),
    (f"train -m {TINY} --optimizer sgd {TRAINED}", ms.train, (TINY,), {"optimizer": "sgd", **SMALL}),
    (f"lrfind -m {TINY} --loaders own.py:loaders {TRAINED}", ms.lrfind, (TINY,),
     {"loaders": "own.py:loaders", "steps": 5}),
])  # fmt: skip
def test_a_training_is_that_of_the_command_and_so_is_its_folder(
    both, cwd, undrawn, line, function, arguments, keywords
):
    (cwd / "own.py").write_text(LOADERS)
    before = {file.name for file in cwd.iterdir()}
    record = function(*arguments, **keywords)
    called = without(plain(record.to_dict()), "out_dir", "files")
    assert {file.name for file in cwd.iterdir()} - {"__pycache__"} == before
    assert both.said() == ""
    assert called == without(both.typed(line), "out_dir", "files")
    # Only a training writes more than what the record holds: the weights.
    written = function(*arguments, **keywords, out="mine") if function is ms.train else record.save("mine")
    names = {file.name for file in (cwd / "mine").iterdir()}
    assert names == {file.name for file in (cwd / "run").iterdir()} == set(written.files)


@pytest.mark.parametrize(("line", "function", "arguments", "keywords", "apart"), [
    (f"stats {STAR} -m {TINY} -c {SICK}", ms.stats, (STAR,), {}, ()),
    (f"check {TINY} {STAR} -c {SICK} --select MS1,MS202", ms.check, (STAR,), {"select": "MS1,MS202"}, ()),
    (f"grads {STAR} -m {TINY} -c {SICK} --no-save --mode train --loss mean --hook scale=2@bn", ms.grads, (STAR,),
     {"mode": "train", "loss": "mean", "hook": "scale=2@bn"}, ()),
    (f"summary {TINY} --input-shape 2,3,64,64 --freeze head", ms.summary, (),
     {"input_shape": (2, 3, 64, 64), "freeze": "head"}, ("device",)),
])  # fmt: skip
def test_a_module_gives_what_its_file_gives(both, line, function, arguments, keywords, apart):
    typed = both.typed(line)
    found = plain(function(tiny_resnet(SICK), *arguments, **keywords).to_dict())
    assert without(found, "model", *apart) == without(typed, "model", *apart)
    assert found["model"]["source"] == "object"
    assert (found["device"], typed["device"]) == ("cpu", "meta" if function is ms.summary else "cpu")


@pytest.mark.parametrize(("use", "fails"), [
    (lambda model, x: ms.stats(model, x.numpy(), mode="train", hook="zero@bn"), False),
    (ms.check, False),
    (lambda model, x: ms.check(model, x, mode="train", select="MS3"), False),
    (lambda model, x: ms.grads(model, x, freeze="block1", clip_norm=1.0, mode="train"), False),
    (lambda model, x: ms.grads(model, x, target=99), True),
    (lambda model, x: ms.summary(model, freeze="block1"), False),
    (lambda model, x: ms.summary(model, x[:, :1]), True),
    (lambda model, x: ms.explain(model, x[:1], target=99), True),
])  # fmt: skip
def test_a_module_is_left_as_it_was(unchanged, use, fails):
    model = tiny_resnet(SICK).train()
    model.bn.eval()
    model.head.bias.requires_grad_(False)
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    x = torch.rand(2, 3, 64, 64)
    check = unchanged(model)
    with pytest.raises(ModelscopeError) if fails else nullcontext():
        use(model, x)
    check()


# Of each function what only Python can ask, or says in other words; `tests/cli` has what is typed wrong.
@pytest.mark.parametrize(("function", "keywords", "said"), [
    (ms.check, {"select": "MS999"}, "unknown rule 'MS999'"),
    (ms.check, {"set": {"MS299": 1}}, "unknown rule 'MS299'"),
    (ms.check, {"mode": "trian"}, "did you mean train"),
    (ms.grads, {"loss": 3}, "a loss of type int is neither"),
    (ms.grads, {"clip": 1, "clip_norm": 1}, "cannot be combined"),
    (ms.grads, {"mode": "trian"}, "did you mean train"),
    (ms.featuremaps, {"max_channels": 0}, "max.channels"),
    (ms.featuremaps, {"scale": "chanel"}, "channel"),
    (ms.ablate, {"by_channel": True}, "needs layer"),
    (ms.ablate, {"method": "means"}, "mean"),
    (ms.predict, {"top": 0}, "top"),
    (ms.predict, {"threshold": 0.5, "scores": "softmax"}, "needs sigmoid scores"),
    (ms.lrfind, {"low": 1.0, "high": 0.1}, "low=1, high=0.1"),
    (ms.lrfind, {"steps": 2}, "at least 3"),
    (ms.lrfind, {"loaders": "own.py:loaders", "data": "folder"}, "cannot be combined"),
])  # fmt: skip
def test_what_means_nothing_is_refused_before_anything_is_loaded(function, keywords, said):
    images = {} if function is ms.lrfind else {"inputs": STAR}
    with pytest.raises(UsageError, match=said):
        function("nothing_of_the_kind", **images, **keywords)
