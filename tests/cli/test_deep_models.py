"""Models that are nested more deeply than Python lets anybody recurse."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError


class Again(nn.Module):
    def forward(self, x):
        return self.forward(x)


def nested(n):
    model = nn.Sequential(nn.Linear(4, 5))
    for _ in range(n):
        model = nn.Sequential(model)
    return model


def test_a_hundred_levels_are_no_trouble():
    assert len(ms.stats(nested(100), torch.ones(2, 4))) == 1
    assert len(ms.grads(nested(100), torch.ones(2, 4)).parameters) == 2


def test_what_recurses_without_end_is_an_error_of_one_line():
    with pytest.raises(CannotRunError, match=r"nested too deeply|RecursionError"):
        ms.stats(Again(), torch.ones(2, 4))
