"""Every loss against torch's own functions, targets of every kind, and what does not fit."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close, close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.analysis.gradients.losses import Criterion
from modelscope_cli.analysis.gradients.request import LossRequest
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.errors import CannotRunError, UsageError

LABELS = ("cat", "dog", "crane", "crane", "Bee")


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def judge(output: Any, family: str = "custom", categories: Any = LABELS, **options: Any) -> Any:
    return Criterion(LossRequest(**options), OutputReader(family, categories, nn.Identity()))(output)


X = scores(3, 5)
BEST = X.detach().argmax(1)
HOT = F.one_hot(BEST, 5).float()


@pytest.mark.parametrize(("options", "expected", "name"), [
    ({}, F.cross_entropy(X, BEST), "cross-entropy"),
    ({"name": "cross-entropy"}, F.cross_entropy(X, BEST), "cross-entropy"),
    ({"name": "cross-entropy", "target": "1"}, F.cross_entropy(X, torch.ones(3).long()), "cross-entropy"),
    ({"name": "bce"}, F.binary_cross_entropy_with_logits(X, (X > 0).float()), "bce"),
    (
        {"name": "bce", "target": "dog"},
        F.binary_cross_entropy_with_logits(X, F.one_hot(torch.ones(3).long(), 5).float()),
        "bce",
    ),
    ({"name": "mse"}, F.mse_loss(X, HOT), "mse"),
    ({"name": "mean"}, X.mean(), "mean"),
    ({"name": "logit"}, X.amax(1).mean(), "logit"),
    ({"name": "logit", "target": "4"}, X[:, 4].mean(), "logit"),
])  # fmt: skip
def test_losses_are_torchs_own(options, expected, name):
    loss = judge(X, **options)
    assert loss.value.ndim == 0
    assert loss.value.item() == close(expected.item())
    assert loss.name == name
    (ours,) = torch.autograd.grad(loss.value, X, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected, X, retain_graph=True)
    assert_close(ours, theirs)


def test_nll_is_torchs_own_and_takes_log_probabilities_only():
    logs = X.log_softmax(1)
    assert torch.equal(judge(logs, name="nll").value, F.nll_loss(logs, BEST))
    with pytest.raises(UsageError, match="'nll' needs log-probabilities"):
        judge(X, name="nll")


@pytest.mark.parametrize(("target", "words", "classes"), [
    ("predicted", "predicted", tuple(BEST.tolist())),
    ("1", "1 (dog)", (1, 1, 1)),
    ("dog", "1 (dog)", (1, 1, 1)),
    ("bee", "4 (Bee)", (4, 4, 4)),
    ("+0", "0 (cat)", (0, 0, 0)),
])  # fmt: skip
def test_a_target_is_an_index_a_label_or_the_prediction(target, words, classes):
    loss = judge(X, target=target)
    assert (loss.target, tuple(loss.classes.tolist())) == (words, classes)
    assert loss.value.item() == close(F.cross_entropy(X, torch.tensor(classes)).item())


@pytest.mark.parametrize(("target", "categories", "message", "hint"), [
    ("5", LABELS, "target 5 is out of range: the classes are 0..4", "--target predicted   or one of 0..4"),
    ("-1", LABELS, "target -1 is out of range: the classes are 0..4", "--target predicted   or one of 0..4"),
    ("5", None, "target 5 is out of range: the classes are 0..4", "--target predicted   or one of 0..4"),
    (
        "doge",
        LABELS,
        "unknown target 'doge': the classes are cat, dog, crane, Bee",
        "--target dog   or an index",
    ),
    ("crane", LABELS, "target 'crane' is the label of 2 classes: [2, 3]", "--target 2"),
    (
        "dog", None, "target 'dog' is not a class index, and the labels of this model are unknown",
        "--target predicted   or a class index; --labels FILE names the classes",
    ),
    (
        "+-1", None, "target '+-1' is not a class index, and the labels of this model are unknown",
        "--target predicted   or a class index; --labels FILE names the classes",
    ),
])  # fmt: skip
def test_a_target_that_is_none(target, categories, message, hint):
    with pytest.raises(UsageError) as caught:
        judge(X, target=target, categories=categories)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("name", ["cross-entropy", "nll", "bce", "logit"])
@pytest.mark.parametrize(("shape", "words"), [((3, 1), "3x1"), ((3,), "3"), ((), "a scalar")])
def test_a_loss_of_classes_needs_classes(name, shape, words):
    output = (scores(*shape), torch.ones(2))  # a lone scalar would be the model's own loss
    with pytest.raises(UsageError, match=f"loss '{name}' needs an output of N x classes, .* is {words}$"):
        judge(output, name=name)


@pytest.mark.parametrize(("output", "options", "quoted"), [
    (X, {"name": "mean", "target": "1"}, "'--target 1' does not apply to the loss 'mean'"),
    (scores(3, 1), {"target": "1"}, "'--target 1' does not apply to the loss 'mean square error'"),
    (scores(), {"target": "1"}, "'--target 1' does not apply to the loss 'the model's own'"),
])  # fmt: skip
def test_what_would_change_nothing_is_refused(output, options, quoted):
    with pytest.raises(UsageError) as caught:
        judge(output, **options)
    assert quoted in caught.value.message
    assert caught.value.hint.startswith("leave out --")


@pytest.mark.parametrize("shape", [(4, 1), (4,), (2, 3, 4, 4), (2, 3, 5)])
@pytest.mark.parametrize("name", ["auto", "mse"])
def test_an_output_that_is_not_a_vector_of_classes_is_compared_with_random_numbers(shape, name):
    x = scores(*shape)
    loss = judge(x, name=name)
    assert (loss.name, loss.target) == ("mean square error", "fixed random numbers")
    target = torch.randn(shape[1:], generator=torch.Generator().manual_seed(20_260_401))
    assert loss.value.item() == close(F.mse_loss(x, target.expand(shape)).item())


def test_the_loss_names_the_outputs_beside_the_scores_and_their_target():
    loss = judge(
        {"logits": X, "features": X.sin(), "box": scores(2, 4) * 2}
    )  # features have no weights of their own
    assert loss.name == "cross-entropy of output 'logits' + mean square error of 'box' from random numbers"


@pytest.mark.parametrize("normalised", [
    F.normalize,
    lambda x: F.normalize(x, dim=-1),
    lambda x: 64 * F.normalize(x),
    lambda x: {"embeds": F.normalize(x), "tokens": F.normalize(x, dim=-1)},
    lambda x: F.layer_norm(x, x.shape[1:]),
    lambda x: F.rms_norm(x, x.shape[1:]),
    lambda x: 0 * x,
], ids=["unit", "dense", "scaled", "several", "layer norm", "rms norm", "zero"])  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 8, 5), (4, 8, 3, 3)])
def test_the_loss_of_a_normalised_output_has_a_gradient(normalised, shape):
    x = scores(*shape)
    output = normalised(x)
    loss = judge(output)
    (arrived,) = torch.autograd.grad(loss.value, loss.outputs[:1], retain_graph=True)
    assert arrived.norm() > 1e-3
    (reached,) = torch.autograd.grad(loss.value, x)
    assert reached.norm() > 1e-3 * arrived.norm() or not output.any()


def test_segmentation_is_cross_entropy_per_pixel_with_the_auxiliary_head():
    out, aux = scores(1, 5, 4, 4), scores(1, 5, 4, 4) * 2
    best = out.detach().argmax(1)
    loss = judge({"out": out, "aux": aux}, family="segmentation")
    expected = F.cross_entropy(out, best) + 0.5 * F.cross_entropy(aux, best)
    assert loss.value.item() == close(expected.item())
    assert loss.name == "cross-entropy per pixel of output 'out' + 0.5 x an auxiliary head's"
    one = judge({"out": out}, family="segmentation", target="dog")
    assert one.value.item() == close(F.cross_entropy(out, torch.ones(1, 4, 4).long()).item())


def test_inception_and_googlenet_add_their_auxiliary_heads():
    aux = scores(3, 5) * 2
    best = F.cross_entropy(X, BEST)
    loss = judge({"logits": X, "aux_logits": aux})
    assert loss.value.item() == close((best + 0.4 * F.cross_entropy(aux, BEST)).item())
    loss = judge({"logits": X, "aux_logits2": aux, "aux_logits1": aux})
    assert loss.value.item() == close((best + 0.6 * F.cross_entropy(aux, BEST)).item())


def test_the_models_own_losses_are_added():
    parts = {"box": scores().square(), "label": scores().exp()}
    loss = judge(parts)
    assert torch.equal(loss.value, parts["box"] + parts["label"])
    assert loss.name == "sum of the model's own losses (box, label)"
    assert judge(parts["box"]).name == "the model's own"
    assert "label 3" in judge(parts, family="detection", target="3").target
    with pytest.raises(UsageError, match="a detection model in eval mode returns boxes"):
        judge([{"boxes": scores(7, 4), "scores": scores(7)}], family="detection")


@pytest.mark.parametrize(("output", "reason"), [
    (X.detach(), "does not depend on anything trainable: its forward runs under no_grad"),
    (X.detach().argmax(1), "the model returns tensors of int64, which cannot be differentiated"),
    ("text", "the model returns a str without tensors"),
    (None, "the model returns a NoneType without tensors"),
    ([], "the model returns a list without tensors"),
])  # fmt: skip
def test_an_output_that_cannot_be_differentiated(output, reason):
    with pytest.raises(CannotRunError) as caught:
        judge(output)
    assert reason in caught.value.message


CUSTOM = """
import torch

def one(output): return output.square().sum()
def two(output, target): return torch.nn.functional.cross_entropy(output, target)
def boxed(output): return output.sum().reshape(1, 1)
def vector(output): return output.sum(1)
def number(output): return 3.0
def without_graph(output): return output.detach().sum()
def raises(output): raise ValueError("no luck")
a_number = 3
class Loss:
    def __call__(self, output): return output.mean()
instance = Loss()
"""


@pytest.fixture
def custom(tmp_path):
    (tmp_path / "losses.py").write_text(CUSTOM)
    return lambda name: f"{tmp_path}/losses.py:{name}"


def test_a_loss_of_ones_own(custom):
    assert torch.equal(judge(X, name=custom("one")).value, X.square().sum())
    assert judge(X, name=custom("one")).target == "none"
    assert torch.equal(judge(X, name=custom("two")).value, F.cross_entropy(X, BEST))
    assert judge(X, name=custom("two"), target="dog").classes.tolist() == [1, 1, 1]
    assert judge(X, name=custom("boxed")).value.shape == ()
    assert torch.equal(judge(X, name=custom("instance")).value, X.mean())
    library = judge(X, name="torch.nn.functional:cross_entropy")
    assert torch.equal(library.value, F.cross_entropy(X, BEST))


@pytest.mark.parametrize(("name", "error", "quoted"), [
    ("vector", CannotRunError, "returned a tensor of (3,), not a scalar"),
    ("number", CannotRunError, "returned a float, not a scalar"),
    ("without_graph", CannotRunError, "returned a number without a gradient graph"),
    ("raises", CannotRunError, "raised ValueError: no luck"),
    ("a_number", UsageError, "is an int, not a function"),
    ("missing", UsageError, "has no attribute 'missing'"),
])  # fmt: skip
def test_a_loss_of_ones_own_that_does_not_work(custom, name, error, quoted):
    with pytest.raises(error) as caught:
        judge(X, name=custom(name))
    assert f"losses.py:{name}'" in caught.value.message or name == "missing"
    assert quoted in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("end", "name", "criterion"), [
    (nn.Sigmoid(), "bce", lambda p: F.binary_cross_entropy(p, (p > 0.5).to(p))),
    (nn.Softmax(1), "cross-entropy", lambda p: F.nll_loss(p.log(), p.argmax(1))),
    (nn.Identity(), "cross-entropy", lambda p: F.cross_entropy(p, p.argmax(1))),
])  # fmt: skip
def test_the_loss_fits_a_model_that_ends_in_probabilities(end, name, criterion):
    torch.manual_seed(0)
    body = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    model = nn.Sequential(*body, end)
    x = torch.randn(4, 3, 8, 8)
    record = ms.grads(model, x, batch=4)
    expected = criterion(model(x))
    expected.backward()
    assert record.loss.name == name
    assert record.loss.value == pytest.approx(expected.item(), rel=1e-5)
    ours = {row.name: row.grad_norm for row in record.parameters}
    assert ours["0.weight"] == pytest.approx(model[0].weight.grad.norm().item(), rel=1e-4)


def test_bce_names_no_single_class_as_its_target():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Sigmoid())
    assert ms.grads(net, torch.randn(1, 3, 2, 2)).loss.target == "predicted"
