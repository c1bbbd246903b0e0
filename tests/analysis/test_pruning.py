"""Pruning against `torch.nn.utils.prune` on a copy of the model, and the laws of what is cut."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import A_NETWORK, assert_close, close
from torch import nn
from torch.nn.utils import prune

from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.pruning.masks import find_prunable, make_masks
from modelscope_cli.analysis.pruning.prune import measure_pruning, pruned_state
from modelscope_cli.analysis.pruning.request import PruneRequest
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.forward_passes import WeightMasks
from modelscope_cli.hooks.session import ForwardError, HookSession
from modelscope_cli.inputs.batch import Batch


class Net(nn.Module):
    """Convolutions with groups and transposed, an attention that reads weights by itself, and a shared weight."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.grouped = nn.Conv2d(12, 8, 3, groups=4)
        self.up = nn.ConvTranspose2d(8, 16, 2)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.tied = nn.Linear(16, 16)
        self.twin = nn.Linear(16, 16)
        self.twin.weight = self.tied.weight
        self.unused = nn.Linear(5, 7)
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = self.up(torch.relu(self.grouped(x))).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.twin(torch.relu(self.tied(x))).mean(1))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def batches(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [Batch((torch.randn(n, 3, 8, 8, generator=generator),), n) for n in sizes]


def names(prunables):
    return [f"{prunable.layer}.{prunable.name}" for prunable in prunables]


WEIGHTS = ["conv.weight", "grouped.weight", "up.weight", "attention.in_proj_weight",
           "attention.out_proj.weight", "tied.weight", "unused.weight", "head.weight"]  # fmt: skip


def pruned_by_torch(net, request, prunables):
    """Apply torch's own functions to a copy of the model."""
    twin = copy.deepcopy(net)
    layers = dict(twin.named_modules())
    pairs = [(layers[prunable.layer], prunable.name) for prunable in prunables]
    if request.is_global:
        kind = prune.L1Unstructured if request.method != "random" else prune.RandomUnstructured
        torch.manual_seed(request.seed)
        prune.global_unstructured(pairs, kind, amount=request.amount)
    for seed, (layer, name) in enumerate(pairs if not request.is_global else [], request.seed):
        dim = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
        torch.manual_seed(seed)
        if request.method == "random" and request.structured:
            prune.random_structured(layer, name, request.amount, dim)
        elif request.method == "random":
            prune.random_unstructured(layer, name, request.amount)
        elif request.structured:
            prune.ln_structured(layer, name, request.amount, int(request.method[1]), dim)
        else:
            prune.l1_unstructured(layer, name, request.amount)
    for module in twin.modules():
        if isinstance(module, Net):  # torch splits a shared weight in two
            module.twin.weight = nn.Parameter(module.tied.weight.detach())
    return twin, [getattr(layer, f"{name}_mask") for layer, name in pairs]


KINDS = {
    "l1": PruneRequest(),
    "l2": PruneRequest(method="l2"),
    "random": PruneRequest(method="random", seed=3),
    "l1 global": PruneRequest(is_global=True),
    "random global": PruneRequest(method="random", is_global=True, seed=3),
    "l1 channels": PruneRequest(structured=True),
    "l2 channels": PruneRequest(method="l2", structured=True),
    "random channels": PruneRequest(method="random", structured=True, seed=3),
}


@pytest.mark.parametrize("request_", KINDS.values(), ids=list(KINDS))
def test_masks_are_torchs_and_so_are_the_answers(net, request_, unchanged):
    prunables = find_prunable(net, (), ())
    assert names(prunables) == WEIGHTS
    twin, truth = pruned_by_torch(net, request_, prunables)
    check = unchanged(net)
    masks = make_masks(prunables, request_.amount, request_)
    for prunable, mask in zip(prunables, truth, strict=True):
        assert torch.equal(masks[prunable.weight], mask.bool())
    (batch,) = batches(2)
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        expected = twin(*batch.args)
    torch.backends.mha.set_fastpath_enabled(True)
    with HookSession(net, interventions=[WeightMasks(masks)]) as session:
        got = session.run(batch.args)
    assert_close(got, expected)
    check()


@pytest.mark.parametrize("request_", KINDS.values(), ids=list(KINDS))
def test_counts_are_exact_and_drift_is_what_it_says(net, request_, unchanged):
    check = unchanged(net)
    parts = batches(3, 2)
    prunables = find_prunable(net, (), ())
    amounts = (0.0, 0.5, 0.9, 1.0)
    request_ = PruneRequest(0.3, amounts, request_.method, request_.structured, request_.is_global, 3)
    result = measure_pruning(OutputReader("custom", list("abcdef"), net), parts, prunables, request_)
    check()
    twin, truth = pruned_by_torch(net, request_, prunables)
    assert [row.zeros for row in result.layers] == [int((mask == 0).sum()) for mask in truth]
    assert [row.sparsity for row in result.layers] == [row.zeros / row.numel for row in result.layers]
    assert result.totals.zeros == sum(row.zeros for row in result.layers)
    assert result.totals.numel == sum(prunable.weight.numel() for prunable in prunables)
    assert result.totals.params == sum(parameter.numel() for parameter in net.parameters())

    assert [row.amount for row in result.sweep] == [0.0, 0.3, 0.5, 0.9, 1.0]
    nothing, drift, *_, everything = result.sweep
    assert (nothing.zeros, nothing.agreement) == (0, 1.0)
    assert (nothing.kl_divergence, nothing.max_logit_change) == (0.0, 0.0)  # bit for bit
    assert everything.sparsity == 1.0
    assert [row.zeros for row in result.sweep] == sorted(row.zeros for row in result.sweep)
    assert drift.zeros == result.totals.zeros

    x = torch.cat([part.args[0] for part in parts])
    with torch.no_grad():
        before, after = net(x), twin(x)
    assert drift.agreement == close(float((before.argmax(1) == after.argmax(1)).float().mean()))
    p, q = before.softmax(1), after.softmax(1)
    assert drift.kl_divergence == close(float((p * (p / q).log()).sum(1).mean()), 10 * A_NETWORK, scale=0.001)
    assert drift.max_logit_change == close(float((after - before).abs().max()), A_NETWORK)

    assert [row.image for row in result.before] == list("01234")
    assert [row.top[0].index for row in result.before] == before.argmax(1).tolist()
    assert [row.top[0].index for row in result.after] == after.argmax(1).tolist()
    assert result.after[0].top[0].label == "abcdef"[int(after[0].argmax())]


@given(
    amount=st.floats(0, 1), more=st.floats(0, 1), kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_more_cuts_the_same_and_more(amount, more, kind, seed):
    amount, more = sorted((amount, more))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 11), nn.Linear(11, 5))
    request = PruneRequest(
        method=KINDS[kind].method,
        structured=KINDS[kind].structured,
        is_global=KINDS[kind].is_global,
        seed=seed,
    )
    prunables = find_prunable(net, (), ())
    few, many = (make_masks(prunables, share, request) for share in (amount, more))
    for weight, mask in few.items():
        assert bool((many[weight] <= mask).all())
        unit = weight[0].numel() if request.structured else 1
        if not request.is_global:
            assert abs(int((~mask).sum()) - amount * weight.numel()) <= unit / 2 + 1e-9
    total = sum(weight.numel() for weight in few)
    if request.is_global:
        assert abs(sum(int((~mask).sum()) for mask in few.values()) - amount * total) <= 0.5 + 1e-9
    assert all(torch.equal(mask, again) for mask, again in
               zip(few.values(), make_masks(prunables, amount, request).values(), strict=True))  # fmt: skip


def test_pruned_state_holds_the_masked_weights_and_all_else(net):
    prunables = find_prunable(net, ("tied", "conv"), ("type:ConvTranspose2d",))
    assert names(prunables) == ["conv.weight", "tied.weight"]
    masks = make_masks(prunables, 0.5, PruneRequest())
    state = pruned_state(net, masks)
    own = net.state_dict()
    assert state.keys() == own.keys()
    changed = {name for name in own if not torch.equal(own[name], state[name])}
    assert changed == {"conv.weight", "tied.weight", "twin.weight"}
    assert torch.equal(state["twin.weight"], net.tied.weight * masks[net.tied.weight])


def test_which_layers_are_meant(net):
    model = nn.Sequential(net, nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6)), nn.Linear(6, 2))
    assert names(find_prunable(model, ("1",), ())) == ["1.0.weight"]  # a block is what is in it
    assert names(find_prunable(model, ("linear",), ("0",))) == ["1.0.weight", "2.weight"]
    assert names(find_prunable(model, ("type:ConvTranspose2d",), ())) == ["0.up.weight"]
    with pytest.raises(UsageError, match="layer pattern 'relu' matches no layer with weights"):
        find_prunable(model, ("relu",), ())
    with pytest.raises(UsageError, match="'conv@1' names calls"):
        find_prunable(model, ("conv@1",), ())
    with pytest.raises(UsageError, match="the model has no layer with weights"):
        find_prunable(nn.Sequential(nn.ReLU()), (), ())


class Ill(nn.Module):
    """Raises in the middle of its forward, or is interrupted there."""

    def __init__(self, error):
        super().__init__()
        self.conv, self.error = nn.Conv2d(3, 4, 3), error

    def forward(self, x):
        self.conv(x)
        raise self.error


@pytest.mark.parametrize("error", [ValueError("ill"), KeyboardInterrupt()])
def test_weights_are_back_after_an_exception(unchanged, error):
    model = Ill(error).eval()
    check = unchanged(model)
    prunables = find_prunable(model, (), ())
    with pytest.raises(ForwardError if isinstance(error, ValueError) else KeyboardInterrupt):
        measure_pruning(OutputReader("custom", None, model), batches(1), prunables, PruneRequest())
    check()


def test_answers_of_nan_are_not_compared():
    model = nn.Linear(3, 4)
    with torch.no_grad():
        model.bias[1] = torch.nan
    batch, reader = Batch((torch.randn(2, 3),), 2), OutputReader("custom", None, model)
    with pytest.raises(CannotRunError, match="NaN or infinite"):
        measure_pruning(reader, [batch], find_prunable(model, (), ()), PruneRequest())


def test_a_recurrent_layer_which_keeps_its_weights_in_a_list_is_masked(unchanged):
    torch.manual_seed(0)
    model, twin = nn.LSTM(3, 4), nn.LSTM(3, 4)
    twin.load_state_dict(model.state_dict())
    mask = torch.rand(16, 3) > 0.5
    with torch.no_grad():
        twin.weight_ih_l0.mul_(mask)
    x = torch.randn(5, 2, 3)
    check = unchanged(model)
    with HookSession(model, interventions=[WeightMasks({model.weight_ih_l0: mask})]) as session:
        got = session.run((x,))[0]
    check()
    torch.testing.assert_close(got, twin(x)[0].detach())
