"""`ms.diff`: what the command gives, from Python; modules of the caller's, as they were."""

import copy

import pytest
import torch
from function_and_command import HEALTHY, SICK, STAR, TINY, tiny_resnet
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError


def test_a_module_beside_a_file():
    model = tiny_resnet()
    assert ms.diff(model, HEALTHY).is_same
    assert ms.diff(HEALTHY, model).is_same
    assert ms.diff(model, HEALTHY, STAR).is_same
    record = ms.diff(model, SICK, STAR)
    assert record.first_divergence == ms.diff(SICK, model, STAR).first_divergence == "bn"
    assert record.b.model.weights.resolved == "sick.safetensors"
    assert not ms.diff(model, TINY, STAR).is_same
    other = ms.diff(model, b_checkpoint=SICK)
    assert other.totals == ms.diff(model, SICK).totals


def test_a_module_and_itself_under_another_setting_is_a_copy(unchanged):
    model = tiny_resnet()
    x = torch.rand(2, 3, 64, 64)
    check = unchanged(model)
    assert ms.diff(model, None, x, b_dtype="bfloat16").tolerance == pytest.approx(4 * 2**-8 * 23**0.5)
    assert ms.diff(model, model, x, b_mode="train").first_divergence == "bn"
    assert ms.diff(model, None, x, b_seed=3).is_same  # there is no dropout to see it
    n_floats = sum(tensor.is_floating_point() for tensor in model.state_dict().values())
    assert ms.diff(model, b_dtype="float16").totals.retyped == n_floats
    check()


def test_two_modules_are_left_as_they_were(unchanged):
    a, b = tiny_resnet().train(), tiny_resnet(SICK)
    a.bn.eval()
    x = torch.rand(2, 3, 64, 64)
    checks = [unchanged(model) for model in (a, b)]
    record = ms.diff(a, b, x, mode="train")
    assert not record.is_same
    for check in checks:
        check()


def test_double_precision_has_a_tolerance_of_its_own():
    model = tiny_resnet().double()
    record = ms.diff(model, copy.deepcopy(model), STAR)
    assert (record.tolerance, record.is_same) == (1e-7, True)


def test_what_cannot_be_compared_is_refused():
    model = tiny_resnet()
    x = torch.rand(1, 3, 64, 64)
    with pytest.raises(UsageError, match="nothing to compare 'TinyResNet' with"):
        ms.diff(model, model, x)
    with pytest.raises(UsageError, match="'b_dtype=float16' needs a model given by name"):
        ms.diff(model, tiny_resnet(), x, b_dtype="float16")
    with pytest.raises(UsageError, match="'b_weights=DEFAULT'"):
        ms.diff(model, b_weights="DEFAULT")
    with pytest.raises(UsageError, match="'b_seed=1' needs a run"):
        ms.diff(model, b_seed=1)
    with pytest.raises(UsageError, match="'b_dtype=float16' applies to models"):
        ms.diff(model, HEALTHY, b_dtype="float16")
    with pytest.raises(UsageError, match="both give weights for B"):
        ms.diff(model, HEALTHY, x, b_checkpoint=SICK)
    with pytest.raises(UsageError, match="layer pattern 'nothing' matches no tensor"):
        ms.diff(model, HEALTHY, layer="nothing")
    with pytest.raises(UsageError, match="'device' needs a model given by name"):
        ms.diff(model, tiny_resnet(), x, device="cpu")
    with pytest.raises(UsageError, match="both give an input"):
        ms.diff(model, STAR, x, b_mode="train")
    with pytest.raises(UsageError, match="'trian' is not a value of b_mode: did you mean train"):
        ms.diff(model, b_mode="trian")
    with pytest.raises(UsageError, match="a model of type list is neither"):
        ms.diff([], model)
    with pytest.raises(CannotRunError, match="share layers"):
        ms.diff(model, nn.Sequential(model), x)
