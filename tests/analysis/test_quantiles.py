"""Quantiles are those of a sort of the values, rounded to bfloat16, however the data is cut into batches."""

import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from modelscope_cli.analysis.activations.observer import observe_activations, to_rows
from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import N_PATTERNS, ValueCounts, quantiles_of, value_counts
from modelscope_cli.analysis.statistics.reduce import reduce_on_device, reduce_tensor
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.batch import Batch

KEYS = ("p0", "p01", "p05", "p25", "p50", "p75", "p99", "p99.9", "p99.999", "p100")
NOTHING = Wanted(zero=False, near_zero=False, channels=False, histogram=False)
SMALLEST = 2.0**-149


def by_sorting(
    x: Tensor, keys: tuple[str, ...] = KEYS, dtype: torch.dtype = torch.bfloat16
) -> dict[str, float]:
    """What a sort of the finite values in this dtype gives, with ranks in exact arithmetic."""
    values = x.detach().to(dtype).to(torch.float64).numpy().ravel()
    values = np.sort(values[np.isfinite(values)])
    ranks = [max(math.ceil(Fraction(key[1:]) * values.size / 100), 1) for key in keys if values.size]
    return {key: float(values[rank - 1]) for key, rank in zip(keys, ranks, strict=False)}


def by_counting(parts: list[Tensor], keys: tuple[str, ...] = KEYS) -> dict[str, float]:
    return quantiles_of(
        keys, reduce(ValueCounts.merge, (ValueCounts.of(value_counts(part)) for part in parts))
    )


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "normal": normal(3000),
    "relu": normal(4, 5, 6, 7).relu(),
    "several chunks": normal(600_001),
    "far away": normal(5000) * 1e-3 + 1e6,
    "one value": torch.tensor([-2.5]),
    "constant": torch.full((100,), 3.3),
    "zeros of both signs": torch.tensor([0.0, -0.0, 0.0, -0.0, SMALLEST, -SMALLEST]),
    "denormals": normal(1000) * 1e-41,
    "huge": normal(1000) * 1e38,
    "largest": torch.tensor([3.4028234663852886e38, -3.4028234663852886e38, math.inf, -math.inf]),
    "some not finite": torch.tensor([math.nan, -math.nan, math.inf, 1.0, -math.inf, 2.0, 3.0]),
    "bfloat16": normal(999).bfloat16(),
    "float16": (normal(999) * 1000).half(),
    "float64": normal(999).double() * math.pi,
    "float64 beyond float32": torch.tensor([1e300, -1e300, 1.0, 1e-300], dtype=torch.float64),
    "int64": torch.arange(-5000, 90_000) * 1_000_003,
    "uint8": torch.arange(256, dtype=torch.uint8),
    "bool": torch.tensor([True, False, False]),
    "channels last": normal(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every other": normal(40, 50)[::2, 1::3],
    "no dimension": torch.tensor(4.25),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sort_says_the_same(name: str) -> None:
    assert by_counting([CASES[name]]) == by_sorting(CASES[name])


BITS = st.integers(0, 2**32 - 1)
VALUES = st.one_of(
    BITS.map(lambda bits: float(np.uint32(bits).view(np.float32))),
    st.sampled_from([0.0, -0.0, SMALLEST, -SMALLEST, math.inf, -math.inf, math.nan, 1.0]),
)


@given(st.lists(st.lists(VALUES, max_size=30), min_size=1, max_size=4), st.randoms())
@settings(max_examples=60, deadline=None)
def test_any_bits_in_any_batches_in_any_order(parts: list[list[float]], random: object) -> None:
    tensors = [torch.tensor(np.array(part, dtype=np.float32)) for part in parts]
    whole = torch.cat(tensors)
    random.shuffle(tensors)  # type: ignore[attr-defined]
    assert by_counting(tensors) == by_sorting(whole)


def test_minus_zero_is_reported_as_zero() -> None:
    (value,) = by_counting([torch.tensor([-0.0])], ("p50",)).values()
    assert math.copysign(1.0, value) == 1.0


@pytest.mark.parametrize(
    "name", ["normal", "relu", "several chunks", "far away", "float16", "float64", "int64"]
)
def test_they_are_within_four_thousandths_of_the_values_themselves(name: str) -> None:
    true = by_sorting(CASES[name], dtype=torch.float64)
    assert by_counting([CASES[name]]) == pytest.approx(true, rel=2**-8)


@pytest.mark.parametrize("name", ["uint8", "bool", "bfloat16", "one value"])
def test_what_bfloat16_holds_is_exact(name: str) -> None:
    assert by_counting([CASES[name]]) == by_sorting(CASES[name], dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_the_way_of_accelerators_counts_the_same(name: str) -> None:
    wanted = Wanted(quantiles=KEYS)
    here, there = (reduce(CASES[name], None, wanted)().values for reduce in (reduce_tensor, reduce_on_device))
    assert here is not None
    assert here == there


def test_a_tally_holds_counts_of_any_size() -> None:
    for largest in (1, 255, 256, 40_000, 2**31, 2**40):
        dense = torch.zeros(N_PATTERNS, dtype=torch.int64)
        dense[[0, 7, 65_535]] = torch.tensor([1, largest, 3])
        tally = ValueCounts.of(dense)
        assert torch.equal(tally.dense(), dense)
        assert tally.total == largest + 4
        assert tally.holding(1) == 0
        assert tally.holding(largest + 1) == 7


def test_a_tally_is_small() -> None:
    tally = ValueCounts.of(value_counts(normal(800_000)))
    assert tally.patterns.nbytes + tally.counts.nbytes < 30_000  # of 512 KiB in full


def test_moments_carry_the_value_counts_when_they_merge() -> None:
    wanted = Wanted(quantiles=("p50",))
    one, two = (reduce_tensor(normal(100, seed=seed), None, wanted)() for seed in (0, 1))
    assert one.merge(two).values == two.merge(one).values
    assert reduce_tensor(normal(9), None, NOTHING)().values is None
    assert Moments(1, 0.0, 0.0, 0.0, 0.0).merge(one).values is None


def rows(
    model: nn.Module, inputs: list[Tensor], keys: tuple[str, ...], **wanted: bool
) -> dict[str, dict[str, float] | None]:
    batches = [Batch((x,), len(x)) for x in inputs]
    every = Selection(is_innermost_only=True)
    found = observe_activations(
        model, lambda phase, compute, kind: map(compute, batches), every, Wanted(quantiles=keys, **wanted)
    )
    return {row.name: row.quantiles for row in to_rows(found)}


def test_of_every_layer_over_all_batches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    ).eval()
    inputs = [normal(n, 3, 16, 16, seed=n) for n in (4, 3, 5)]
    outputs: dict[str, list[Tensor]] = {name: [] for name in "0123"}
    for x in inputs:
        flowing = x
        for name, module in model.named_children():
            with torch.no_grad():
                flowing = module(flowing)
            outputs[name].append(flowing.clone())
    found = rows(model, inputs, KEYS)
    assert found == {name: by_sorting(torch.cat([x.ravel() for x in xs])) for name, xs in outputs.items()}


def test_outputs_without_finite_values_have_none() -> None:
    assert rows(nn.Identity(), [torch.full((2, 3), math.nan)], ("p50",)) == {"": None}
