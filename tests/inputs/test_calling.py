"""How a forward is called with inputs by name or in order, as its signature has it."""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.forward_signature import arrange_named, check_call, training_args
from modelscope_cli.inputs.grammar import ShapeSpec, parse_named, shape_in


class Extra(TypedDict, total=False):
    verbose: bool


def module(forward: Any) -> nn.Module:
    """Return a module whose forward is this function, without `self`."""
    made = nn.Module()
    made.forward = forward
    return made


def image_and_text(image, text):
    """Both by name or in order."""


def by_name_only(*, image, text=None):
    """Neither in order."""


def one_dict(batch):
    """One argument, whatever it is."""


def one_mapping(batch: Mapping[str, Tensor], is_loud: bool = False):
    """One argument that is said to be a dict of tensors."""


def one_tensor(x: Tensor):
    """One argument that is said not to be a dict."""


def one_unsaid(batch):
    """One argument of which nothing is said, from which an image may be read."""
    return batch["image"] if isinstance(batch, dict) else batch


def anything(*args, **kwargs):
    """As a wrapper has it."""


def image_and_anything(image, **kwargs):
    """Whatever else there is."""


def image_and_known(image: Tensor, **kwargs: Unpack[Extra]):
    """As transformers has it."""


def text_first(input_ids: Tensor | None = None, pixel_values: Tensor | None = None):
    """As CLIP has it."""


@pytest.mark.parametrize(("forward", "names", "expected"), [
    (image_and_text, "image text", "keywords"),
    (image_and_text, "text image", "keywords"),
    (by_name_only, "image", "keywords"),
    (one_dict, "image text", "dict"),
    (one_dict, "batch", "keywords"),
    (one_mapping, "image text", "dict"),
    (one_mapping, "batch is_loud", "keywords"),
    (one_tensor, "x", "keywords"),
    (one_tensor, "y", "positional"),
    (one_unsaid, "y", "positional"),
    (one_unsaid, "image", "dict"),
    (one_unsaid, "y z", "dict"),
    (anything, "image", "keywords"),
    (image_and_anything, "image depth", "keywords"),
    (image_and_anything, "picture depth", "dict"),
    (image_and_known, "image verbose", "keywords"),
    (text_first, "pixel_values", "keywords"),
])  # fmt: skip
def test_named_inputs_go_in_as_keywords_or_as_the_one_dict(forward, names, expected):
    named = dict.fromkeys(names.split(), torch.zeros(1))
    args = arrange_named(module(forward), named)
    assert args == {"keywords": named, "dict": (named,), "positional": (*named.values(),)}[expected]


def test_a_name_that_another_method_of_the_class_reads_is_of_a_dict():
    class Trained(nn.Module):
        def forward(self, batch):
            return self.encode(batch)

        def encode(self, batch):
            return batch["image"] * 2

    given = torch.ones(1)
    assert arrange_named(Trained(), {"image": given}) == ({"image": given},)
    assert arrange_named(Trained(), {"x": given}) == (given,)


@pytest.mark.parametrize(("forward", "names", "message", "hint"), [
    (image_and_text, "imag text", "no argument 'imag'; it has image, text", "image="),
    (image_and_text, "image", "needs more arguments: text", "--input text=int64:1,16"),
    (by_name_only, "text", "needs more arguments: image", "--input image=1,3,224,224"),
    (one_tensor, "y z", "no argument 'y'; it has x", "--input x=1,3,224,224"),
    (image_and_known, "image loud", "no argument 'loud'; it has image", "--input image="),
    (text_first, "pixels", "it has input_ids, pixel_values", "--input input_ids=int64:1,16"),
])  # fmt: skip
def test_a_wrong_name_or_a_missing_one_lists_those_there_are(forward, names, message, hint):
    with pytest.raises(UsageError) as raised:
        arrange_named(module(forward), dict.fromkeys(names.split(), torch.zeros(1)))
    assert message in raised.value.message
    assert hint in raised.value.hint


IMAGE = torch.rand(1, 3, 4, 4)


@pytest.mark.parametrize(("forward", "args", "message"), [
    (image_and_text, (IMAGE, IMAGE), None),
    (image_and_text, (IMAGE,), "needs more arguments: text"),
    (one_tensor, (IMAGE, IMAGE), "takes 1 argument in order, not 2"),
    (by_name_only, (IMAGE,), "needs more arguments: image"),
    (anything, (IMAGE, IMAGE, IMAGE), None),
    (text_first, (IMAGE,), "takes integers as 'input_ids', not an image"),
    (text_first, (torch.ones(1, 4, dtype=torch.int64), IMAGE), None),
    (image_and_text, {"image": IMAGE}, None),
])  # fmt: skip
def test_a_call_in_order_that_cannot_be_meant_is_refused_with_a_line_of_names(forward, args, message):
    if message is None:
        check_call(module(forward), args)
        return
    with pytest.raises(UsageError) as raised:
        check_call(module(forward), args, "photo.jpg")
    assert message in raised.value.message
    assert "=photo.jpg" in raised.value.hint


def test_what_a_hook_of_the_users_brings_is_not_missed():
    other = module(image_and_text)
    other.register_forward_pre_hook(lambda module, args: (*args, IMAGE))
    check_call(other, (IMAGE,))


def test_a_detector_in_training_is_given_the_middle_half_of_each_image():
    images = [torch.zeros(3, 16, 32), torch.zeros(3, 8, 12)]
    _, targets = training_args(nn.Identity(), "detection", (images,), label=3)
    assert [one["boxes"].tolist() for one in targets] == [[[8, 4, 24, 12]], [[3, 2, 9, 6]]]
    assert [one["labels"].tolist() for one in targets] == [[3], [3]]
    assert [int(one["masks"].sum()) for one in targets] == [16 * 8, 6 * 4]


def test_names_are_read_in_order_and_shapes_distinguished_from_files(tmp_path, monkeypatch):
    assert parse_named(["a=x.jpg", "b=int64:1,2", "a=y=z.jpg"]) == {
        "a": ["x.jpg", "y=z.jpg"],
        "b": ["int64:1,2"],
    }
    assert shape_in("a", "int64:1,16") == ShapeSpec((1, 16), "int64")
    assert shape_in("a", "4") == ShapeSpec((4,))
    assert shape_in("a", "photos/1,2.jpg") is None
    assert shape_in("a", "photo") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b").touch()
    assert shape_in("a", "a,b") is None
    with pytest.raises(UsageError, match="'b' in '--input a=1,b' is not a whole number"):
        shape_in("a", "1,b")
