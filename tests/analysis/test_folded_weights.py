"""`diff` of a state dict with one whose norms are folded into the convolutions, without a model."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.report.diff.table import answer

EPSILONS = (1e-5, 1e-3, 1e-6, 1e-4, 1e-2, 2e-3, 5e-3, 0.05)


def convolution(channels: int, more: int, n: int, r: random.Random) -> nn.Module:
    has_bias = r.random() < 0.4
    if n and r.random() < 0.15:
        return nn.ConvTranspose2d(channels, more, 2, bias=has_bias)
    groups = channels if channels == more and r.random() < 0.3 else 1
    size = r.choice([1, 3, 3, 5]) if groups == 1 else 3
    return nn.Conv2d(channels, more, size, groups=groups, bias=has_bias)


def network(seed: int) -> tuple[nn.Module, list[tuple[str, str]], random.Random]:
    """Return a network of convolutions and norms in one of three orders, and their names."""
    r, layers, channels = random.Random(seed), [], 3
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for n in range(r.randint(3, 6)):
            conv = convolution(channels, r.choice([8, 8, 8, 16]), n, r)
            channels = conv.out_channels
            norm = nn.BatchNorm2d(channels, eps=r.choice(EPSILONS), affine=r.random() < 0.9)
            norm.running_mean.normal_(0, 0.5)
            norm.running_var.uniform_(0.02, 2)
            if norm.affine:
                nn.init.normal_(norm.weight, 1, 0.4), nn.init.normal_(norm.bias)
            layers.append((conv, norm))
        net, order = nn.Module(), r.choice(["alternating", "blocks", "apart"])
        for n, (conv, norm) in enumerate(layers):
            if order == "blocks":
                net.add_module(f"block{n}", nn.Sequential(conv, norm, nn.ReLU()))
            elif order == "alternating":
                net.add_module(f"conv{n}", conv), net.add_module(f"bn{n}", norm)
        if order == "apart":
            net.convs, net.norms = nn.ModuleList(c for c, _ in layers), nn.ModuleList(n for _, n in layers)
        net.head = nn.Linear(channels, 3)
    names = {id(module): name for name, module in net.named_modules()}
    return net.eval(), [(names[id(conv)], names[id(norm)]) for conv, norm in layers], r


def folded(net: nn.Module, pairs: list[tuple[str, str]], naming: str) -> dict[str, torch.Tensor]:
    """Return what an exporter stores, folded by torch: under A's names, those of dynamo, or none."""
    state, last = {}, {}
    for n, (conv, norm) in enumerate(pairs):
        layer = net.get_submodule(conv)
        one = fuse_conv_bn_eval(layer, net.get_submodule(norm), isinstance(layer, nn.ConvTranspose2d))
        weight, bias = {
            "none": (f"onnx::Conv_{3 * n}", f"onnx::Conv_{3 * n + 1}"),
            "dynamo": (f"{conv}.weight", f"{conv}.weight_bias" if layer.bias is None else f"{conv}.bias"),
            "prefix": (f"module.{conv}.weight", f"module.{conv}.bias"),
        }[naming]
        state[weight] = one.weight.detach().clone()
        (last if naming == "dynamo" else state)[bias] = one.bias.detach().clone()
    head = {
        f"{'module.' * (naming == 'prefix')}head.{name}": one for name, one in net.head.named_parameters()
    }
    return {**state, **last, **{name: one.detach().clone() for name, one in head.items()}}


def diff(a, b, folder):
    torch.save(a, folder / "a.pt"), torch.save(b, folder / "b.pt")
    return ms.diff(folder / "a.pt", folder / "b.pt")


def change(net, conv, norm, kind, r) -> str | None:
    """Change one channel; return the layer that is to blame, None where it lacks the tensor."""
    layer, held = net.get_submodule(conv), net.get_submodule(norm)
    with torch.no_grad():
        weight = layer.weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose2d) else layer.weight
        tensor, blamed = {
            "one weight": (weight, conv),
            "channel": (weight, conv),
            "factor": (weight, conv),  # a norm would have scaled its part of the bias, too
            "gain": (held.weight, norm),
            "variance": (held.running_var, norm),
            "mean": (held.running_mean, norm),
            "offset": (held.bias, norm),
            "bias": (layer.bias, norm),
        }[kind]
        if tensor is None:
            return None
        at = r.randrange(len(tensor))
        if kind == "one weight":
            tensor[at, 0, 0, 0] += 0.5
        elif kind == "channel":
            tensor[at] += 0.3 * torch.randn(tensor[at].shape, generator=torch.Generator().manual_seed(at))
        elif kind in ("factor", "gain", "variance"):
            tensor[at] *= 1.6
        else:
            tensor[at] += 0.6
        is_one = weight[0].numel() == 1 and kind in ("one weight", "channel", "factor", "gain", "variance")
    return conv if is_one else blamed


@pytest.mark.parametrize("naming", ["none", "dynamo", "prefix"])
@pytest.mark.parametrize("seed", range(8))
def test_a_network_is_the_same_once_its_norms_are_folded(seed, naming, tmp_path):
    net, pairs, _ = network(seed)
    record = diff(net.state_dict(), folded(net, pairs, naming), tmp_path)
    is_renamed = {row.name.rpartition(".")[0] for row in record.tensors if row.status == "renamed"}
    assert is_renamed == ({"head"} if naming == "prefix" else set())
    assert {row.status for row in record.tensors} - {"renamed"} == {"same", "folded"}
    assert record.is_same == (naming != "prefix")
    assert record.causes == ()
    told = {row.name: row.matched for row in record.tensors if row.status == "same" and row.matched}
    for conv, norm in pairs:
        assert told[f"{conv}.weight"] == f"with {norm} folded in, eps {net.get_submodule(norm).eps:g}"


@pytest.mark.parametrize(
    "kind", ["one weight", "channel", "factor", "gain", "variance", "mean", "offset", "bias"]
)
@pytest.mark.parametrize("seed", range(20, 26))
def test_what_really_differs_is_named(seed, kind, tmp_path):
    net, pairs, r = network(seed)
    changed = [
        (other, conv, norm, blamed)
        for conv, norm in r.sample(pairs, len(pairs))
        for other in (copy.deepcopy(net),)
        if (blamed := change(other, conv, norm, kind, r)) is not None
    ]
    other, conv, norm, blamed = changed[0]
    record = diff(net.state_dict(), folded(other, pairs, r.choice(["none", "dynamo", "prefix"])), tmp_path)
    assert not record.is_same
    assert {cause.layer for cause in record.causes} == {blamed}
    assert {row.status for row in record.tensors} - {"renamed", "same"} == {"folded", "changed"}
    assert {row.name.rpartition(".")[0] for row in record.tensors if row.status == "changed"} <= {conv, norm}
    assert "export" not in record.causes[0].hint  # nothing was


def test_a_bias_that_is_missing_is_zero(tmp_path):
    net, pairs, _ = network(5)
    conv, norm = pairs[1]
    held = net.get_submodule(norm)
    other = {name: one for name, one in folded(net, pairs, "dynamo").items() if name != f"{conv}.weight_bias"}
    layer = net.get_submodule(conv)
    other = {name: one for name, one in other.items() if name != f"{conv}.bias"}
    assert [cause.layer for cause in diff(net.state_dict(), other, tmp_path).causes] == [norm]
    with torch.no_grad():
        held.running_mean.zero_() if layer.bias is None else held.running_mean.copy_(layer.bias)
        if held.affine:
            held.bias.zero_()
    assert diff(net.state_dict(), other, tmp_path).is_same


def test_a_convolution_is_not_folded_along_an_axis_that_its_bias_does_not_fit():
    a = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 1))
    b = nn.Sequential(a[0], nn.Identity(), nn.Conv2d(8, 16, 1))
    statuses = {row.name: row.status for row in ms.diff(a.state_dict(), b.state_dict()).tensors}
    assert (statuses["0.weight"], statuses["1.weight"], statuses["2.weight"]) == (
        "same",
        "removed",
        "changed",
    )


def test_other_networks_are_not_taken_for_folded(tmp_path):
    net, pairs, _ = network(3)
    other, *_ = network(4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in other.parameters():
            nn.init.normal_(parameter)
    theirs = {
        name: one for name, one in other.state_dict().items() if ".norm" not in name and "bn" not in name
    }
    rows = diff(net.state_dict(), theirs, tmp_path).tensors
    assert not [row for row in rows if row.matched or row.status == "folded"]
    plain = {
        name: one
        for name, one in net.state_dict().items()
        if name.rpartition(".")[0] not in dict(pairs).values()
    }
    rows = diff(net.state_dict(), plain, tmp_path).tensors  # the norms are missing, not folded
    assert not [row for row in rows if row.matched]
    assert {row.status for row in rows} == {"same", "removed"}


@pytest.mark.parametrize("way", ["old", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_an_export_is_compared_with_a_checkpoint_alone(way, tmp_path):
    pytest.importorskip("onnxscript")
    faults = pytest.importorskip("onnx_faults")

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.bn = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-3)
            self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1)  # a norm before is not folded
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            return self.head(self.conv(self.norm(self.bn(self.stem(x)).relu()).relu()).mean((2, 3)))

    net = Own().eval()
    for norm in (net.bn, net.norm):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.3, 2), nn.init.normal_(norm.bias)
    a, b, x = tmp_path / "own.pt", tmp_path / "own.onnx", torch.randn(1, 3, 8, 8)
    torch.save(net.state_dict(), a)
    faults.export(net, x, b, dynamo=way == "dynamo")
    record = ms.diff(a, b)
    assert record.is_same
    assert {row.name.partition(".")[0] for row in record.tensors if row.matched} == {"stem", "bn"}
    with torch.no_grad():
        net.stem.weight[2, 1, 0, 0] += 0.4
    faults.export(net, x, b, dynamo=way == "dynamo")
    (cause,) = ms.diff(a, b).causes
    expected = "stem.weight (with bn folded in) differs in 1 of 216 values, most at [2, 1, 0, 0]"
    assert cause.message.startswith(expected)
    assert cause.hint == "export again from the weights of A"
    with pytest.raises(UsageError, match="give it as B") as refused:
        ms.diff(b, a)
    assert refused.value.hint.endswith(f"modelscope diff {a} {b}")


@pytest.mark.parametrize("eps", [1e-5, 3e-5, 7e-4, 2e-3, 6e-3, 0.03])
@pytest.mark.parametrize("seed", range(3))
def test_norms_that_were_never_trained_are_folded_with_any_epsilon(tmp_path, seed, eps):
    net, pairs, _ = network(seed)
    for _, norm in pairs:
        layer = net.get_submodule(norm)
        layer.reset_parameters()
        layer.eps = eps
    record = diff(net.state_dict(), folded(net, pairs, "dynamo"), tmp_path)
    assert record.is_same, [row for row in record.rows if row.status not in ("same", "folded")]
    assert {
        float(row.matched.rpartition("eps ")[2]) for row in record.rows if "eps" in (row.matched or "")
    } <= {eps, 1e-5 if eps == 3e-5 else eps}
    start = f"Equal weights if the norms of A have an epsilon of {eps:g} (torch's default is 1e-05), and"
    assert answer(record).startswith(start if eps > 3e-5 else ("Equal", "No difference"))


def test_a_norm_multiplied_by_a_constant_is_not_another_epsilon(tmp_path):
    net, pairs, _ = network(1)
    for _, norm in pairs:
        net.get_submodule(norm).reset_parameters()
        net.get_submodule(norm).eps = 1e-5
    b = folded(net, pairs, "dynamo")
    b[f"{pairs[0][0]}.weight"] *= 0.97
    record = diff(net.state_dict(), b, tmp_path)
    assert [row.name for row in record.rows if row.status == "changed"] == [f"{pairs[0][0]}.weight"]


def test_two_models_of_which_one_is_folded_are_not_said_to_have_equal_weights():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)).eval()
    net[1].running_var.uniform_(0.1, 2)
    other = copy.deepcopy(net)
    other[0], other[1] = fuse_conv_bn_eval(net[0], net[1]), nn.Identity()
    cause, *_ = ms.diff(net, other, torch.randn(2, 3, 8, 8)).causes
    assert cause.message == "2 of 3 weights are equal; 1 of 3 weights is as in A with a norm folded in"
