"""`diff` of a model and its quantised, cast, compiled or changed twin, held against torchao and brute force."""

import copy

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError

X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu())


def quantised(model):
    quantization = pytest.importorskip("torchao.quantization")
    twin = copy.deepcopy(model)
    quantization.quantize_(twin, quantization.Int8WeightOnlyConfig())
    return twin


def test_the_sqnr_of_a_quantised_model_is_torchaos():
    utils = pytest.importorskip("torchao.quantization.utils")
    torch.manual_seed(0)
    model, x = Mlp().eval(), torch.randn(6, 12)
    record = ms.diff(model, None, x, b_quantize="int8wo")
    with torch.no_grad():
        theirs = utils.compute_error(model(x), quantised(model)(x)).item()
    assert record.layers[-1].sqnr_db == pytest.approx(theirs, abs=1e-3)
    assert ms.diff(model, quantised(model), x).layers[-1].sqnr_db == pytest.approx(theirs, abs=1e-3)
    assert record.tolerance == 0.1
    with pytest.raises(CannotRunError, match="changes nothing"):
        ms.diff(nn.Sequential(nn.Conv2d(3, 4, 3)), None, torch.randn(1, 3, 16, 16), b_quantize="int8wo")
    with pytest.raises(UsageError):
        ms.diff(model, None, x, b_quantize="int3")


@pytest.mark.parametrize("scheme", ["int8wo", "bfloat16"])
def test_the_ranking_of_layers_is_that_of_brute_force(scheme):
    torch.manual_seed(0)
    model, x = Mlp().eval(), torch.randn(6, 12)
    setting = {"b_quantize": scheme} if scheme == "int8wo" else {"b_dtype": scheme}
    found = ms.diff(model, None, x, rank_layers=True, **setting).ranking
    low = quantised(model) if scheme == "int8wo" else copy.deepcopy(model).bfloat16()
    kind = torch.float32 if scheme == "int8wo" else torch.bfloat16

    class Cast(nn.Module):
        def __init__(self, inside, into, out):
            super().__init__()
            self.inside, self.into, self.out = inside, into, out

        def forward(self, given):
            return self.inside(given.to(self.into)).to(self.out)

    def decibels(of, given):
        with torch.no_grad():
            reference = model(x)
            return (20 * (reference.norm() / (reference - of(given).float()).norm()).log10()).item()

    for row in found.rows:
        alone, kept = copy.deepcopy(model), copy.deepcopy(low)
        alone.set_submodule(row.name, Cast(low.get_submodule(row.name), kind, torch.float32))
        kept.set_submodule(row.name, Cast(model.get_submodule(row.name), torch.float32, kind))
        assert row.alone_db == pytest.approx(decibels(alone, x), abs=1e-3)
        assert row.kept_db == pytest.approx(decibels(kept, x.to(kind)), abs=1e-3)
    assert found.sqnr_db == pytest.approx(decibels(low, x.to(kind)), abs=1e-3)
    assert [row.kept_db for row in found.rows] == sorted((row.kept_db for row in found.rows), reverse=True)
    assert found.keep == tuple(row.name for row in found.rows if row.gain_db > 0)


def test_a_compiled_model_is_compared_by_its_output():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    record = ms.diff(model, torch.compile(model, backend=backend), torch.randn(2, 4))
    assert calls, "it ran uncompiled"
    assert record.is_same
    assert (record.totals.same, record.totals.not_tested) == (1, 2)
    assert not any(module._forward_hooks for module in model.modules())

    def wrong(graph, inputs):
        return lambda *args: tuple(1.01 * value for value in graph.forward(*args))

    assert (
        ms.diff(model, torch.compile(model, backend=wrong), torch.randn(2, 4)).first_divergence
        == "Sequential"
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_type_of_a_cast_is_the_coarsest_that_holds_the_values(dtype):
    class Cast(nn.Module):
        def forward(self, x):
            return x.to(dtype).float()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Identity(), nn.Conv2d(3, 8, 3)).eval()
    other = copy.deepcopy(net)
    other[0] = Cast()
    kinds = [
        (one.kind, str(dtype).removeprefix("torch.") in one.message) for one in ms.diff(net, other, X).causes
    ]
    assert kinds == [("cast", True)]
