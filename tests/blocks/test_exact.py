"""Partial results survive the way to a file and back to the last bit, and blocks any order of work."""

import json
import math
import random
from dataclasses import dataclass, field

import pytest
import torch
from block_runs import TINY, draw_images
from hypothesis import given
from hypothesis import strategies as st

import modelscope_cli as ms
from modelscope_cli.analysis.blocks.folder import from_plain, to_text
from modelscope_cli.analysis.statistics.moments import Moments


@dataclass(frozen=True)
class Part:
    n: int
    value: float
    flags: tuple[bool, ...] | None
    pairs: dict[str, tuple[float, int]]
    name: str | int
    grid: tuple[tuple[int, int], ...] = ()
    pending: list[int] = field(default_factory=list, repr=False)


def again(kind, value):
    return from_plain(kind, json.loads(to_text(value)))


parts = st.builds(
    Part,
    st.integers(),
    st.floats(allow_nan=False),
    st.none() | st.lists(st.booleans()).map(tuple),
    st.dictionaries(st.text(), st.tuples(st.floats(allow_nan=False), st.integers())),
    st.text() | st.integers(),
    st.lists(st.tuples(st.integers(), st.integers())).map(tuple),
)


@given(parts)
def test_numbers_and_words_come_back(part):
    found = again(Part, part)
    assert found == part
    assert math.copysign(1, found.value) == math.copysign(1, part.value)


def test_what_is_not_a_number_comes_back():
    assert math.isnan(again(float, math.nan))
    assert again(float, -math.inf) == -math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_tensors_come_back(dtype, shape):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    found = again(torch.Tensor, tensor)
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


def test_moments_come_back():
    moments = Moments(3, 1e6, 1e-3, -math.inf, math.inf, alive=(True, False))
    assert again(Moments, moments) == moments


@pytest.mark.parametrize("seed", range(2))
def test_blocks_that_come_in_any_order_add_up_to_the_same(tmp_path, monkeypatch, seed):
    draw_images(tmp_path / "images", 23)
    monkeypatch.chdir(tmp_path)

    def found(**more):
        record = ms.stats(TINY[1], "images", checkpoint=TINY[3], size=32, batch=3, out="kept", **more)
        return record.layers, record.inputs, record.certificate

    before = found()
    blocks = sorted((tmp_path / "kept/blocks").iterdir())
    for file in random.Random(seed).sample(blocks, 5):
        file.unlink()
    assert found(resume=True) == before
