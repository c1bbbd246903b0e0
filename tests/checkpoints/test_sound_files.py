"""Sound files of every kind are read, bit for bit as they were written."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import read_checkpoint, read_values
from tests.checkpoints.writers import KINDS, Written

N_SEEDS = 3


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bits(one) == bits(other)


def bits(x: Tensor) -> bytes:
    """Return the bytes of its values, one after the other."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("seed", range(N_SEEDS))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_are_those_that_were_written(
    tmp_path: Path, kind: Callable[[Path, random.Random], Written], seed: int
) -> None:
    written = kind(tmp_path, random.Random(f"{kind.__name__} {seed}"))
    contents = read_contents(written.path, written.key)
    assert {entry.name for entry in contents.tensors} == written.state.keys()
    for entry in contents.tensors:
        assert same(read_values(entry), written.state[entry.name]), entry
        assert entry.nbytes == written.state[entry.name].nbytes
    if kind.__name__ != "in_memory":
        loaded = read_checkpoint(written.path, written.key).state
        assert loaded.keys() == written.state.keys()
        for name, value in loaded.items():
            assert same(value, written.state[name]), name
