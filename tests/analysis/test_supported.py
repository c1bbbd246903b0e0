"""What a command says of an output that it is not for."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError


@pytest.mark.parametrize(
    ("model", "shape", "hint"),
    [
        (nn.Conv2d(3, 64, 4, 4), (1, 3, 32, 32), "output_kind='segmentation'"),
        (nn.Conv3d(3, 64, 2), (1, 3, 4, 8, 8), "output_kind='segmentation'"),
        (nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 6)), (1, 3, 8, 8), "modelscope stats"),
    ],
    ids=["maps", "volumes", "tokens"],
)
def test_an_output_without_classes_is_refused_with_what_may_read_it(model, shape, hint):
    with pytest.raises(CannotRunError, match="but ablate is for classes") as caught:
        ms.ablate(model, torch.rand(shape))
    assert hint in caught.value.hint
