"""What is said of a layer that is taken out, against formulas written out and whole reruns."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.analysis.ablation.ablating import Ablating, AblationRequest
from modelscope_cli.analysis.outputs.target_spec import parse_aim
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.selection import select
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.run import InputInfo, ModelInfo, WeightsInfo

LABELS = ("circle", "square", "triangle", "star")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ablations(model: nn.Module, *batches: Tensor, layers: Any = (), **request: Any) -> Ablating:
    info = ModelInfo("object", "net", "Net", WeightsInfo("none", "random", "seeded random"))
    loaded = LoadedModel(model, info, torch.device("cpu"), torch.float32, "custom", None, LABELS)
    interventions = request.pop("interventions", ())
    progress = {key: request.pop(key) for key in ("progress",) if key in request}

    def make() -> Iterator[Batch]:
        return (Batch((x,), len(x)) for x in batches)

    inputs = Inputs(InputInfo("noise", ()), sum(map(len, batches)), len(batches), make)
    if "target" in request:
        request["target"] = parse_aim(request["target"])
    selection = select(model, layers, (), (batches[0],))
    return Ablating(loaded, selection, AblationRequest(**request), interventions).run(inputs, **progress)


def test_a_dropout_in_eval_mode_is_not_set_to_zero_unless_it_is_named() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Identity(), nn.Linear(4, 4)).eval()
    assert {row.name for row in ablations(model, noise(3, 6)).rows} == {"0", "2", "3"}
    assert [row.name for row in ablations(model, noise(3, 6), layers=["1"]).rows] == ["1"]


def test_channels_of_a_linear_classifier() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(6, 4)).eval()
    x = noise(3, 6)
    found = ablations(model, x, layers=["0"], is_by_channel=True, target="star")
    weight, bias = model[1].weight.detach().double(), model[1].bias.detach().double()
    before = x.double() @ weight.T + bias
    assert len(found.rows) == 6
    for row in found.rows:
        after = before - x[:, row.channel, None].double() * weight[:, row.channel]
        kl = F.kl_div(after.log_softmax(1), before.log_softmax(1), reduction="batchmean", log_target=True)
        assert row.target_logit_change == close((after - before)[:, 3].mean().item(), scale=0.1)
        assert row.target_probability == close(after.softmax(1)[:, 3].mean().item(), scale=0.1)
        assert row.kl_divergence == close(kl.item(), scale=0.1)
        assert row.output_l2 == close((after - before).norm(dim=1).mean().item(), scale=1)
        changed = (after.argmax(1) != before.argmax(1)).double().mean().item()
        assert (row.changed_fraction, row.prediction_changed) == (close(changed), changed > 0)
        assert row.answer_label == LABELS[row.answer_index]
    divergences = [row.kl_divergence for row in found.rows]
    assert divergences == sorted(divergences, reverse=True)
    assert found.baseline.target_logit == close(before[:, 3].mean().item(), scale=0.1)
    assert (found.baseline.target, found.baseline.target_index) == ("3 (star)", 3)


class Residual(nn.Module):
    """In-place layers, one called twice, and an addition that no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.relu, self.head = nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        return self.head(self.relu(self.norm(self.conv2(x)) + x).mean((2, 3)))


@pytest.fixture
def residual() -> nn.Module:
    torch.manual_seed(0)
    return Residual().eval()


def by_hand(model: nn.Module, x: Tensor, name: str, call: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the logits of a whole run with an ordinary hook."""
    seen = []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        seen.append(module)
        return change(output) if len(seen) == call + 1 else None

    handle = model.get_submodule(name).register_forward_hook(hook)
    with torch.no_grad():
        logits = model(x)
    handle.remove()
    return logits


HOW: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda t: t * 0,
    "mean": lambda t: t.flatten(2).mean(2)[:, :, None, None].expand_as(t).clone() if t.ndim > 2
    else t.mean(1, keepdim=True).expand_as(t),
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_every_call_against_a_whole_run(residual: nn.Module, how: str) -> None:
    x = noise(2, 3, 8, 8)
    with torch.no_grad():
        before = residual(x)
    found = ablations(residual, x, how=how)
    assert found.why_whole is None
    assert {(row.name, row.call) for row in found.rows} == {
        ("conv1", 0), ("relu", 0), ("conv2", 0), ("norm", 0), ("relu", 1), ("head", 0),
    }  # fmt: skip
    answers = before.argmax(1, keepdim=True)
    for row in found.rows:
        after = by_hand(residual, x, row.name, row.call, HOW[how])
        assert row.output_l2 == close((after - before).double().norm(dim=1).mean().item())
        change = (after - before).gather(1, answers).mean().item()
        assert row.target_logit_change == close(change, scale=0.01)


@pytest.mark.parametrize("how", ["zero", "mean", "shuffle"])
@pytest.mark.parametrize("is_by_channel", [False, True])
def test_batches_are_as_good_as_one(residual: nn.Module, how: str, is_by_channel: bool) -> None:
    x = noise(5, 3, 8, 8)
    options = {"how": how, "is_by_channel": is_by_channel, "layers": ["conv2", "relu", "head"]}
    whole, parts = ablations(residual, x, **options), ablations(residual, *x.split(2), **options)
    assert len(whole.rows) == (6 + 6 + 6 + 4 if is_by_channel else 4)
    found = {(row.name, row.call, row.channel): row for row in parts.rows}
    for row in whole.rows:
        other = found[row.name, row.call, row.channel]
        assert other.target_logit_change == close(row.target_logit_change, scale=0.1)
        assert other.kl_divergence == close(row.kl_divergence, scale=0.01)
        assert other.changed_fraction == row.changed_fraction
    assert [p.top[0].index for p in whole.baseline.predictions] == [
        p.top[0].index for p in parts.baseline.predictions
    ]
    assert [p.image for p in parts.baseline.predictions] == ["0", "1", "2", "3", "4"]


def test_the_model_is_as_it_was(residual: nn.Module) -> None:
    residual.train()
    before = {name: dict(vars(module)) for name, module in residual.named_modules()}
    x = noise(2, 3, 8, 8)
    ablations(residual, x, is_by_channel=True, layers=["conv2"])
    for name, module in residual.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert all(vars(module)[key] is value for key, value in before[name].items())
        assert not module._forward_hooks
    assert torch.equal(x, noise(2, 3, 8, 8))


class Leaving(nn.Module):
    """Leaves a tensor behind in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        self.left = self.conv(x)
        return self.relu(self.left)


class Remembering(nn.Module):
    """Picks up what one of its blocks left behind, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.conv, self.head = Leaving(), nn.Conv2d(6, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.block(x)) + self.block.left
        return self.head((self.block(x[:, 3:]) + self.block.left).mean((2, 3)))


def test_a_model_that_keeps_something_runs_whole() -> None:
    torch.manual_seed(0)
    model, xs = Remembering().eval(), noise(4, 3, 8, 8).split(2)
    found = ablations(model, *xs)
    assert found.why_whole == "keeps state between runs"
    with torch.no_grad():
        before = torch.cat([model(x) for x in xs])
    for row in found.rows:
        after = torch.cat([by_hand(model, x, row.name, row.call, HOW["zero"]) for x in xs])
        assert row.output_l2 == close((after - before).double().norm(dim=1).mean().item())


class Caching(nn.Linear):
    """Makes something on its first run and keeps it, as position tables do."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(x.shape[-1])
        return super().forward(x * self.table)


def test_a_cache_filled_once_is_not_an_obstacle() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Caching(3, 4), nn.Linear(4, 4))
    assert ablations(model, noise(2, 3)).why_whole is None
    assert model[0].table is None


class Dropping(Residual):
    """Drops at random in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.relu(self.conv1(x)), 0.3)
        return self.head(F.dropout(self.relu(self.norm(self.conv2(x)) + x), 0.3).mean((2, 3)))


def test_a_model_that_draws_numbers_draws_the_same_in_every_pass() -> None:
    torch.manual_seed(0)
    model, x = Dropping().eval(), noise(2, 3, 8, 8)
    with torch.random.fork_rng(), torch.no_grad():
        before = model(x)
    found = ablations(model, x)
    assert (found.why_whole, found.warnings) == ("draws random numbers", [])
    for row in found.rows:
        with torch.random.fork_rng():
            after = by_hand(model, x, row.name, row.call, HOW["zero"])
        assert row.output_l2 == close((after - before).double().norm(dim=1).mean().item())


def test_a_model_that_is_another_each_time_is_called_unsteady() -> None:
    class Dice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + next(numbers)

    numbers = itertools.count()
    (warning,) = ablations(nn.Sequential(Dice(3, 4)), noise(2, 3)).warnings
    assert warning.code == "unsteady"


def test_an_answer_that_is_not_a_number_comes_first() -> None:
    class Divide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.abs().sum(1, keepdim=True)

    torch.manual_seed(0)
    found = ablations(nn.Sequential(nn.Linear(3, 4), nn.ReLU6(), nn.Linear(4, 4), Divide()), noise(2, 3))
    first, *others = found.rows
    assert first.name == "2"
    assert (first.kl_divergence, first.target_logit_change, first.output_l2) == (None, None, None)
    assert all(row.kl_divergence is not None for row in others)


@pytest.mark.parametrize(("model", "x", "quoted"), [
    (nn.Sequential(nn.Linear(3, 4), nn.Flatten(0)), noise(2, 3), "for 2 images is 8"),
    (nn.Linear(3, 4), torch.full((1, 3), torch.inf), "NaN or infinite"),
])  # fmt: skip
def test_nothing_to_compare(model: nn.Module, x: Tensor, quoted: str) -> None:
    with pytest.raises(CannotRunError, match=quoted):
        ablations(model, x)


class Flat(nn.Module):
    """Scores without a bias: without its features all are 0, and so no class is predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.norm, self.head = nn.Linear(6, 8), nn.Identity(), nn.Linear(8, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", ["zero", "mean"])
def test_where_all_scores_are_equal_there_is_no_prediction(seed: int, how: str) -> None:
    torch.manual_seed(seed)
    found = ablations(model := Flat().eval(), x := noise(5, 6, seed=seed), layers=["*"], how=how)
    for row in found.rows:
        h = model.features(x)
        h = torch.zeros_like(h) if how == "zero" else h.mean(1, keepdim=True).expand_as(h)
        scores = model.head(h) if row.name != "head" else torch.zeros(5, 4) if how == "zero" else x[:, :4] * 0
        if is_none := bool((scores.amax(1) == scores.amin(1)).all()):
            assert (row.changed_fraction, row.answer_index, row.answer_label) == (1.0, None, None)
            assert row.answer_fraction == 1.0
        assert is_none == (how == "zero" or row.name == "head")


@pytest.mark.parametrize("ending", [nn.Sigmoid, lambda: nn.Softmax(1), lambda: nn.LogSoftmax(1)])
@pytest.mark.parametrize("is_of_pixels", [False, True], ids=["classes", "pixels"])
def test_what_turns_logits_into_probabilities_is_ablated_only_by_name(ending, is_of_pixels):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 5, 3, padding=1), ending()]
    if not is_of_pixels:
        layers[1:1] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net, x, last = nn.Sequential(*layers), torch.rand(2, 3, 6, 6), str(len(layers) - 1)
    record = ms.ablate(net, x)
    assert [row.name for row in record.rows if row.name == last] == []
    assert len(record.rows) == len(layers) - 1
    assert record.is_independent == (ending is nn.Sigmoid and not is_of_pixels)
    assert [row.name for row in ms.ablate(net, x, layer=last).rows] == [last]


def test_the_sigmoid_of_one_bare_number_an_image_is_left_out():
    class Bare(nn.Sequential):
        def forward(self, x):
            return super().forward(x)[:, 0]

    net = Bare(nn.Flatten(), nn.Linear(12, 1), nn.Sigmoid())
    assert {row.name for row in ms.ablate(net, torch.rand(2, 3, 2, 2)).rows} == {"0", "1"}


def test_a_gate_that_is_the_last_layer_called_is_ablated():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.gate = nn.Conv2d(3, 4, 1), nn.Sigmoid()

        def forward(self, x):
            maps = self.conv(x)
            return (maps * self.gate(maps.mean((2, 3), keepdim=True))).mean((2, 3))

    assert {row.name for row in ms.ablate(Gated(), torch.rand(2, 3, 6, 6)).rows} == {"conv", "gate"}


@pytest.mark.parametrize("n_classes", [2, 6, 40])
@pytest.mark.parametrize(
    "wrap", [lambda h, y: y, lambda h, y: (y, h), lambda h, y: {"features": h, "logits": y}]
)
def test_raw_scores_of_independent_classes_are_compared_class_by_class(n_classes, wrap):
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, n_classes)

        def forward(self, x):
            h = self.body(x)
            return wrap(h, self.head(h))

    torch.manual_seed(n_classes)
    net, x = Several().eval(), noise(5, 6)
    record = ms.ablate(net, x, layer="body", output_kind="labels")
    with torch.no_grad():
        before, after = net.head(net.body(x)).double(), net.head.bias.double().expand(5, -1)
    p, q = before.sigmoid(), after.sigmoid()
    (row,), best = record.rows, before.argmax(1, keepdim=True)
    assert record.is_independent
    assert row.kl_divergence == close(float((p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()))
    assert row.changed_fraction == close(float(((p > 0.5) != (q > 0.5)).double().mean()))
    assert row.target_probability == close(float(q.gather(1, best).mean()))
    assert ms.predict(net, x, output_kind="labels").activation == "sigmoid"
    with pytest.raises(CannotRunError, match="sum to 1"):
        ms.ablate(nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), x, output_kind="labels")


def test_blocks_that_may_hand_on_their_input_are_known() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(3, 4, 1)), Means()
    )
    assert ablations(model, noise(2, 3, 4, 4), layers=["0", "1", "0.0"]).blocks == ["0"]


class Means(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_what_cuts_the_only_path_leaves_one_output_for_all_images(residual: nn.Module) -> None:
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    assert all(row.is_constant for row in ablations(chain, noise(5, 6)).rows)
    assert not any(row.is_constant for row in ablations(chain, noise(1, 6)).rows)
    assert not any(row.is_constant for row in ablations(chain, noise(1, 6).expand(3, 6)).rows)
    kept = {row.name: row.is_constant for row in ablations(residual, noise(3, 3, 12, 12)).rows}
    assert not all(kept.values())


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_differ_by_less_than_the_images_do_are_not_ranked(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = noise(12, 6, seed=seed)
    found = ablations(model, x[:5], x[5:], layers=["0"], is_by_channel=True)
    each = [
        {
            row.channel: row.kl_divergence
            for row in ablations(model, one[None], layers=["0"], is_by_channel=True).rows
        }
        for one in x
    ]
    gaps = torch.tensor([
        [one[found.rows[0].channel] - one[row.channel] for one in each] for row in found.rows[1:]
    ], dtype=torch.float64)  # fmt: skip
    close_by = gaps.mean(1).abs() <= 2 * gaps.std(1) / 12**0.5
    assert found.unranked == 1 + int(close_by.sum())
