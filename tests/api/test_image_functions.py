"""What is typed and what is called are one thing: `featuremaps` and its kin, as commands and as functions."""

import json

import pytest
import torch
from function_and_command import HEALTHY, STAR, TINY

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError

pytestmark = pytest.mark.usefixtures("undrawn")

ZEROED = "zero[1]@block1.conv1"

# Of every command: what is typed, and the same in Python.
CASES = {
    "featuremaps": (
        "-l type:Conv2d --max-channels 3 --overlay",
        {"layer": "type:Conv2d", "max_channels": 3, "overlay": True},
    ),
    "predict": (
        "--top 3 --scores sigmoid --threshold 0.25",
        {"top": 3, "scores": "sigmoid", "threshold": 0.25},
    ),
    "ablate": (
        "-l type:Conv2d --method mean --target 1",
        {"layer": "type:Conv2d", "method": "mean", "target": 1},
    ),
}
WRITES_A_FOLDER = {"featuremaps", "ablate"}


def handed_over():
    """Return a module as a caller may have it: in training, partly frozen, with a gradient and a hook of theirs."""
    module = ms.load(TINY, weights="none", seed=3).module.train()
    first, second, *_ = module.parameters()
    first.requires_grad_(False)
    second.grad = torch.ones_like(second)
    module.block1.register_forward_hook(lambda *_: None)
    return module


def assert_alike(ours, theirs, at=""):
    """Compare two documents: the numbers come of the same arithmetic, but not of the same memory."""
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), at
        for key in ours:
            assert_alike(ours[key], theirs[key], f"{at}.{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), at
        for n, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(one, other, f"{at}[{n}]")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), at
    else:
        assert ours == theirs, at


def call(command, model, keywords, cwd):
    record = getattr(ms, command)(model, STAR, **CASES[command][1], **keywords)
    return record.save(cwd / "out") if command in WRITES_A_FOLDER else record


def compare(record, document, but=()):
    ours = json.loads(json.dumps(record.to_dict()))
    for key in ("argv", "elapsed_ms", *but):
        del ours[key], document[key]
    assert_alike(ours, document)


def line(command, model, cwd):
    out = f"--out {cwd / 'out'} --force" if command in WRITES_A_FOLDER else ""
    return f"{command} {STAR} {model} {CASES[command][0]} {out}"


@pytest.mark.parametrize("command", CASES)
def test_function_and_command_give_the_same_document(command, both, cwd):
    record = call(command, TINY, {"checkpoint": HEALTHY, "hook": ZEROED}, cwd)
    written = {file.name for file in cwd.rglob("*") if file.is_file()}
    compare(record, both.typed(line(command, f"-m {TINY} -c {HEALTHY} --hook {ZEROED}", cwd)))
    assert {file.name for file in cwd.rglob("*") if file.is_file()} == written


@pytest.mark.parametrize("command", CASES)
def test_a_module_is_described_as_by_the_command_and_left_as_it_was(command, both, cwd, unchanged):
    module = handed_over()
    check = unchanged(module)
    record = call(command, module, {"seed": 3}, cwd)
    check()
    assert both.said() == ""
    compare(record, both.typed(line(command, f"-m {TINY} -w none --seed 3", cwd)), but=["model"])


def test_predictions_are_given_to_a_callback_batch_by_batch():
    module, images = handed_over(), [STAR, STAR, STAR]
    parts = []
    last = ms.predict(module, images, batch=2, each=parts.append)
    whole = ms.predict(module, images, batch=2)
    assert [len(part.predictions) for part in parts] == [2, 1]
    assert [row.image for part in parts for row in part.predictions] == [
        row.image for row in whole.predictions
    ]
    assert last.predictions == ()
    assert last.classes == whole.classes == parts[0].classes


def test_the_classes_are_named_by_a_list(cwd):
    module = handed_over()
    n_classes = ms.predict(module, STAR).classes
    names = [f"kind {n}" for n in range(n_classes)]
    (cwd / "names.txt").write_text("\n".join(names))
    guess = ms.predict(module, STAR, labels=names).predictions[0].top[0]
    assert guess.label == f"kind {guess.index}"
    assert ms.predict(module, STAR, labels=cwd / "names.txt").predictions[0].top[0].label == guess.label
    with pytest.raises(CannotRunError, match="the list of labels has 2 labels"):
        ms.predict(module, STAR, labels=names[:2])


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_grads_differentiates_whatever_the_caller_has_switched_off(without):
    module = handed_over()
    with without():
        record = ms.grads(module, STAR)
        assert not torch.is_grad_enabled()
    assert record.loss.value == pytest.approx(ms.grads(module, STAR).loss.value, rel=1e-3)
