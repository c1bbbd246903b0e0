"""For which kinds of output each command is; the table is `analysis/supported.py`."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError

HEAD = (nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Boxed(nn.Module):
    """Finds one box, whatever it is shown."""

    def forward(self, x):
        found = {
            "boxes": torch.tensor([[1.0, 1, 4, 4]]),
            "scores": x.mean((1, 2, 3))[:1],
            "labels": torch.ones(1),
        }
        return [found] * len(x)


NETS = {
    "classes": lambda: nn.Sequential(*HEAD, nn.Linear(4, 3)),
    "pixels": lambda: nn.Conv2d(3, 5, 1),
    "depth": lambda: nn.Conv2d(3, 1, 1),
    "boxes": Boxed,
    "embedding": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2)),
    "value": lambda: nn.Sequential(*HEAD, nn.Linear(4, 1)),
}
TAKEN = {
    ms.predict: {"classes", "pixels", "boxes", "depth"},
    ms.ablate: {"classes", "pixels"},
    ms.prune: {"classes", "pixels"},
}


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("command", TAKEN)
def test_an_output_is_taken_or_refused_in_a_line(command, kind):
    torch.manual_seed(0)
    net, x = NETS[kind](), torch.rand(1, 3, 16, 16)
    if kind in TAKEN[command]:
        assert command(net, x)
        return
    if command is ms.prune and kind == "boxes":
        net.weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(CannotRunError, match=f"the model outputs .*, and {command.__name__} is for classes"):
        command(net, x)
