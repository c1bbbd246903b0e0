"""Shapes by name: the number of images that is missing, `--batch`, and what the hint suggests otherwise."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.inputs.forward_signature import check_call


class Mixed(nn.Module):
    """An image of 8 x 8, a row of 6 numbers, and codes."""

    def __init__(self):
        super().__init__()
        self.conv, self.row, self.words = nn.Conv2d(3, 4, 3), nn.Linear(6, 4), nn.Embedding(9, 4)
        self.head = nn.Linear(4 * 36, 2)

    def forward(self, image, row, ids=None):
        beside = self.row(row) if ids is None else self.row(row) + self.words(ids).mean(1)
        return self.head((self.conv(image) + beside[:, :, None, None]).flatten(1))


def by_name(words):
    return dict(word.split("=") for word in words.split())


@pytest.mark.parametrize(("typed", "batch", "read"), [
    ("image=3,8,8 row=6", None, [(1, 3, 8, 8), (1, 6)]),
    ("image=3,8,8 row=1,6 ids=int64:5", 3, [(3, 3, 8, 8), (3, 6), (3, 5)]),
    ("image=1,3,8,8 row=1,6", 3, [(3, 3, 8, 8), (3, 6)]),
    ("image=2,3,8,8 row=6", None, [(2, 3, 8, 8), (2, 6)]),
    ("image=4,3,8,8 row=4,6", 2, [(2, 3, 8, 8), (2, 6)]),  # two passes
])  # fmt: skip
def test_what_is_typed_for_one_image_is_one_image_or_as_many_as_batch_says(typed, batch, read):
    record = ms.summary(Mixed(), by_name(typed), batch=batch)
    assert list(record.run.input.shape) == read


class Pair(nn.Module):
    """Two gray images of 28 x 28."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 26 * 26, 3))

    def forward(self, a, b):
        return self.net(a) - self.net(b)


@pytest.mark.parametrize(("model", "typed", "hint"), [
    (Mixed, "image=1,3,8,8", "image=1,3,8,8 row=1,6"),
    (Pair, "a=1,1,28,28", "a=1,1,28,28 b=1,1,28,28"),
    (Pair, "", "a=1,1,28,28 b=1,1,28,28"),
    (Pair, "a=1,1,30,30 b=1,1,30,30", "a=1,1,28,28 b=1,1,28,28"),
    (lambda: Pair().net, "input=1,1,30,30", "input=1,1,28,28"),
])  # fmt: skip
def test_a_hint_has_the_shapes_that_were_typed_or_those_that_are_taken(model, typed, hint, monkeypatch):
    words = [part for word in typed.split() for part in ("--input", word)]
    line = SimpleNamespace(argv=("summary", *words))
    monkeypatch.setattr("modelscope_cli.hooks.session.invocation", lambda: line)
    with pytest.raises(ModelscopeError) as raised:
        ms.summary(model(), by_name(typed) or None)
    assert raised.value.hint == f"inputs={by_name(hint)}"


def test_more_images_than_the_typed_ones_are_refused():
    with pytest.raises(UsageError, match="first dimensions are image 2, row 2"):
        ms.summary(Mixed(), {"image": "2,3,8,8", "row": "2,6"}, batch=4)


def test_the_hint_for_a_missing_argument_has_the_size_of_the_image_that_was_given():
    with pytest.raises(UsageError) as raised:
        check_call(Mixed(), (torch.rand(5, 3, 8, 8),))
    assert raised.value.hint == "--input image=1,3,8,8 --input row=1,6"
