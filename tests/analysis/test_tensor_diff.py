import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tolerance import close

import modelscope_cli as ms
from modelscope_cli.analysis.comparison.compare import diff_tensors
from modelscope_cli.analysis.comparison.distance import merge, sum_up, to_distance
from modelscope_cli.records.diff import Renaming, count_up, first_divergence
from modelscope_cli.report.diff.table import answer

FLOATS = st.floats(-1e6, 1e6, width=32)
PAIRS = hnp.array_shapes(max_dims=3, max_side=6).flatmap(
    lambda shape: st.tuples(*[hnp.arrays(np.float32, shape, elements=FLOATS)] * 2)
)
STRANGE = hnp.arrays(np.float32, 7, elements=st.floats(width=32))


def distance(a, b):
    return to_distance(sum_up(torch.as_tensor(a), torch.as_tensor(b)))


def statuses(rows):
    return {row.name: row.status for row in rows}


@given(PAIRS)
def test_figures_are_those_of_numpy(pair):
    a, b = (array.astype(np.float64).ravel() for array in pair)
    found = distance(*pair)
    assert found.max_abs == np.abs(a - b).max()
    assert found.mean_abs == close(np.abs(a - b).mean())
    assert found.differing == np.count_nonzero(a != b)
    assert found.nonfinite == 0
    norms = np.linalg.norm(a), np.linalg.norm(b)
    if norms[0] > 1e-9:
        assert found.rel_l2 == close(np.linalg.norm(a - b) / norms[0])
    if min(norms) > 1e-9:
        assert found.cosine == close(a @ b / norms[0] / norms[1])


@given(STRANGE)
def test_everything_is_equal_to_itself_nan_too(values):
    found = distance(values, values.copy())
    assert (found.max_abs, found.mean_abs, found.rel_l2, found.cosine) == (0, 0, 0, 1)
    assert (found.differing, found.nonfinite) == (0, 0)
    assert not found.exceeds(0)


@given(STRANGE, STRANGE)
def test_values_that_are_not_finite_are_counted_apart(a, b):
    found = distance(a, b)
    is_finite = np.isfinite(a) & np.isfinite(b)
    is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    assert found.nonfinite == np.count_nonzero(~is_finite & ~is_equal)
    assert found.differing == np.count_nonzero(~is_equal)
    assert found.exceeds(1e9) or not found.nonfinite
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a.astype(np.float64) - b)[is_finite]
    assert found.max_abs == (gaps.max() if gaps.size else 0)


@given(PAIRS, st.integers(0, 5))
def test_sums_add_up_over_parts(pair, cut):
    a, b = (torch.as_tensor(array.ravel()) for array in pair)
    parts = merge(sum_up(a[:cut], b[:cut]), sum_up(a[cut:], b[cut:]))
    whole = sum_up(a, b)
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12 * float(whole.max()))


def test_more_values_than_one_chunk_holds_and_not_in_order():
    a, b = torch.randn(2, 3, 300, 300)
    found = distance(a.transpose(0, 2), b.transpose(0, 2))
    assert found.rel_l2 == close(float((a - b).double().norm() / a.double().norm()))
    assert found.max_abs == close(float((a - b).abs().max()))


@pytest.mark.parametrize(("a", "b", "max_abs"), [
    (torch.tensor([1, 2**62]), torch.tensor([1, 2**62 + 1]), 0.0),  # float64 cannot tell them apart
    (torch.tensor([True, False]), torch.tensor([True, True]), 1.0),
    (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), 2.0),
    (torch.eye(3).to_sparse(), 3 * torch.eye(3).to_sparse(), 2.0),
    (torch.tensor(3e38), torch.tensor(-3e38), 2 * float(torch.tensor(3e38))),
])  # fmt: skip
def test_other_kinds_of_numbers(a, b, max_abs):
    found = distance(a, b)
    assert found.max_abs == max_abs
    assert found.differing > 0
    assert found.exceeds(0)


def test_nothing_beside_something_is_infinitely_far():
    found = distance(torch.zeros(3), torch.ones(3))
    assert (found.rel_l2, found.cosine) == (float("inf"), None)
    assert found.exceeds(100)
    assert not distance(torch.zeros(0, 3), torch.zeros(0, 3)).exceeds(0)


STATE = {"conv.weight": torch.randn(4, 3), "conv.bias": torch.zeros(4), "fc.weight": torch.randn(2, 4)}


def test_each_kind_of_difference():
    a = {**STATE, "gone": torch.ones(5), "wide": torch.ones(2), "half": torch.ones(3), "off": torch.ones(9)}
    b = {**STATE, "new": torch.ones(6), "wide": torch.ones(3), "half": torch.ones(3).half()}
    b["off"] = torch.ones(9) + torch.eye(9)[4] * 1e-3
    rows, renamings, _ = diff_tensors(a, b)
    changed = {"gone": "removed", "wide": "reshaped", "half": "retyped", "off": "changed", "new": "added"}
    assert statuses(rows) == {**dict.fromkeys(STATE, "same"), **changed}
    assert renamings == ()
    off = next(row for row in rows if row.name == "off")
    assert off.max_abs == pytest.approx(1e-3, rel=1e-3)
    assert off.rel_l2 == pytest.approx(1e-3 / 3, rel=1e-3)
    assert off.differing == 1
    assert first_divergence(rows) == "wide"
    totals = count_up(rows)
    assert (totals.same, totals.changed, totals.added, totals.removed) == (3, 1, 1, 1)
    assert (totals.reshaped, totals.retyped, totals.renamed, totals.compared) == (1, 1, 0, 5)


@pytest.mark.parametrize(
    ("prefix", "b_prefix"), [("", "module."), ("model.", ""), ("encoder.net.", "backbone.")]
)
def test_prefixes_are_found(prefix, b_prefix):
    a = {prefix + name: tensor for name, tensor in STATE.items()}
    b = {b_prefix + name: tensor + (name == "fc.weight") for name, tensor in STATE.items()}
    rows, renamings, _ = diff_tensors(a, b)
    assert renamings == (Renaming(prefix, b_prefix, 3),)
    assert [row.status for row in rows] == ["renamed", "renamed", "changed"]
    assert [row.b_name for row in rows] == list(b)


def test_channels_that_were_removed_are_told_below_a_wrapper_too():
    a = {
        "0.weight": torch.randn(8, 3, 3, 3),
        "1.weight": torch.randn(6, 8, 3, 3),
        "2.weight": torch.randn(2, 6),
    }
    kept = [0, 2, 5]
    b = a | {"0.weight": a["0.weight"][kept], "1.weight": a["1.weight"][:, kept]}
    wrapped = {f"module.{name}": tensor for name, tensor in b.items()}
    fewer = "Different: 0 has 8 output channels in A and 3 in B"
    cut = "; the values of B are a subset of those of A"
    assert answer(ms.diff(a, b)) == f"{fewer}{cut}; the other weight is equal"
    assert answer(ms.diff(a, wrapped)).endswith("; the names in B begin with 'module.' (from DataParallel)")
    assert answer(ms.diff(a, wrapped)).startswith(f"{fewer}{cut}; ")
    assert "0 has 3 output channels in A and 8 in B; the values of A are a subset" in answer(ms.diff(b, a))
    assert cut not in answer(ms.diff(a, {name: one + 0.1 for name, one in b.items()}))
    other_input = answer(ms.diff(a, a | {"0.weight": torch.randn(8, 1, 3, 3)}))
    assert "0.weight is 8x3x3x3 in A and 8x1x3x3 in B" in other_input
    assert "output channels" not in other_input


def test_two_parts_under_two_prefixes():
    a = {f"enc.{i}.weight": torch.randn(3) for i in range(4)} | {
        f"dec.{i}.weight": torch.randn(2) for i in range(3)
    }
    b = {name.replace("enc.", "encoder.").replace("dec.", "decoder."): tensor for name, tensor in a.items()}
    rows, renamings, _ = diff_tensors(a, b)
    assert {(r.prefix, r.b_prefix, r.tensors) for r in renamings} == {
        ("enc.", "encoder.", 4),
        ("dec.", "decoder.", 3),
    }
    assert {row.status for row in rows} == {"renamed"}


def test_values_tell_where_names_have_nothing_in_common():
    a = {"w": torch.randn(3, 2), "first": torch.zeros(4), "second": torch.zeros(4)}
    b = {"kernel": a["w"].clone(), "x": torch.zeros(4), "y": torch.zeros(4)}
    rows, renamings, _ = diff_tensors(a, b)
    assert renamings == ()
    assert rows[0].b_name == "kernel"
    assert rows[0].status == "renamed"
    # Zeros are like any other zeros: nobody knows which is which.
    assert [row.status for row in rows[1:]] == ["removed", "removed", "added", "added"]


@given(st.dictionaries(st.text("ab.", min_size=1, max_size=5), st.integers(0, 3), max_size=6))
def test_a_state_is_the_same_as_itself_and_all_of_it_is_reported(sizes):
    state = {name: torch.arange(size, dtype=torch.float32) for name, size in sizes.items()}
    rows, _, _ = diff_tensors(state, dict(reversed(state.items())))
    assert [row.name for row in rows] == list(state)
    assert {row.status for row in rows} <= {"same"}
    rows, _, _ = diff_tensors(state, {})
    assert [row.status for row in rows] == ["removed"] * len(state)


@pytest.mark.parametrize("factors", [(2.0,), (-0.25,), (0.5, 3.0), (1e-3, 7.0, 20.0)])
def test_a_factor_of_weights_is_given(factors):
    nets = [torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(4))) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    with torch.no_grad():
        for layer, factor in zip(nets[1], factors, strict=False):
            layer.weight.mul_(factor)
    causes = [cause.message for cause in ms.diff(*nets).causes]
    assert all(f"times {one:.4g}" in " ".join(causes) for one in factors)


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_that_moved_beside_equal_weights_are_told(frozen):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 3))
    other = copy.deepcopy(net).train()
    other(torch.randn(8, 3, 9, 9))
    with torch.no_grad():
        other[2].weight.add_(0.01)
        other[1].weight.add_(0.0 if frozen else 0.1)
    told = [cause for cause in ms.diff(net, other).causes if cause.kind == "norms"]
    assert [cause.layer for cause in told] == ["1"] * frozen
    assert all("frozen" in cause.hint for cause in told)
