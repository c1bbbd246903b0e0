"""What a sample or a position sees of others that it is not to see: leaks, told in a copy of the model."""

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

    def __init__(self, dim: int = -1, is_causal: bool = False):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(7, 8), nn.Linear(8, 24), nn.Linear(8, 7)
        self.dim, self.is_causal = dim, is_causal

    def forward(self, x):
        q, k, v = self.qkv(self.embedding(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -1e9)
        return self.head(functional.softmax(scores, self.dim) @ v)


class Pooled(Attention):
    def forward(self, x):
        return super().forward(x).mean(1)


class Places(nn.Module):
    """Layers that expect the places of a sequence first, and get the samples first, or sequences one by one."""

    def __init__(self, kind: str, is_alone: bool = False):
        super().__init__()
        self.over = (
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) if kind == "attention" else nn.LSTM(8, 8)
        )
        self.head, self.is_alone = nn.Linear(8, 3), is_alone

    def forward(self, x):
        out = self.over(x.unsqueeze(1) if self.is_alone else x)
        out = out[0] if isinstance(out, tuple) else out
        return self.head(out[:, -1])


class Cloud(nn.Module):
    """A class for each point of one cloud: what a row gives depends on the others, as it should."""

    def __init__(self):
        super().__init__()
        self.own, self.head = nn.Linear(8, 8), nn.Linear(16, 3)

    def forward(self, x):
        own = self.own(x).relu()
        return self.head(torch.cat([own, own.amax(0, keepdim=True).expand_as(own)], 1))


def leak_of(model, x, targets):
    found = find_leak(
        WatchedModel("Net", weakref.ref(model), probe=x if isinstance(x, tuple) else (x,)), targets
    )
    return None if found is None else found[1]


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_samples_in_the_place_of_steps_are_distinguished_from_rows_of_one_thing(kind) -> None:
    torch.manual_seed(0)
    assert "other samples" in (leak_of(Places(kind), torch.randn(6, 5, 8), None) or "")
    assert leak_of(Places(kind, is_alone=True), torch.randn(6, 8), None) is None
    assert leak_of(Cloud(), torch.randn(6, 8), None) is None


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(7, (8, 6), generator=torch.Generator().manual_seed(1))
    return x[:, :-1], x[:, 1:].flatten()


@pytest.mark.parametrize(("model", "is_foretelling", "leaks"), [
    (Attention(is_causal=True), True, None),
    (Attention(), True, "later inputs"),
    (Attention(), False, None),  # a tagger may look ahead
    (Attention(dim=0, is_causal=True), True, "depends"),
    (Pooled(), False, None),
    (Pooled(dim=0), False, "other samples"),
])  # fmt: skip
def test_what_leaks_is_seen_in_a_copy(model, is_foretelling, leaks) -> None:
    x, following = tokens()
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist(), model.training
    found = leak_of(model, x, following if is_foretelling else following * 0)
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist(), model.training
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert (found is None) == (leaks is None)
    assert (leaks or "") in (found or "")


class Forecast(nn.Module):
    """The next value of a series at each place, by a convolution that sees the past, or both sides."""

    def __init__(self, padding: tuple[int, int]):
        super().__init__()
        self.over, self.padding = nn.Conv1d(1, 1, 3), padding

    def forward(self, x):
        return self.over(functional.pad(x.transpose(1, 2), self.padding)).transpose(1, 2)


class ChannelsFirst(Forecast):
    """The same, with time as the last dimension."""

    def forward(self, x):
        return self.over(functional.pad(x, self.padding))


class TimeFirst(nn.Module):
    def __init__(self, is_masked: bool):
        super().__init__()
        self.embedding, self.is_masked = nn.Embedding(7, 8), is_masked
        self.over, self.head = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), nn.Linear(8, 7)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(len(x)) if self.is_masked else None
        return self.head(self.over(self.embedding(x), mask))


class OneHot(nn.Module):
    def __init__(self, is_both: bool):
        super().__init__()
        self.over, self.head = nn.GRU(7, 4, batch_first=True, bidirectional=is_both), nn.LazyLinear(7)

    def forward(self, x):
        return self.head(self.over(x)[0])


class Forced(nn.Module):
    """A decoder that is given its target, and reads the token before each place, or the one there."""

    def __init__(self, is_before: bool):
        super().__init__()
        self.embedding, self.cell, self.head = (
            nn.Embedding(8, 8),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, 8),
        )
        self.is_before = is_before

    def forward(self, memory, tokens, is_forced):
        read = functional.pad(tokens[:, :-1], (1, 0), value=7) if self.is_before else tokens
        return self.head(self.cell(self.embedding(read), memory[None])[0])


SERIES = torch.linspace(0, 3, 48).sin().view(4, 12, 1)
TOKENS = torch.randint(7, (6, 8), generator=torch.Generator().manual_seed(3))
HOT = functional.one_hot(TOKENS, 7).float()


@pytest.mark.parametrize(
    ("make", "given", "targets"),
    [
        (lambda is_sick: Forecast((1, 1) if is_sick else (2, 0)), SERIES[:, :-1], SERIES[:, 1:]),
        (
            lambda is_sick: ChannelsFirst((1, 1) if is_sick else (2, 0)),
            SERIES[:, :-1].transpose(1, 2),
            SERIES[:, 1:].transpose(1, 2),
        ),
        (lambda is_sick: TimeFirst(not is_sick), TOKENS[:-1], TOKENS[1:]),
        (OneHot, HOT[:, :-1], TOKENS[:, 1:]),
        (lambda is_sick: Forced(not is_sick), (torch.randn(6, 8), TOKENS, True), TOKENS),
    ],
    ids=["numbers", "numbers, time last", "time first", "one-hot", "a target that is given"],
)
def test_places_that_see_what_they_are_to_tell(make, given, targets) -> None:
    torch.manual_seed(0)
    for is_sick in (True, False):
        model = make(is_sick)
        model(*(given if isinstance(given, tuple) else (given,)))
        assert (leak_of(model, given, targets.flatten()) is not None) == is_sick
        assert leak_of(model, given, targets.flatten() * 0 + 1) is None


def test_what_copies_its_input_may_see_it() -> None:
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
    assert leak_of(model, TOKENS, TOKENS.flatten()) is None
    assert leak_of(Forced(is_before=False), (TOKENS, TOKENS, True), TOKENS.flatten() * 0) is None


def test_a_model_that_prints_fails_or_is_hooked_is_left_alone(capsys) -> None:
    class Loud(Pooled):
        def forward(self, x):
            sys.stdout.write("loud")
            return super().forward(x)

    x, _ = tokens()
    assert leak_of(Loud(dim=0), x, None) is not None
    assert capsys.readouterr().out == ""
    hooked, heard = Pooled(dim=0), []
    hooked.register_forward_hook(lambda *_: heard.append(1))
    assert leak_of(hooked, x, None) is None
    assert heard == []
    assert leak_of(nn.Linear(3, 3), x, None) is None
