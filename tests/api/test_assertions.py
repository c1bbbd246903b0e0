"""`ms.testing`: what fails a test of somebody's own model, and what it says."""

import pytest
from function_and_command import HEALTHY, SICK, STAR, tiny_resnet

import modelscope_cli as ms


def failure(function, *arguments, **keywords):
    with pytest.raises(AssertionError) as caught:
        function(*arguments, **keywords)
    return str(caught.value).splitlines()


def test_a_healthy_model():
    ms.testing.assert_healthy(tiny_resnet(), STAR)
    ms.testing.assert_healthy(tiny_resnet(SICK), STAR, ignore="MS2,MS3", fail_on="warning")


def test_a_sick_model_says_where_and_what_to_do():
    lines = failure(ms.testing.assert_healthy, tiny_resnet(SICK), STAR, fail_on="warning", select="MS202")
    assert lines[1].startswith("MS202 warning: relu: 14 of 16 channels")
    assert lines[2].strip().startswith("hint: ")


def test_the_same():
    ms.testing.assert_same(tiny_resnet(), HEALTHY)
    ms.testing.assert_same(tiny_resnet(), tiny_resnet(), STAR)
    ms.testing.assert_same(tiny_resnet(), tiny_resnet(SICK), STAR, tolerance=1e9, exclude="bn")


def test_not_the_same_says_where_they_part_and_how_far():
    lines = failure(ms.testing.assert_same, tiny_resnet(), tiny_resnet(SICK), STAR)
    record = ms.diff(tiny_resnet(), tiny_resnet(SICK), STAR)
    assert lines[0].startswith("TinyResNet against TinyResNet on 1 image: ")
    assert f"{record.totals.changed} changed" in lines[0]
    assert lines[1].startswith("scaled: block3.conv1.weight: B has the values of A times 3000")
    assert lines[2].startswith("weights: 1 of 10 weights is ")
    assert lines[2].endswith("; bn.bias changed in 12 of 16 values, by up to 30.1; 9 of 10 weights are equal")
    assert lines[3].startswith("first divergence: bn, relative L2 ")
    assert lines[4].startswith("  bn, relative L2 ")
    assert lines[-2] == f"  and {record.totals.changed - 10} more"
    assert lines[-1] == "tolerance: relative L2 of 1.3e-06 (assert_close's tolerance for float32)"


def test_a_budget():
    model = tiny_resnet()
    totals = ms.summary(model).totals
    ms.testing.assert_healthy(model, STAR, max_params=totals.params, max_macs=totals.macs)
    lines = failure(ms.testing.assert_healthy, model, STAR, max_params=totals.params - 1)
    assert lines[1].startswith("MS501 error: the model: ")


def test_the_module_is_left_as_it_was_where_an_assertion_fails(unchanged):
    model = tiny_resnet(SICK).train()
    check = unchanged(model)
    failure(ms.testing.assert_healthy, model, STAR, fail_on="warning")
    failure(ms.testing.assert_same, model, HEALTHY, STAR)
    check()
