"""Statistics against NumPy in double precision."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import tolerance
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import (
    CHUNK,
    HISTOGRAM_EXACT,
    ROW,
    reduce_on_device,
    reduce_tensor,
)

WANTED = Wanted(threshold=0.1)
Way = Callable[[Tensor, int | None], Moments]


def on_cpu(x: Tensor, channel_dim: int | None = None) -> Moments:
    return reduce_tensor(x, channel_dim, WANTED)()


def on_device(x: Tensor, channel_dim: int | None = None) -> Moments:
    """The way of accelerators, which runs on the CPU as well."""
    x = x.dequantize() if x.is_quantized else x
    return reduce_on_device(x.detach(), channel_dim, WANTED)()


@pytest.fixture(params=[on_cpu, on_device])
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


def check(found: Moments, x: Tensor, rel: float = 1e-5, scale: float = 0.0) -> None:
    rel = max(rel, tolerance(x.numel()) / 8)  # a sum in blocks: fewer roundings than values
    every = (x.dequantize() if x.is_quantized else x).to(torch.float64).numpy().ravel()
    finite = every[np.isfinite(every)]
    assert (found.n_nan, found.n_inf) == (np.isnan(every).sum(), np.isinf(every).sum())
    assert found.n == finite.size
    assert found.n_zero == (finite == 0).sum()
    assert found.n_near_zero == (np.abs(finite) < WANTED.threshold).sum()
    if not finite.size:
        assert found.histogram is None
        return
    mean, std = finite.mean(), finite.std()
    assert (found.low, found.high) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(mean, rel=rel, abs=1e-7 * max(std, scale))
    assert found.std == pytest.approx(std, rel=rel, abs=1e-7 * scale)
    assert found.rms == pytest.approx(np.sqrt(np.square(finite).mean()), rel=rel)
    assert found.histogram is not None
    if not found.histogram.is_sampled:
        assert sum(found.histogram.counts) == finite.size
        assert list(found.histogram.counts) == list(np.histogram(finite, np.array(found.histogram.edges))[0])


def normal(*shape: int, mean: float = 0.0, std: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * std + mean


def giants_above(level: float) -> Tensor:
    x = torch.full((300_000,), level)
    x[::100_000] = 1000 * level
    return x


def quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch will remove these; torchvision's quantized models are made of them
        return torch.quantize_per_tensor(normal(40, 5), 0.1, 3, torch.qint8)


CASES = {
    "normal": normal(8, 16, 20, 20),
    "relu": normal(8, 16, 20, 20).relu(),
    "shifted": normal(50_000, mean=3.0),
    "four deviations away": normal(50_000, mean=4.2),
    "1000 deviations away": normal(300_001, mean=1000.0),
    "1000 deviations below": normal(300_001, mean=-1000.0),
    "skewed, 1000 deviations away": 1000 + normal(300_001).exp(),
    "small, 1000 deviations away": normal(300_001, mean=1e-3, std=1e-6),
    "few giants above a level": giants_above(1.0),
    "few giants above a high level": giants_above(1000.1),
    "one giant": torch.cat([torch.zeros(9999), torch.tensor([1e6])]),
    "huge": normal(5000, std=1e30),
    "overflowing sum": torch.full((5000,), 3e38),
    "small": normal(5000, std=1e-12),
    "tiny": normal(5000, std=1e-20),
    "denormal": normal(5000, std=1e-41),
    "one denormal": torch.tensor([1e-45]),
    "one number": torch.tensor([-2.5]),
    "no dimension": torch.tensor(4.0),
    "empty": torch.empty(0, 3, 4),
    "zeros": torch.zeros(4, 3, 5),
    "negative zeros": -torch.zeros(7),
    "all nan": torch.full((3, 4), math.nan),
    "all infinite": torch.tensor([math.inf, -math.inf]),
    "some not finite": torch.tensor([[1.0, math.nan, 3.0], [math.inf, -math.inf, 0.0]]),
    "positive": normal(5000).abs() + 0.01,
    "negative": -normal(5000).abs() - 0.01,
    "on the threshold": torch.tensor([0.1, -0.1, 0.0999, 0.1001]),
    "permuted": normal(4, 5, 6, 7).permute(0, 2, 3, 1),
    "channels last": normal(4, 5, 6, 7).to(memory_format=torch.channels_last),
    "every other": normal(40, 50)[::2, 1::3],
    "expanded": normal(1, 5, 1).expand(7, 5, 3),
    "transposed": normal(40, 50).T,
    "float16": normal(5000).half(),
    "float16, large": normal(5000, std=9000.0).half(),
    "bfloat16": normal(5000).bfloat16(),
    "float64": normal(5000).double() * 1e10,
    "float64, 1e6 deviations away": normal(5000).double() + 1e6,
    "float64, huge": normal(500).double() * 1e150,
    "uint8": torch.arange(256, dtype=torch.uint8),
    "int8": torch.arange(-128, 128).to(torch.int8),
    "int16": torch.arange(-3000, 3000).to(torch.int16),
    "int32": torch.arange(-30, 70).to(torch.int32) * 10_000_019,
    "int64": torch.arange(-1000, 5000),
    "uint16": torch.arange(0, 300).to(torch.uint16),
    "bool": torch.tensor([[True, False, True]]),
    "quantized": quantized(),
    "requires grad": normal(10).requires_grad_(),
}
SIZES = [1, 2, ROW - 1, ROW, ROW + 1, 2 * ROW, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + ROW, 2 * CHUNK + 5]


@pytest.mark.parametrize("name", CASES)
def test_numpy_says_the_same(name: str, way: Way) -> None:
    x = CASES[name]
    check(way(x, None), x.detach())


LENGTHS = st.sampled_from(SIZES) | st.integers(1, 3 * ROW)
MEANS = st.sampled_from([0.0, 4.2, 50.0, 1000.0]) | st.floats(-1000, 1000)


@given(n=LENGTHS, mean=MEANS, seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_no_size_is_special(n: int, mean: float, seed: int) -> None:
    x = normal(n, mean=mean, seed=seed)
    # What is left of the mean where the values cancel is known to a rounding of the values.
    for way in (on_cpu, on_device):
        check(way(x, None), x, scale=float(x.abs().max()))


def test_one_thread_and_several_give_the_same_extremes_and_counts() -> None:
    n_threads = torch.get_num_threads()
    try:
        for x in (
            CASES["relu"],
            CASES["negative"],
            CASES["some not finite"],
            normal(3 * CHUNK + 7),
            CASES["float64"],
        ):
            found = []
            for n in (1, 2):
                torch.set_num_threads(n)
                one = on_cpu(x)
                found.append((one.low, one.high, one.n_zero, one.n_near_zero, one.n_nan))
            assert found[0] == found[1]
    finally:
        torch.set_num_threads(n_threads)


@pytest.mark.parametrize("layout", ["first", "last", "channels_last"])
@pytest.mark.parametrize("fill", [0.0, math.nan, math.inf, -1.0, 1e-45])
def test_dead_channels(layout: str, fill: float, way: Way) -> None:
    x = normal(3, 5, 4, 6).relu()
    x[:, 1] = 0
    x[:, 3] = 0
    x[2, 3, 1, 5] = fill
    x[0, 2] = 0  # dead for one image only
    dim = 1
    if layout == "last":
        x, dim = x.permute(0, 2, 3, 1).contiguous(), 3
    elif layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    assert way(x, dim).alive == (True, False, True, fill != 0, True)


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.7])
def test_near_zero_is_strictly_below_the_threshold(threshold: float) -> None:
    x = torch.tensor([threshold, -threshold, threshold * 0.999, 2 * threshold])
    wanted = Wanted(threshold=threshold)
    assert reduce_tensor(x, None, wanted)().n_near_zero == 1
    assert reduce_on_device(x, None, wanted)().n_near_zero == 1


def test_the_tensor_is_left_alone() -> None:
    for x in (normal(10, 10), normal(10, 10, mean=1e4), torch.tensor([math.nan, 1.0]), normal(9).double()):
        before = x.clone()
        on_cpu(x)
        assert torch.equal(x, before) or x.isnan().any()


def test_very_many_values_give_their_histogram_from_a_sample() -> None:
    exact = on_cpu(normal(HISTOGRAM_EXACT)).histogram
    x = normal(1_300_000)
    sampled = on_cpu(x).histogram
    assert exact is not None
    assert sampled is not None
    assert (exact.is_sampled, sampled.is_sampled) == (False, True)
    expected = np.histogram(x.double().numpy(), np.array(sampled.edges))[0]
    assert sum(sampled.counts) == pytest.approx(x.numel(), rel=1e-3)
    assert np.abs(np.array(sampled.counts) - expected).sum() < 0.05 * x.numel()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_sample_is_even_over_channels_and_columns(memory_format: torch.memory_format) -> None:
    x = torch.zeros(4, 64, 96, 96)  # a step of 18 would meet every other channel or column only
    x += torch.arange(64).view(64, 1, 1) % 4 + torch.arange(96) % 2 * 4
    found = on_cpu(x.to(memory_format=memory_format)).histogram
    assert found is not None
    assert found.is_sampled
    counts = np.array([count for count in found.counts if count])
    assert counts.size == 8
    assert counts == pytest.approx(np.full(8, x.numel() / 8), rel=0.01)


def test_a_sample_weighs_as_much_as_what_is_counted_in_full() -> None:
    many, few = torch.zeros(3_000_000), torch.ones(1_000_000)
    many[0], few[0] = 1, 0
    a, b = on_cpu(many).histogram, on_cpu(few).histogram
    assert a is not None
    assert b is not None
    merged = a.merge(b)
    assert merged.counts[0] / sum(merged.counts) == pytest.approx(0.75, abs=0.01)
