"""Two models side by side: what is paired, what is measured, and that nothing is left of it."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerance import close
from torch import nn

from modelscope_cli.analysis.comparison.activations import Pairing, Side, diff_activations
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.forward_passes import OutputStream, StreamedOutput
from modelscope_cli.hooks.session import Call, ForwardError, HookSession
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.run import ModelInfo, WeightsInfo


class Net(nn.Module):
    """Calls one layer twice, in place, and drops."""

    def __init__(self, order=("a", "b"), fails=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.drop = nn.Dropout(0.5)
        self.order, self.fails = order, fails

    def forward(self, x):
        x = self.relu(self.bn(self.conv(x)))
        if self.fails is not None:
            raise self.fails
        branches = {name: getattr(self, name)(x) for name in self.order}
        return self.drop(self.relu(branches["a"] + branches["b"]))


BATCHES = [
    Batch((torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed)),), 2) for seed in (1, 2)
]


def side(label, module, dtype=torch.float32, **settings):
    info = ModelInfo("object", f"net {label}", type(module).__name__, WeightsInfo("none", "random", "random"))
    loaded = LoadedModel(module.eval().to(dtype), info, torch.device("cpu"), dtype, "custom", None, None)
    return Side(label, loaded, **settings)


def twins(**changes):
    torch.manual_seed(0)
    net = Net()
    twin = Net(**changes)
    twin.load_state_dict(net.state_dict())
    return net.eval(), twin.eval()


def compare(net, twin, tolerance=0.0, batches=BATCHES, **options):
    return diff_activations(side("A", net), side("B", twin), batches, tolerance, **options).rows


def outputs_of(net, batches=BATCHES):
    """Keep copies of all outputs, as nobody with little memory would."""
    kept, handles, calls = {}, [], {}
    for name, module in net.named_modules():

        def keep(module, args, output, name=name):
            index = calls[name] = calls.get(name, -1) + 1
            kept.setdefault((name, index), []).append(output.detach().double().clone())

        handles.append(module.register_forward_hook(keep))
    with torch.no_grad():
        for batch in batches:
            calls.clear()
            net(*batch.args)
    for handle in handles:
        handle.remove()
    return {key: torch.cat(tensors) for key, tensors in kept.items()}


def test_a_model_and_its_copy_are_the_same():
    rows = compare(*twins())
    labels = [row.label for row in rows]
    assert labels == ["conv", "bn", "relu", "a", "b", "relu#1", "drop", "Net"]
    assert {(row.status, row.differing, row.rel_l2) for row in rows} == {("same", 0, 0.0)}


def test_figures_are_those_of_the_outputs_kept_whole():
    net, twin = twins()
    twin.a.weight.data += 0.1
    ours, theirs = outputs_of(net), outputs_of(twin)
    rows = compare(net, twin)
    assert [row.status for row in rows] == ["same"] * 3 + ["changed", "same"] + ["changed"] * 3
    for row in rows:
        a, b = ours[row.name, row.call], theirs[row.name, row.call]
        assert row.rel_l2 == close(float((a - b).norm() / a.norm()))
        assert row.max_abs == close(float((a - b).abs().max()))


def test_bfloat16_is_near_and_measured_in_float64():
    net, twin = twins()
    rows = diff_activations(side("A", net), side("B", twin, torch.bfloat16), BATCHES, 1.6e-2).rows
    assert {row.status for row in rows} == {"same"}
    assert {(row.dtype, row.b_dtype) for row in rows} == {("float32", "bfloat16")}
    assert all(1e-4 < row.rel_l2 < 1.6e-2 for row in rows)


def test_another_order_of_calls_is_paired():
    net, twin = twins(order=("b", "a"))
    rows = diff_activations(side("A", net), side("B", twin), BATCHES, 0.0).rows
    assert {row.status for row in rows} == {"same"}
    assert {row.label for row in rows} == {"conv", "bn", "relu", "a", "b", "relu#1", "drop", "Net"}


def test_what_only_one_side_has():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    b = nn.Sequential(*copy.deepcopy(a), nn.Softmax(1))
    b[1] = nn.Sequential(nn.ReLU(), nn.Identity())
    rows = compare(a, b, batches=[Batch((torch.randn(3, 4),), 3)])
    found = [(row.label, row.status) for row in rows]
    assert found == [
        ("0", "same"),
        ("1.0", "added"),
        ("1.1", "added"),
        ("2", "same"),
        ("3", "added"),
        ("Sequential", "changed"),
        ("1", "removed"),
    ]


def test_another_shape_is_reshaped():
    a, b = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 5))
    rows = compare(a, b, batches=[Batch((torch.randn(3, 4),), 3)])
    assert [(row.status, row.shape, row.b_shape, row.rel_l2) for row in rows] == [
        ("reshaped", (3, 4), (3, 5), None)
    ] * 2


def test_of_two_architectures_the_outputs_are_compared():
    (row,) = compare(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Identity(), nn.ReLU()), is_whole_only=True)
    assert (row.name, row.status) == ("", "same")


@pytest.mark.parametrize("seeds", [(3, 3), (3, 4)])
def test_dropout_drops_alike_where_seeds_are(seeds):
    net, twin = twins()
    sides = [
        side(label, module, is_training=True, seed=seed)
        for label, module, seed in zip("AB", (net, twin), seeds, strict=True)
    ]
    rows = diff_activations(*sides, BATCHES, 0.0).rows
    drop = next(row for row in rows if row.label == "drop")
    assert drop.status == ("same" if seeds[0] == seeds[1] else "changed")
    assert next(row for row in rows if row.label == "bn").status == "same"


# What must be as before, however it ends


@pytest.fixture
def untouched():
    """Both models, to be found as they were, and no thread of ours."""
    net, twin = twins()
    before = [_state(module) for module in (net, twin)]
    flags = torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state().tolist()
    yield net, twin
    assert [_state(module) for module in (net, twin)] == before
    assert (torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state().tolist()) == flags
    assert torch.is_grad_enabled()
    assert not [thread for thread in threading.enumerate() if thread.name == "modelscope forward"]


def _state(module):
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in module.modules()]
    values = [value.tolist() for value in module.state_dict().values()]
    return hooks, [part.training for part in module.modules()], values


def test_nothing_is_left_after_a_run(untouched):
    net, twin = untouched
    diff_activations(side("A", net, is_training=True), side("B", twin, is_training=True), BATCHES, 0.0)


@pytest.mark.parametrize("failing", "AB")
@pytest.mark.parametrize("error", [ValueError("no luck"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_on_either_side_ends_both(untouched, failing, error):
    module = untouched["AB".index(failing)]
    module.fails = error
    expected = ForwardError if isinstance(error, ValueError) else type(error)
    with pytest.raises(expected) as caught:
        compare(*untouched)
    if expected is ForwardError:
        assert caught.value.message.startswith(f"{failing}: forward raised in the model")
    module.fails = None


def test_an_interrupt_while_comparing_ends_both(untouched, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("modelscope_cli.analysis.comparison.activations.sum_up", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(*untouched)


def test_b_that_cannot_be_opened_leaves_a_alone(untouched):
    net, _ = untouched
    with pytest.raises(CannotRunError, match="no shape before"):
        compare(net, nn.ModuleDict({"conv": nn.LazyConv2d(2, 3)}), batches=[])


def test_one_activation_of_each_is_alive():
    """Each layer but the last frees what came before it; a diff must not hold on to it."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = nn.ModuleList(nn.Identity() for _ in range(6))
            self.alive, self.most = weakref.WeakSet(), 0

        def forward(self, x):
            for step in self.steps:
                x = step(x + 1)
                self.alive.add(x)
                gc.collect(1)
                self.most = max(self.most, len(self.alive))
            return x

    a, b = Chain(), Chain()
    compare(a, b, batches=[Batch((torch.zeros(2, 2),), 2)])
    assert max(a.most, b.most) <= 2


# Pairing by itself, and the stream it lives on


def outputs(names):
    counts = {}
    for name in names:
        index = counts[name] = counts.get(name, -1) + 1
        yield StreamedOutput(Call(name, "Layer", 0, index, 0), "", torch.zeros(1))


NAMES = st.lists(st.sampled_from("abcdef"), max_size=12)


@given(NAMES, NAMES)
def test_every_output_comes_once_beside_its_own(ours, theirs):
    pairing = Pairing(frozenset("abcdef"), frozenset("abcdef"))
    list(pairing.pairs(outputs("abc"), outputs("cad")))  # another pass has no part in this one
    pairs = list(pairing.pairs(outputs(ours), outputs(theirs)))
    keys = [{output.key for output in outputs(names)} for names in (ours, theirs)]
    assert all(x.key == y.key for x, y in pairs if x and y)
    assert sorted(x.key for x, _ in pairs if x) == sorted(keys[0])
    assert sorted(y.key for _, y in pairs if y) == sorted(keys[1])
    assert sum(1 for x, y in pairs if x and y) == len(keys[0] & keys[1])


@given(NAMES, st.sets(st.sampled_from("abcdef")))
def test_nothing_is_kept_where_one_only_has_less(names, missing):
    def refuse(self):
        raise AssertionError("an output was copied")

    fewer = [name for name in names if name not in missing]
    pairing = Pairing(frozenset(names), frozenset(fewer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamedOutput, "copied", refuse)
        assert len(list(pairing.pairs(outputs(names), outputs(fewer)))) == len(names)


def test_an_unfinished_pass_is_ended():
    net, _ = twins()
    stream = OutputStream(net, seed=0, blocks={""})
    with HookSession(net, [stream]) as session:
        passing = stream.follow(lambda: session.run(BATCHES[0].args))
        assert next(passing).call.name == "conv"
        passing.close()
        assert [output.call.label for output in stream.follow(lambda: session.run(BATCHES[1].args))][-1] == ""
