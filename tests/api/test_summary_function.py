"""`ms.summary`: what the command gives, from Python, and the caller's module as it was."""

import pytest
import torch
from function_and_command import STAR, plain, tiny_resnet, without
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.session import ForwardError

MISFIT = """
from torch import nn

class Misfit(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3), nn.Linear(5, 2), nn.ReLU()
    def forward(self, x):
        return self.c(self.b(self.a(x)))
"""


def test_inputs_of_every_kind_say_the_size():
    for given in (STAR, Image.new("RGB", (96, 96)), torch.zeros(1, 3, 96, 96), [torch.zeros(3, 96, 96)] * 2):
        size = {} if isinstance(given, torch.Tensor | list) else {"size": 96}
        found = ms.summary(tiny_resnet(), given, **size)
        assert found.layers[1].input_shapes[0][1:] == (3, 96, 96)
    assert ms.summary("resnet18", STAR, size=64).run.device == "meta"


def test_a_forward_that_raises_shows_the_layers_up_to_there(both, cwd):
    (cwd / "misfit.py").write_text(MISFIT)
    typed = both.typed("summary misfit.py:Misfit --input-shape 1,3,8,8", code=4)
    with pytest.raises(ForwardError, match=r"b \(Linear\)") as caught:
        ms.summary("misfit.py:Misfit", input_shape=(1, 3, 8, 8))
    record = caught.value.record
    assert record.failed == typed["failed"] == "b"
    assert [row.name for row in record.layers if row.executed] == ["", "a", "b"]
    assert without(plain(record.to_dict())) == without(typed)
    assert both.said() == ""


def test_what_has_no_effect_is_refused():
    with pytest.raises(UsageError, match="'num_classes' needs a model given by name"):
        ms.summary(tiny_resnet(), num_classes=3)


def test_keywords_of_torchinfo():
    with pytest.raises(TypeError, match="'input_size': input_shape="):
        ms.summary(nn.Linear(4, 2), input_size=(3, 4))


def test_a_parameter_of_two_layers_is_counted_for_the_first():
    net = nn.Sequential(
        nn.Linear(8, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8, bias=False)), nn.Linear(8, 4)
    )
    net[1][1].weight = net[0].weight
    found = ms.summary(net, torch.zeros(2, 8))
    assert {row.name: row.params for row in found.layers} == {
        "": 108,
        "0": 72,
        "1": 0,
        "1.0": 0,
        "1.1": 0,
        "2": 36,
    }
    assert found.shared == ("1.1.weight is 0.weight",)
    assert ms.summary(nn.Sequential(net[0], net[2]), torch.zeros(2, 8)).shared == ()


class InPlace(nn.Module):
    def forward(self, x):
        return x.tanh().tanh_()


def test_an_operator_in_place_is_the_same_operator():
    assert ms.summary(InPlace(), torch.zeros(2, 8)).uncounted_ops == ("tanh x2",)


def summarise(model, *inputs, **keywords):
    return [(row.output_shapes, row.macs) for row in ms.summary(model, *inputs, **keywords).layers]
