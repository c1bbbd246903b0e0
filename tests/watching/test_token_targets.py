"""Targets of models of sequences: the next token, or by mistake one that the model has read."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.watching.conftest import codes, fit

_CLASSES, _PLACES = 24, 8


class Reader(nn.Module):
    """Scores at each place, from what was read up to there; or from a code of the whole sequence."""

    def __init__(self, is_coded: bool = False):
        super().__init__()
        self.embedding, self.over = nn.Embedding(_CLASSES, 8), nn.GRU(8, 16, batch_first=True)
        self.back, self.head, self.is_coded = (
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, _CLASSES),
            is_coded,
        )

    def forward(self, tokens=None, state=None):
        out, last = self.over(self.embedding(tokens), state)
        if self.is_coded:
            out, _ = self.back(last[0].unsqueeze(1).expand(-1, tokens.shape[1], -1))
        return self.head(out)


def masked(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.masked_fill(torch.rand(tokens.shape) < 0.3, -100)


# What is read and what is to be predicted, of rows of tokens
@pytest.mark.parametrize(("pair", "is_coded", "words"), [
    (lambda t: (t[:, :-1], t[:, 1:]), False, None),
    (lambda t: (t, t), False, "at the same place"),
    (lambda t: (t, masked(t)), False, "at the same place"),
    (lambda t: (t, t), True, None),  # an autoencoder
    (lambda t: (t.roll(1, 0), t), False, None),
    (lambda t: (t[:, 1:], t[:, :-1]), False, "one place earlier"),
    (lambda t: (t[:, :-2], t[:, 2:]), False, "two places later"),
    (lambda t: (torch.where(t < 3, 0, t), t), False, None),  # of which some tokens were replaced
    (lambda t: (torch.zeros_like(t), torch.zeros_like(t)), False, None),  # any distance fits
])  # fmt: skip
@pytest.mark.parametrize("is_named", [False, True])
def test_labels_that_the_model_has_read(recorded, pair, is_coded, words, is_named) -> None:
    def script():
        model = Reader(is_coded)

        def loss():
            tokens, labels = pair(torch.randint(_CLASSES, (6, _PLACES)))
            scores = model(tokens=tokens) if is_named else model(tokens)
            return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())

        fit(model, loss)

    found = [one.message for one in recorded(script).findings if one.code == "MS777"]
    assert len(found) == (words is not None)
    assert all(words in message for message in found)


def test_a_decoder_that_also_reads_the_token_before_may_reconstruct_its_input(recorded) -> None:
    def script():
        encoder, decoder = Reader(), Reader()

        def loss():
            tokens = torch.randint(_CLASSES, (6, _PLACES))
            scores = encoder(tokens) + decoder(functional.pad(tokens[:, :-1], (1, 0)))
            return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())

        fit(nn.ModuleList([encoder, decoder]), loss)

    assert "MS777" not in codes(recorded(script))
