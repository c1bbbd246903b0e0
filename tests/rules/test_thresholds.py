"""Thresholds as people write them, and the evidence they are held against."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records.findings import FAILED
from modelscope_cli.rules.registry import RULES, choose_rules
from modelscope_cli.rules.rule import judge, needs_of, read_threshold, verdict_of, write_threshold


@pytest.mark.parametrize(("typed", "kind", "value"), [
    *[("0.5", "number", 0.5), (3, "number", 3.0), ("1e-6", "number", 1e-6)],
    *[("25M", "count", 25e6), ("5g", "count", 5e9), ("1.5k", "count", 1500.0), (1000, "count", 1000.0)],
    *[("500MB", "bytes", 5e8), ("500MiB", "bytes", 500 * 2**20), ("1 GB", "bytes", 1e9)],
    *[("1,1000", "shape", "1,1000"), ("1x3x8x8", "shape", "1,3,8,8"), ([1, 10], "shape", "1,10")],
])  # fmt: skip
def test_thresholds_are_read(typed, kind, value):
    assert read_threshold(typed, kind, "--set X=") == value


@pytest.mark.parametrize("kind", ["number", "count", "bytes", "shape"])
@pytest.mark.parametrize("typed", ["", "x", "-1", "nan", "inf", "1..2", "1,,2", "5Q", True])
def test_malformed_thresholds_are_refused(typed, kind):
    with pytest.raises(UsageError, match="--set X="):
        read_threshold(typed, kind, "--set X=")


@pytest.mark.parametrize(("typed", "meant"), [
    *[("16G", "16GB"), ("16 Gi", "16GiB"), ("1.5g", "1.5GB"), ("80 gigs", "80GB"), ("80 GIBs", "80GiB")],
    *[("1..2G", "500MB"), ("-16G", "500MB"), ("G", "500MB")],
])  # fmt: skip
def test_the_hint_completes_a_unit_of_memory(typed, meant):
    with pytest.raises(UsageError) as refused:
        read_threshold(typed, "bytes", "--fit ")
    assert refused.value.hint == f"--fit {meant}"
    assert read_threshold(meant, "bytes", "")


@pytest.mark.parametrize(("typed", "meant"), [("24", 24), (24, 24), ("16.0", 16), ("500B", 500), ("0", 24)])
def test_a_number_of_bytes_in_which_no_model_fits_is_taken_for_one_without_its_unit(typed, meant):
    with pytest.raises(UsageError, match="bytes, less than any model takes") as refused:
        ms.summary("resnet18", fit=typed)
    assert refused.value.hint == f"fit='{meant}GB'"


@given(st.floats(0, 1e15), st.sampled_from(["number", "count", "bytes"]))
def test_a_threshold_that_is_shown_can_be_typed_again(value, kind):
    value = round(value) if kind == "count" else value
    assert read_threshold(write_threshold(value, kind), kind, "") == pytest.approx(value, rel=1e-3)


def test_only_what_is_needed_is_gathered(healthy, examine):
    weights = examine(healthy, needs=needs_of(choose_rules(["MS1"], []), {}))
    assert weights.tensors
    assert (weights.forward, weights.structure, weights.backward, weights.train) == (None,) * 4
    assert needs_of(choose_rules(["MS5"], []), {}) == frozenset()
    assert needs_of(choose_rules(["MS5"], []), {"MS501": 1.0}) == {"structure"}


def test_the_model_is_left_as_it_was(healthy, examine):
    model = healthy.module
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()
    examine(healthy)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not any(m.training or m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_non_finite_input_is_named_as_the_cause(healthy, examine, findings, pictures):
    broken = pictures.clone()
    broken[7, 0, 3, 3] = torch.inf
    evidence = examine(healthy, x=broken)
    (finding,) = findings(evidence)
    assert (finding.code, finding.layer, finding.severity) == ("MS103", None, "error")
    assert finding.message == "the input itself contains 1 NaN or infinite values of 1505280"
    # Without the rule that explains it, it is said all the same.
    (finding,), _ = judge(choose_rules(["MS201"], []), {}, evidence)
    assert finding.message == "the input itself has NaN or infinite values"


def test_non_finite_values_that_are_passed_on_are_counted_and_are_not_a_finding(healthy, examine):
    healthy.module.block3.conv1.weight.data[0] = torch.nan
    evidence = examine(healthy)
    assert [f.code for f in judge(RULES, {}, evidence)[0]] == ["MS101"]
    # Without the rule that explains it, the layer itself is named, and nothing behind it.
    (finding,), _ = judge(choose_rules(["MS201"], []), {}, evidence)
    assert finding.layer == "block3.conv1"
    behind = ["bn1", "relu", "conv2", "bn2", "relu"]  # and the head; the shortcut does not see any of it
    assert finding.value == 1 + len(behind) + 1
    assert "passed on to 6 calls after it (block3.bn1, block3.relu and 4 more)" in finding.message
    assert verdict_of([finding], RULES, "error", None) == FAILED
