"""What is typed and what is called are one thing: `featuremaps` and its kin, as commands and as functions."""

import json

import pytest
import torch
from function_and_command import HEALTHY, STAR, TINY
from PIL import Image
from safetensors.torch import load_file

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.progress import Silent

pytestmark = pytest.mark.usefixtures("undrawn")

ZEROED = "zero[1]@block1.conv1"

# Of every command: what is typed, and the same in Python.
CASES = {
    "featuremaps": (
        "-l type:Conv2d --max-channels 3 --strongest --overlay",
        {"layer": "type:Conv2d", "max_channels": 3, "strongest": True, "overlay": True},
    ),
    "predict": (
        "--top 3 --scores sigmoid --threshold 0.25 --temperature 2",
        {"top": 3, "scores": "sigmoid", "threshold": 0.25, "temperature": 2.0},
    ),
    "ablate": (
        "-l type:Conv2d --method mean --target 1",
        {"layer": "type:Conv2d", "method": "mean", "target": 1},
    ),
    "prune": (
        "--amount 0.25 --sweep 0.5 --method activation --by-channel -l type:Conv2d",
        {"amount": 0.25, "sweep": [0.5], "method": "activation", "by_channel": True, "layer": "type:Conv2d"},
    ),
    "attack": (
        "--method pgd --norm l2 --epsilon 2 --steps 2 --target 1",
        {"method": "pgd", "norm": "l2", "epsilon": 2, "steps": 2, "target": 1},
    ),
}
WRITES_A_FOLDER = {"featuremaps", "ablate", "prune", "attack"}


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
    out = {"out": cwd / "out"} if command in WRITES_A_FOLDER else {}
    return getattr(ms, command)(model, STAR, **CASES[command][1], **keywords, **out)


def compare(record, document, but=()):
    ours = json.loads(json.dumps(record.to_dict()))
    for key in ("argv", "elapsed_ms", *but):
        del ours[key], document[key]
    assert_alike(ours, document)


def line(command, model, cwd):
    out = f"--out {cwd / 'out'} --force" if command in WRITES_A_FOLDER else ""
    return f"{command} {STAR} {model} {CASES[command][0]} {out}"


@pytest.mark.parametrize("command", CASES)
@pytest.mark.parametrize(("model", "named", "keywords"), [
    ("-m squeezenet1_1 -w none --size 64", "squeezenet1_1", {"weights": "none", "size": 64}),
    (f"-m {TINY} -c {HEALTHY} --hook {ZEROED}", TINY, {"checkpoint": HEALTHY, "hook": ZEROED}),
], ids=["zoo", "checkpoint"])  # fmt: skip
def test_function_and_command_give_the_same_document(command, model, named, keywords, both, cwd):
    record = call(command, named, keywords, cwd)
    written = {file.name for file in cwd.rglob("*") if file.is_file()}
    compare(record, both.typed(line(command, model, cwd)))
    assert {file.name for file in cwd.rglob("*") if file.is_file()} == written


@pytest.mark.parametrize("command", CASES)
def test_a_module_is_described_as_by_the_command_and_left_as_it_was(command, both, cwd, unchanged):
    module = handed_over()
    check = unchanged(module)
    record = call(command, module, {"seed": 3}, cwd)
    check()
    assert both.said() == ""
    compare(record, both.typed(line(command, f"-m {TINY} -w none --seed 3", cwd)), but=["model"])


@pytest.mark.parametrize("command", CASES)
def test_nothing_is_written_where_no_folder_was_given(command, cwd, both):
    getattr(ms, command)(handed_over(), STAR, **CASES[command][1])
    assert list(cwd.iterdir()) == []
    assert both.said() == ""


@pytest.mark.parametrize("command", CASES)
def test_a_decoded_image_does_as_well_as_its_file(command):
    module = handed_over()
    ours, theirs = (
        getattr(ms, command)(module, image, **CASES[command][1]).to_dict()
        for image in (STAR, Image.open(STAR))
    )
    assert list(theirs["input"]["files"]) == ["image 1"]
    text = json.dumps(ours).replace(json.dumps(STAR), '"image 1"')
    ours, theirs = json.loads(text), json.loads(json.dumps(theirs))
    for document in (ours, theirs):
        del document["elapsed_ms"], document["argv"]
    assert_alike(ours, theirs)


@pytest.mark.parametrize("command", CASES)
def test_a_record_shows_itself_in_a_notebook(command):
    record = getattr(ms, command)(handed_over(), STAR, **CASES[command][1])
    assert str(record)
    assert "<table" in record._repr_html_()


@pytest.mark.parametrize("command", sorted(WRITES_A_FOLDER))
def test_a_folder_that_is_not_empty_is_refused_before_the_model_is_loaded(command, cwd):
    (cwd / "out").mkdir()
    (cwd / "out" / "mine.txt").write_text("kept")
    with pytest.raises(UsageError, match="is not empty"):
        getattr(ms, command)("resnet34", STAR, **CASES[command][1], out=cwd / "out", weights="nonsense")


def test_one_image_is_meant():
    with pytest.raises(UsageError, match="one image at a time, not 2"):
        ms.featuremaps(handed_over(), [STAR, STAR])
    with pytest.raises(UsageError, match="the tensor has 2"):
        ms.featuremaps(handed_over(), torch.rand(2, 3, 64, 64))
    assert ms.featuremaps(handed_over()).maps  # noise


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


def test_a_loader_and_a_tensor_are_predicted_without_names():
    module, images = handed_over(), torch.rand(3, 3, 64, 64)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, torch.arange(3)), batch_size=2
    )
    assert [row.image for row in ms.predict(module, loader).predictions] == ["0", "1", "2"]
    assert [row.image for row in ms.predict(module, images).predictions] == ["0", "1", "2"]
    assert [row.image for row in ms.predict(module, batch=2).predictions] == ["0", "1"]  # noise


def test_pruned_weights_are_saved_where_asked_and_nowhere_else(cwd):
    module = handed_over()
    file = cwd / "pruned.safetensors"
    record = ms.prune(module, STAR, amount=0.5, sweep=(), global_=True, save_weights=file)
    assert [file.name for file in cwd.iterdir()] == ["pruned.safetensors"]
    assert record.file_bytes == (cwd / "pruned.safetensors").stat().st_size
    saved = load_file(cwd / "pruned.safetensors")
    names = {f"{row.name}.{row.parameter}" for row in record.layers}
    assert sum(int((saved[name] == 0).sum()) for name in names) == record.totals.zeros
    assert record.totals.zeros == round(0.5 * record.totals.numel)


@pytest.mark.parametrize("keywords", [{"model": HEALTHY}, {"model": TINY, "checkpoint": HEALTHY}])
def test_the_weights_that_are_pruned_are_not_overwritten(keywords):
    with pytest.raises(UsageError, match="overwrite the checkpoint"):
        ms.prune(inputs=STAR, save_weights=HEALTHY, **keywords)


def test_an_attack_is_the_same_whether_its_image_goes_to_a_file_or_not(cwd):
    module = handed_over()
    kept = ms.attack(module, STAR, epsilon="8/255", steps=3)
    saved = ms.attack(module, STAR, epsilon="8/255", steps=3, out=cwd / "out")
    assert (kept.out_dir, kept.files) == (None, ())
    assert {file.name for file in (cwd / "out").iterdir()} == set(saved.files)
    ours, theirs = kept.to_dict(), saved.to_dict()
    for key in ("elapsed_ms", "out_dir", "files"):
        del ours[key], theirs[key]
    assert_alike(json.loads(json.dumps(ours)), json.loads(json.dumps(theirs)))


@pytest.mark.parametrize(("inputs", "said"), [
    (None, "noise is not an image"),
    (torch.zeros(1, 3, 64, 64), "the tensor is not an image"),
    ([STAR, STAR], "one image at a time, not 2"),
    ([Image.new("RGB", (64, 64))] * 2, "the list of images has 2"),
])  # fmt: skip
def test_an_attack_needs_one_image(inputs, said):
    with pytest.raises(UsageError, match=said):
        ms.attack(handed_over(), inputs)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_an_attack_differentiates_whatever_the_caller_has_switched_off(without):
    module = handed_over()
    with without():
        record = ms.attack(module, STAR, epsilon="8/255", steps=2)
        assert not torch.is_grad_enabled()
    assert record.losses[0] == pytest.approx(
        ms.attack(module, STAR, epsilon="8/255", steps=2).losses[0], rel=1e-3
    )


def test_steps_of_an_attack_are_counted_for_a_progress_listener():
    class Counting(Silent):
        seen = 0

        def track(self, items, what, total):
            self.what, self.total = what, total
            for item in items:
                yield item
                self.seen += 1

    progress = Counting()
    record = ms.attack(handed_over(), STAR, epsilon="8/255", steps=3, progress=progress)
    assert (progress.what, progress.total) == ("steps", 4)
    assert progress.seen == sum(map(len, record.losses))
