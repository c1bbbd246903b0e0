"""What losses are computed from: seen for every criterion of torch, however it is called, and left as it was."""

import math

import numpy
import pytest
import torch
from tolerance import close
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy as imported_before_anybody_looked

from modelscope_cli.report.watch.table import run_facts
from modelscope_cli.watching.criteria import KINDS, PICKED

N, CLASSES = 12, 5
STEPS = 4
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
MODULES = {
    "cross_entropy": nn.CrossEntropyLoss,
    "nll_loss": nn.NLLLoss,
    "binary_cross_entropy": nn.BCELoss,
    "binary_cross_entropy_with_logits": nn.BCEWithLogitsLoss,
    "mse_loss": nn.MSELoss,
    "l1_loss": nn.L1Loss,
    "smooth_l1_loss": nn.SmoothL1Loss,
    "huber_loss": nn.HuberLoss,
    "kl_div": nn.KLDivLoss,
    "poisson_nll_loss": nn.PoissonNLLLoss,
}


def fit_for(name, logits):
    """Return what a criterion is to be given: a prediction and its target."""
    if name == "kl_div":
        return logits.log_softmax(1), torch.randn(logits.shape).softmax(1)
    if name in ("cross_entropy", "nll_loss"):
        x = logits.log_softmax(1) if name == "nll_loss" else logits
        return x, torch.arange(len(logits)) % CLASSES
    if name.startswith("binary"):
        x = logits if name.endswith("logits") else logits.sigmoid()
        return x, (torch.arange(logits.numel()).view_as(logits) % 3 == 0).float()
    return logits, torch.linspace(0, 1, logits.numel()).view_as(logits)


def train(loss, steps=STEPS, evaluate=None, out=CLASSES):
    """Train a linear model and return the values of its losses."""
    model = nn.Linear(4, out)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    values = []
    for _ in range(steps):
        found = loss(model(torch.randn(N, 4)))
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        values.append(found.item())
        if evaluate is not None:
            evaluate(model)
    return values


def from_import(name):
    namespace = {}
    exec(f"from torch.nn.functional import {name} as criterion", namespace)
    return namespace["criterion"]


WAYS = {
    "function": lambda name: getattr(F, name),
    "module": lambda name: MODULES[name](),
    "from-import": from_import,
    "by keywords": lambda name: lambda x, y: getattr(F, name)(target=y, input=x, reduction="mean"),
}


def test_every_criterion_is_tried() -> None:
    others = {"ctc_loss", "gaussian_nll_loss"}  # take lengths, or variances, too
    assert {*MODULES} | others | {*RANKING} == set(KINDS) - {PICKED}


CALLS = [
    *((name, "module") for name in MODULES if name != "cross_entropy"),
    *(("cross_entropy", way) for way in WAYS),
]


@pytest.mark.parametrize(("name", "way"), CALLS)
def test_a_criterion_is_seen_with_its_own_value(recorded, name, way):
    values = []
    record = recorded(lambda: values.extend(train(lambda logits: WAYS[way](name)(*fit_for(name, logits)))))
    (seen,) = record.facts.criteria
    assert (seen.name, seen.is_training, seen.is_summed, seen.shapes) == (name, True, False, None)
    assert seen.place.startswith("test_criteria.py:")
    assert seen.series.step == tuple(range(STEPS))
    assert seen.series.value == close(values)
    assert record.loss[0].value == close(values)
    kind = KINDS[name]
    assert seen.classes == {"classes": CLASSES, "binary": 2}.get(kind)
    assert (seen.series.accuracy[0] is None) == (kind in ("numbers", "divergence"))
    if kind == "numbers":
        _, target = fit_for(name, torch.zeros(N, CLASSES))
        assert seen.series.target_variance == close([target.var(correction=0).item()] * STEPS)


def test_a_foreign_wrapper_around_a_criterion_is_left_alone(watching):
    before = F.mse_loss
    mine = []

    def wrapped(*args, **kwargs):
        mine.append(1)
        return before(*args, **kwargs)

    def script():
        F.mse_loss = wrapped
        train(lambda logits: F.mse_loss(logits, torch.zeros_like(logits)))

    try:
        watching(script)
        assert F.mse_loss is wrapped
        assert len(mine) == STEPS
    finally:
        F.mse_loss = before


def test_what_was_imported_by_name_before_is_not_seen_and_the_loss_is(recorded):
    labels = torch.arange(N) % CLASSES
    record = recorded(lambda: train(lambda logits: imported_before_anybody_looked(logits, labels)))
    assert record.facts.criteria == ()
    assert len(record.loss[0].value) == STEPS


# Compiled


def scripted(x, y):
    return F.cross_entropy(x, y) + F.mse_loss(x.softmax(1), torch.zeros_like(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:FutureWarning")
def test_torchscript_compiles_and_gives_the_same(watching):
    x, y = torch.randn(N, CLASSES), torch.arange(N) % CLASSES
    inside = []
    watching(lambda: inside.append(torch.jit.script(scripted)(x, y)))
    assert torch.equal(inside[0], torch.jit.script(scripted)(x, y))
    assert inside[0] == close(scripted(x, y).item())


# What is counted


def one(record, is_training=True):
    (seen,) = [each for each in record.facts.criteria if each.is_training == is_training]
    return seen


def test_evaluation_is_recorded_beside_training_under_no_grad_too(recorded):
    x, labels = torch.randn(50, 4), torch.arange(50) % CLASSES
    seen = []

    def evaluate(model):
        with torch.no_grad():
            for part in (slice(0, 30), slice(30, 50)):
                F.cross_entropy(model(x[part]), labels[part])
            scores = model(x)
            seen.append((F.cross_entropy.__wrapped__(scores, labels).item(), scores.argmax(1).eq(labels)))

    train_labels = torch.arange(N) % CLASSES
    record = recorded(lambda: train(lambda logits: F.cross_entropy(logits, train_labels), evaluate=evaluate))
    evaluation = one(record, is_training=False)
    assert evaluation.series.rows == (50,) * STEPS
    assert evaluation.series.value == close([value for value, _ in seen])
    assert evaluation.series.accuracy == close([right.float().mean().item() for _, right in seen])
    assert one(record).series.rows == (N,) * STEPS


def figures(recorded, loss, out=CLASSES):
    """Return what was seen of a loss, and what it was given, in the first step."""
    given = []

    def seen(logits):
        given.append(logits.detach())
        return loss(logits)

    record = recorded(lambda: train(seen, 1, out=out))
    return one(record), given[0]


def test_accuracy_and_shares_are_those_of_the_batch(recorded):
    labels = torch.tensor([0] * 6 + [1] * 3 + [2] * 3)
    seen, logits = figures(recorded, lambda x: F.cross_entropy(x, labels))
    guesses = logits.argmax(1)
    assert seen.series.accuracy[0] == close(guesses.eq(labels).float().mean().item())
    assert seen.series.commonest_label[0] == close(0.5)
    assert seen.series.commonest_prediction[0] == close(guesses.bincount().max().item() / N)
    plain = -sum(share * math.log(share) for share in (0.5, 0.25, 0.25))
    assert seen.label_entropy == close(plain + 2 / (2 * N))  # Miller 1955


def test_of_a_large_batch_in_training_the_whole_loss_and_some_rows_are_read(recorded):
    x, labels = torch.randn(1000, 200), torch.arange(1000) % 200

    def loss(logits):
        scores = (x + 0 * logits.sum()).log_softmax(1)
        with torch.no_grad():
            F.nll_loss(scores, labels)
        return F.nll_loss(scores, labels)

    record = recorded(lambda: train(loss, 1))
    for is_training, every in ((True, 6), (False, 1)):
        seen = one(record, is_training).series
        right = x[::every].argmax(1) == labels[::every]
        assert seen.rows == (len(right),)
        assert seen.accuracy[0] == close(right.float().mean().item())
        assert seen.value[0] == close(F.nll_loss(x.log_softmax(1), labels).item())


def test_label_smoothing_keeps_the_labels(recorded):
    labels = torch.arange(N) % CLASSES
    seen, logits = figures(recorded, lambda x: F.cross_entropy(x, labels, label_smoothing=0.1))
    assert seen.series.value[0] == close(F.cross_entropy(logits, labels, label_smoothing=0.1).item())
    assert seen.series.accuracy[0] == close(logits.argmax(1).eq(labels).float().mean().item())


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_entropy_is_the_least_cost_of_one_output_for_all(recorded, smoothing):
    labels = torch.tensor([0] * 6 + [1] * 3 + [2] * 3)
    seen, _ = figures(recorded, lambda x: F.cross_entropy(x, labels, label_smoothing=smoothing))
    shares = (1 - smoothing) * labels.bincount(minlength=CLASSES) / N + smoothing / CLASSES
    best = shares.clamp_min(1e-30).log().expand(N, -1)
    least = F.cross_entropy(best, labels, label_smoothing=smoothing).item()
    assert seen.label_entropy == close(least + 2 / (2 * N))  # Miller 1955


@pytest.mark.parametrize("ignored", [-100, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_what_is_ignored_is_not_counted(recorded, ignored, reduction):
    labels = torch.arange(N) % 3
    labels[:4] = ignored
    options = {"ignore_index": ignored, "reduction": reduction}
    seen, logits = figures(recorded, lambda x: F.cross_entropy(x, labels, **options).sum())
    assert seen.series.rows == (N - 4,)
    assert seen.series.accuracy[0] == close(logits[4:].argmax(1).eq(labels[4:]).float().mean().item())
    assert seen.series.value[0] == close(F.cross_entropy(logits[4:], labels[4:]).item())


def test_shares_of_classes_are_not_labels(recorded):
    shares = torch.full((N, CLASSES), 1 / CLASSES)
    seen, logits = figures(recorded, lambda x: F.cross_entropy(x, shares))
    assert seen.series.accuracy == (None,)
    assert (seen.label_entropy, seen.commonest_label) == (None, None)
    assert seen.series.value[0] == close(F.cross_entropy(logits, shares).item())


def test_per_pixel_labels_are_counted_one_by_one(recorded):
    labels = torch.arange(N * 6).view(N, 2, 3) % CLASSES
    seen, logits = figures(
        recorded, lambda x: F.cross_entropy(x.view(N, CLASSES, 2, 3), labels), out=CLASSES * 6
    )
    scores = logits.view(N, CLASSES, 2, 3)
    assert (seen.classes, seen.series.rows) == (CLASSES, (N * 6,))
    assert seen.series.accuracy[0] == close(scores.argmax(1).eq(labels).float().mean().item())
    assert seen.series.value[0] == close(F.cross_entropy(scores, labels).item())


def test_bare_logits_and_probabilities_have_another_middle(recorded):
    target = torch.rand(N, CLASSES).round()
    seen, logits = figures(recorded, lambda x: F.binary_cross_entropy_with_logits(x, target))
    assert seen.series.accuracy[0] == close((logits > 0).eq(target > 0.5).float().mean().item())
    seen, logits = figures(recorded, lambda x: F.binary_cross_entropy(x.sigmoid(), target))
    assert seen.series.accuracy[0] == close((logits > 0).eq(target > 0.5).float().mean().item())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_guessing_costs_what_the_best_constant_does(recorded, reduction):
    target = 3 * torch.arange(CLASSES) + torch.randn(N, CLASSES, generator=torch.Generator().manual_seed(0))
    seen, _ = figures(recorded, lambda x: F.mse_loss(x, target, reduction=reduction))
    best = F.mse_loss(target.mean(0).expand_as(target), target, reduction=reduction).item()
    assert seen.series.guessing[0] == close(best / (N if reduction == "sum" else 1) * N / (N - 1))


def test_guessing_with_a_weight_for_positives_costs_what_the_best_constant_does(recorded):
    target, weight = (torch.arange(N) % 4 == 0).float().repeat(CLASSES, 1).T.contiguous(), torch.tensor(3.0)
    seen, _ = figures(recorded, lambda x: F.binary_cross_entropy_with_logits(x, target, pos_weight=weight))
    constants = torch.linspace(-3, 3, 6001)
    costs = [
        F.binary_cross_entropy_with_logits(c.expand_as(target), target, pos_weight=weight) for c in constants
    ]
    assert seen.is_weighted
    assert seen.series.guessing[0] == pytest.approx(min(costs).item() * N / (N - 1), rel=1e-4)


RANKING = {
    "triplet_margin_loss": (lambda a, b, c: F.triplet_margin_loss(a, b, c, margin=1.0), 1.0),
    "triplet_margin_with_distance_loss": (nn.TripletMarginWithDistanceLoss(margin=0.3), 0.3),
    "margin_ranking_loss": (
        lambda a, b, c: F.margin_ranking_loss(a, b, torch.ones(N, CLASSES), margin=0.5),
        0.5,
    ),
}


@pytest.mark.parametrize("name", RANKING)
def test_equal_embeddings_cost_the_margin(recorded, name):
    criterion, margin = RANKING[name]
    seen, logits = figures(recorded, lambda x: criterion(x, x.roll(1, 0), x.roll(2, 0)))
    assert (seen.name, seen.classes, seen.shapes) == (name, None, None)
    assert seen.series.guessing[0] == close(margin)
    equal = torch.zeros(N, CLASSES)
    assert criterion(equal, equal, equal).item() == close(margin)
    assert seen.series.value[0] == close(criterion(logits, logits.roll(1, 0), logits.roll(2, 0)).item())
    assert math.isnan(seen.series.target_variance[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_value_is_the_mean_whatever_the_reduction(recorded, reduction):
    labels = torch.arange(N) % CLASSES
    seen, logits = figures(
        recorded,
        lambda x: F.cross_entropy(x, labels, reduction=reduction).sum() / (1 if reduction == "mean" else 2),
    )
    assert seen.is_summed == (reduction == "sum")
    assert seen.series.value[0] == close(F.cross_entropy(logits, labels).item())


@pytest.mark.parametrize(("make", "made_by"), [
    (lambda x: x.softmax(1), "softmax"),
    (nn.LogSoftmax(1), "log_softmax"),
    (lambda x: x.relu().view(N, CLASSES), "relu"),
    (lambda x: torch.tanh(x).double(), "tanh"),
    (lambda x: x.sigmoid().t().contiguous().t(), "sigmoid"),
    (lambda x: x, None),
    (lambda x: 2 * x.relu(), None),
])  # fmt: skip
def test_what_made_the_input_is_named_behind_views_and_casts(recorded, make, made_by):
    labels = torch.arange(N) % CLASSES
    seen, _ = figures(recorded, lambda x: F.cross_entropy(make(x), labels))
    assert seen.made_by == made_by
    assert all(seen.series.is_probability) == (made_by == "softmax")


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_shapes_that_broadcast_are_kept(recorded):
    seen, _ = figures(recorded, lambda x: F.mse_loss(x, torch.zeros(N)), out=1)
    assert seen.shapes == ((N, 1), (N,))


@pytest.mark.parametrize("x", [torch.zeros(0, CLASSES), torch.zeros(CLASSES)])
def test_odd_shapes_end_nothing(recorded, x):
    labels = torch.zeros(x.shape[:-1], dtype=torch.long)

    def loss(logits):
        with torch.no_grad():
            F.cross_entropy(x, labels)
        return F.cross_entropy(logits, torch.arange(N) % CLASSES)

    record = recorded(lambda: train(loss))
    assert len(record.loss[0].value) == STEPS


@pytest.mark.parametrize(("name", "dim", "made_by"), [
    ("ctc_loss", 2, "log_softmax"),
    ("ctc_loss", 0, "softmax over dimension 0"),
    ("ctc_loss", 1, "softmax over dimension 1"),
    ("nll_loss", 1, "log_softmax"),
    ("nll_loss", 0, "softmax over dimension 0"),
    ("cross_entropy", 0, "softmax over dimension 0"),
    ("cross_entropy", 1, "softmax"),
])  # fmt: skip
def test_probabilities_of_something_but_the_classes_are_reported(recorded, name, dim, made_by) -> None:
    def loss(logits):
        if name == "ctc_loss":
            scores = logits.view(6, 2, CLASSES).log_softmax(dim)
            return F.ctc_loss(
                scores, torch.ones(2, 3, dtype=torch.long), torch.full((2,), 6), torch.full((2,), 3)
            )
        scores = logits.softmax(dim) if name == "cross_entropy" else logits.log_softmax(dim)
        return getattr(F, name)(scores, torch.arange(N) % CLASSES)

    record = recorded(lambda: train(loss))
    (seen,) = record.facts.criteria
    assert (seen.name, seen.made_by) == (name, made_by)
    is_told = any(one.code == "MS738" for one in record.findings)
    assert is_told == ("over" in made_by)


@pytest.mark.parametrize("name", ["kl_div", "ctc_loss"])
def test_probabilities_are_not_logarithms(recorded, name) -> None:
    def loss(logits):
        if name == "ctc_loss":
            scores = logits.view(6, 2, CLASSES).softmax(2)
            lengths = torch.full((2,), 6), torch.full((2,), 3)
            return F.ctc_loss(scores, torch.ones(2, 3, dtype=torch.long), *lengths)
        return F.kl_div(logits.softmax(1), torch.full((N, CLASSES), 1 / CLASSES), reduction="batchmean")

    (hint,) = [one.hint for one in recorded(lambda: train(loss)).findings if one.code == "MS738"]
    assert ("F.kl_div must be log_softmax" in hint) == (name == "kl_div")


def test_a_divergence_with_its_arguments_swapped_explains_that_the_loss_is_not_finite(recorded):
    def loss(logits):
        teacher = torch.linspace(-1, 1, N * CLASSES).reshape(N, CLASSES)
        return F.kl_div(teacher.softmax(1), logits.log_softmax(1), reduction="batchmean")

    found = {one.code: one.follows for one in recorded(lambda: train(loss)).findings}
    assert (found["MS738"], found["MS701"]) == (None, "MS738")


@pytest.mark.parametrize("name", ["mse_loss", "binary_cross_entropy_with_logits", "kl_div", "cross_entropy"])
def test_what_predictions_share_with_targets_is_their_covariance(recorded, name) -> None:
    seen, targets = [], torch.rand(N, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(1)

    def loss(logits):
        seen.append(logits.detach())
        return getattr(F, name)(logits.log_softmax(1) if name == "kl_div" else logits, targets)

    record = recorded(lambda: train(loss))
    change = {"mse_loss": lambda x: x, "binary_cross_entropy_with_logits": torch.sigmoid}
    given = [change.get(name, lambda x: x.softmax(1))(x).numpy() for x in seen]
    t = targets.numpy()
    both = [
        sum(numpy.cov(p[:, k], t[:, k])[0, 1] for k in range(CLASSES)) / t.var(0, ddof=1).sum() for p in given
    ]
    assert record.facts.criteria[0].series.shared == close(both)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["classes", "logits"])
def test_scores_that_are_not_finite_have_no_accuracy(recorded, kind, spoilt):
    labels, target = torch.arange(N) % CLASSES, torch.rand(N, CLASSES).round()

    def loss(x):
        x = x + torch.zeros(N, CLASSES).index_fill(0, torch.tensor([N - 1]), spoilt)
        return (
            F.cross_entropy(x, labels) if kind == "classes" else F.binary_cross_entropy_with_logits(x, target)
        )

    seen, _ = figures(recorded, loss)
    assert (seen.series.accuracy, seen.series.commonest_prediction) == ((None,), (None,))


def test_a_class_that_is_masked_is_not_predicted(recorded):
    labels = torch.arange(N) % CLASSES
    mask = torch.zeros(CLASSES).index_fill(0, torch.tensor([CLASSES - 1]), -math.inf)
    seen, logits = figures(recorded, lambda x: F.cross_entropy(x + mask, labels))
    assert seen.series.accuracy[0] == close((logits + mask).argmax(1).eq(labels).float().mean().item())


@pytest.mark.parametrize(("n_labels", "absent"), [(320, (1,)), (64, ())])
def test_a_class_that_no_label_is_of_is_told_once_there_are_enough_labels(recorded, n_labels, absent):
    def script():
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(n_labels // 16):
            labels = torch.tensor([0, 2, 3])[torch.randint(3, (16,))]
            loss = F.cross_entropy(net(torch.randn(16, 4)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    record = recorded(script)
    assert record.facts.criteria[0].absent == absent
    facts = dict(run_facts(record))
    said = f"class 1 of 4 did not occur in the {n_labels} labels that were looked at"
    assert facts.get("labels") == (said if absent else None)


OF_A_MODEL = {
    "the output": lambda model, x, y: (model(x), y),
    "scaled": lambda model, x, y: (2 * model(x) + 1, y),
    "joined": lambda model, x, y: (torch.cat([model(part) for part in x.split(10)]), y),
    "through an array": lambda model, x, y: (torch.from_numpy(model(x).numpy()), y),
    "in a buffer": lambda model, x, y: (
        torch.zeros(50, CLASSES).index_copy_(0, torch.arange(50), model(x)),
        y,
    ),
    "as the target": lambda model, x, y: (y, model(x)),
}
OF_NONE = {
    "the mean": lambda model, x, y: (y.mean().expand_as(model(x)), y),
    "a constant of that shape": lambda model, x, y: (torch.full_like(model(x), 0.5), y),
    "its type": lambda model, x, y: (y.roll(1, 0).to(model(x)), y),
    "the value before": lambda model, x, y: (y[1:], y[:-1]),
    "before any output": lambda model, x, y: (y.mean(0).expand_as(y), y),
    "another than the output": lambda model, x, y: (x[:, :1] + 0 * len(model(x)), y[:, :1]),
}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("how", [*OF_A_MODEL, *OF_NONE])
def test_only_what_depends_on_a_model_is_an_evaluation(recorded, how, context):
    x, y = torch.randn(50, 4), torch.randn(50, CLASSES)

    def evaluate(model):
        with context():
            F.mse_loss(*(OF_A_MODEL | OF_NONE)[how](model, x, y))

    labels = torch.arange(N) % CLASSES
    record = recorded(lambda: train(lambda logits: F.cross_entropy(logits, labels), evaluate=evaluate))
    names = [one.name for one in record.facts.criteria if not one.is_training]
    assert names == ["mse_loss"] * (how in OF_A_MODEL)
