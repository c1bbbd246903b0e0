"""`diff` of a model and its quantised or cast twin, held against torchao and brute force."""

import copy

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError


class Mlp(nn.Module):
    def __init__(self, wide=16):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, wide), nn.Linear(wide, wide), nn.Linear(wide, 5)

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
@pytest.mark.parametrize("wide", [16, 24])
def test_the_ranking_of_layers_is_that_of_brute_force(scheme, wide):
    torch.manual_seed(wide)
    model, x = Mlp(wide).eval(), torch.randn(6, 12)
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
