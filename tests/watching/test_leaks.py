"""What a sample sees of others that it is not to see: leaks, told in a copy of the model."""

import random
import sys
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.whole_outputs import find_leak


class Attention(nn.Module):
    """Own attention over the tokens of each sample, or wrongly over something else."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(7, 8), nn.Linear(8, 24), nn.Linear(8, 7)
        self.dim = dim

    def forward(self, x):
        q, k, v = self.qkv(self.embedding(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        return self.head(functional.softmax(scores, self.dim) @ v)


class Pooled(Attention):
    def forward(self, x):
        return super().forward(x).mean(1)


class Places(nn.Module):
    """Layers that expect the places of a sequence first, and get the samples first, or sequences one by one."""

    def __init__(self, kind: str, is_alone: bool = False, batch_first: bool = False):
        super().__init__()
        attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.over = attention if kind == "attention" else getattr(nn, kind)(8, 8, batch_first=batch_first)
        self.head, self.is_alone = nn.Linear(8, 3), is_alone

    def forward(self, x):
        out = self.over(x.unsqueeze(1) if self.is_alone else x)
        out = out[0] if isinstance(out, tuple) else out
        return self.head(out[:, -1])


class WithState(Places):
    """The same, returned with the state."""

    def forward(self, x):
        out, state = self.over(x)
        return self.head(out[:, -1]), state


class Cloud(nn.Module):
    """A class for each point of one cloud: what a row gives depends on the others, as it should."""

    def __init__(self):
        super().__init__()
        self.own, self.head = nn.Linear(8, 8), nn.Linear(16, 3)

    def forward(self, x):
        own = self.own(x).relu()
        return self.head(torch.cat([own, own.amax(0, keepdim=True).expand_as(own)], 1))


def leak_of(model, x):
    found = find_leak(WatchedModel("Net", weakref.ref(model), probe=(x,)))
    return None if found is None else found[1]


@pytest.mark.parametrize("kind", ["attention", "LSTM"])
def test_samples_in_the_place_of_steps_are_distinguished_from_rows_of_one_thing(kind) -> None:
    torch.manual_seed(0)
    assert "other samples" in (leak_of(Places(kind), torch.randn(6, 5, 8)) or "")
    assert leak_of(Places(kind, is_alone=True), torch.randn(6, 8)) is None
    assert leak_of(Cloud(), torch.randn(6, 8)) is None


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_an_output_with_a_state_beside_it_is_looked_at(kind) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, 8)
    assert "other samples" in (leak_of(WithState(kind), x) or "")
    assert leak_of(WithState(kind, batch_first=True), x) is None


def tokens() -> torch.Tensor:
    return torch.randint(7, (8, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "leaks"), [(Attention(), None), (Pooled(), None), (Pooled(dim=0), "other samples")]
)
def test_what_leaks_is_seen_in_a_copy(model, leaks) -> None:
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist(), model.training
    found = leak_of(model, tokens())
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist(), model.training
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert (found is None) == (leaks is None)
    assert (leaks or "") in (found or "")


def test_a_model_that_prints_fails_or_is_hooked_is_left_alone(capsys) -> None:
    class Loud(Pooled):
        def forward(self, x):
            sys.stdout.write("loud")
            return super().forward(x)

    x = tokens()
    assert leak_of(Loud(dim=0), x) is not None
    assert capsys.readouterr().out == ""
    hooked, heard = Pooled(dim=0), []
    hooked.register_forward_hook(lambda *_: heard.append(1))
    assert leak_of(hooked, x) is None
    assert heard == []
    assert leak_of(nn.Linear(3, 3), x) is None
