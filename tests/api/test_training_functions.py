"""`train` and `lrfind` from Python: a module and a loader of the caller's, and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.importspec import import_object
from modelscope_cli.records.progress import SILENT
from modelscope_cli.records.train import Measurement, Suggestion
from modelscope_cli.records.watch import FAULT, SOUND, UNKNOWN, TrainingFinding
from modelscope_cli.report.lrfind.table import answer
from modelscope_cli.report.registry import view_of

pytestmark = pytest.mark.usefixtures("undrawn")

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
SMALL = {"size": 32, "pictures": 40, "batch": 8, "steps": 3}


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return import_object(TINY, "--model")()


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    return ms.train(import_object(TINY, "--model")(), **SMALL)


@pytest.fixture
def loader():
    data = TensorDataset(torch.randn(48, 3, 32, 32), torch.arange(48) % 10)
    return DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))


def test_a_module_gives_what_its_class_gives_and_is_left_as_it_was(unchanged, capsys, tiny):
    tiny(torch.randn(2, 3, 32, 32)).sum().backward()  # so that there are gradients
    tiny.block1.eval()
    tiny.conv.weight.requires_grad_(False)
    handle = tiny.head.register_forward_hook(lambda *_: None)
    check = unchanged(tiny)
    record = ms.train(tiny, freeze="conv", **SMALL)
    check()
    handle.remove()
    assert capsys.readouterr() == ("", "")
    assert record.run.model.source == "object"
    assert not any(row.name == "conv.weight" for row in record.training.parameters)


def test_loaders_of_the_callers_are_gone_through_alike_by_every_training(unchanged, tiny, loader):
    held_out = list(loader)
    check, order = unchanged(tiny), loader.generator.get_state()
    records = [ms.train(tiny, (loader, held_out), steps=5, optimizer=name) for name in ("sgd", "adamw")]
    check()
    assert torch.equal(order, loader.generator.get_state())
    first, second = (record.training for record in records)
    assert first.losses[0] == second.losses[0]  # before the first step only the images tell
    assert first.losses[1:] != second.losses[1:]
    record = records[0]
    assert (record.data.training_pictures, record.data.held_out_pictures) == (48, 48)
    assert first.held_out[-1].step == 5
    assert record.run.input.shape == ((16, 3, 32, 32),)


def test_a_range_test_leaves_a_module_and_a_loader_as_they_were(unchanged, capsys, tiny):
    model = tiny.double()
    model(torch.randn(2, 3, 32, 32, dtype=torch.float64)).sum().backward()
    model.block1.eval()
    data = TensorDataset(torch.randn(32, 3, 32, 32), torch.arange(32) % 10)
    loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    check, order = unchanged(model), loader.generator.get_state()
    record = ms.lrfind(model, loader, steps=6)
    check()
    assert torch.equal(order, loader.generator.get_state())
    assert capsys.readouterr() == ("", "")
    assert record.data == "DataLoader"
    assert record.run.input.shape == ((8, 3, 32, 32),)


REFUSED = {
    "too few pictures": ({"pictures": 3}, UsageError, "at least 20"),
    "no steps": ({"steps": 0}, UsageError, "at least 1"),
    "an unknown optimizer": ({"optimizer": "adamax"}, UsageError, "did you mean adamw"),
    "a keyword for a model that is named": ({"weights": "DEFAULT"}, UsageError, "'weights'"),
    "data of no kind": ({"data": 7}, UsageError, "'int' is an int"),
    "a folder that is not there": ({"data": "no/folder"}, CannotRunError, "does not exist"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(tiny, what):
    keywords, kind, words = REFUSED[what]
    with pytest.raises(kind) as caught:
        ms.train(tiny, **keywords)
    assert words in caught.value.message


def test_targets_that_do_not_fit_the_scores_are_explained(loader):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    with pytest.raises(CannotRunError, match="4 scores"):
        ms.train(model, loader, steps=2)


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Linear(4, 2)
    model.module = sys  # a module of Python's cannot be pickled, which is how it would be copied
    with pytest.raises(CannotRunError, match="cannot be copied"):
        ms.train(model, **SMALL)


@pytest.mark.parametrize("is_learnable", [True, False])
@pytest.mark.parametrize(("n_classes", "n_others"), [(10, 20), (20, 30)])
def test_a_few_validation_images_without_every_class_show_memorising(is_learnable, n_classes, n_others):
    generator = torch.Generator().manual_seed(1)
    x, means = torch.randn(128 + n_others, 24, generator=generator), torch.eye(24)
    y = torch.randint(n_classes, (len(x),), generator=generator)
    x += 6 * is_learnable * means[y]
    pair = (DataLoader(TensorDataset(x[:128], y[:128]), 32), DataLoader(TensorDataset(x[128:], y[128:]), 32))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, n_classes))
    one = ms.train(net, pair, steps=300, lr=0.1).training
    assert one.training_accuracy > 0.95
    assert [found.code for found in one.findings] == ["MS742"] * (not is_learnable)


@pytest.mark.parametrize("is_learnable", [True, False])
def test_a_training_that_only_memorises_is_not_called_sound(is_learnable):
    """Images whose labels are drawn, or their brightest channel; a validation set of 200 others."""
    generator = torch.Generator().manual_seed(3)

    def some(n):
        x = torch.rand(n, 3, 8, 8, generator=generator)
        x[range(n), torch.randint(3, (n,), generator=generator)] += 0.5 * is_learnable
        drawn = torch.randint(3, (n,), generator=generator)
        return x, x.mean((2, 3)).argmax(1) if is_learnable else drawn

    pair = [DataLoader(TensorDataset(*some(n)), batch_size=20) for n in (60, 200)]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 3))
    one = ms.train(net, tuple(pair), steps=400, lr=0.003).training
    assert one.losses[-1] < 0.5
    last = one.held_out[-1]
    if is_learnable:
        assert one.verdict == "nothing wrong"
        assert one.reason.startswith(
            f"learnt: the accuracy in evaluation is {100 * last.accuracy:.1f} % on 200"
        )
    else:
        assert last.accuracy < 0.45
        (memorised,) = one.findings
        assert memorised.code == "MS742"
        assert f"{100 * last.accuracy:.1f} % of 200 labels in evaluation" in memorised.message


def test_a_rate_found_by_a_slight_fall_is_said_to_be_unsure(tiny):
    record = ms.lrfind(tiny, steps=10, pictures=20, size=16, batch=4)
    smoothed = (2.0, 1.96, 3.0)
    found = replace(record, suggestion=Suggestion(0.1, 0.1, 0.1), smoothed=smoothed, lr=record.lr[:3])
    assert answer(replace(found, fall=0.04)).endswith("it fell by only 2.0 %: use more --steps to be sure")
    assert answer(replace(found, fall=0.4)).endswith(("halfway there", "steeply"))


@pytest.mark.parametrize(("batch", "is_told"), [(24, False), (300, True)])
def test_a_batch_of_more_images_than_there_are_is_told(tiny, batch, is_told):
    class Notes(type(SILENT)):
        def note(self, text):
            told.append(text)

    told = []
    record = ms.train(tiny, steps=1, pictures=30, size=16, batch=batch, progress=Notes())
    n = record.data.training_pictures
    assert (f"batch: all {n} training images, fewer than {batch}" in told) == is_told
    assert record.training.settings["batch"] == min(batch, n)


FINDING = TrainingFinding(
    code="MS742",
    rule="memorised",
    severity="error",
    layer=None,
    since_step=None,
    value=None,
    threshold=0,
    message="it memorises",
    hint="more data",
)
RISING = [2.3, 1.5, 1.2, 1.4, 1.6, 1.7, 1.9]


@pytest.mark.parametrize(("held", "end", "is_told"), [
    (RISING, 0.1, True),
    ([2.4, *RISING[1:]], 0.9, True),
    (RISING, 1.0, False),  # the loss in training is not far below
    ([2.3, 1.5, 1.4, 1.3, 1.2, 1.4, 1.6], 0.1, False),  # not for long
    ([2.3, 1.5, 1.2, 1.6, 1.3, 1.6, 1.25], 0.1, False),  # up and down
    ([0.3, 0.02, 0.01, 0.02, 0.02, 0.03, 0.03], 1e-4, False),  # both are almost zero
    ([2.3, 2.0, 1.5, 1.2, 1.1, 1.0, 0.9], 0.1, False),
])  # fmt: skip
@pytest.mark.parametrize("verdict", [SOUND, UNKNOWN, FAULT])
def test_a_training_that_overfits_is_said_to_and_since_when(trained, verdict, held, end, is_told):
    measured = tuple(Measurement(10 * n, loss, 0.5) for n, loss in enumerate(held, 1))
    losses = (*([2.3] * 35), *([end] * 35))
    loss = (replace(trained.training.loss[0], value=losses),)
    findings = (FINDING,) * (verdict == FAULT)
    course = {"steps": 70, "held_out": measured, "loss": loss}
    training = replace(trained.training, **course, findings=findings, verdict=verdict, reason="why")
    record = replace(trained, training=training)
    said, facts = view_of(record).answer(record), dict(view_of(record).sheet(record).facts)
    told = "since step 30: the validation loss was lowest then, 1.2000, and is 1.9000 now, "
    line = facts.get("overfitting" if verdict == FAULT else "verdict", "")
    assert [told in text for text in (said, line)] == [is_told] * 2
    if is_told and verdict == SOUND:
        assert said == f"Overfitting {told}{end:.4f} in training; why"
