"""Ablation of channels against captum."""

import pytest
import torch
import torch.nn.functional as F
from captum.attr import LayerFeatureAblation
from tolerance import close
from torch import Tensor, nn

from modelscope_cli.analysis.ablation.ablating import Ablating, AblationRequest
from modelscope_cli.analysis.outputs.target_spec import parse_aim
from modelscope_cli.hooks.selection import select
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.run import InputInfo, ModelInfo, WeightsInfo


class Net(nn.Module):
    """Smooth, so that no gradient is zero and no sign hangs on the last bit of one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, stride=2)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv2(torch.tanh(self.conv1((x - 0.45) / 0.25))))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().double().eval()


@pytest.fixture
def pixels() -> Tensor:
    """8-bit levels, some of them black or white."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (1, 3, 16, 16), generator=generator).double() / 255


@pytest.mark.parametrize("name", ["conv1", "conv2", "head"])
def test_taking_out_a_channel_changes_the_logit_as_captum_says(
    net: nn.Module, pixels: Tensor, name: str
) -> None:
    info = ModelInfo("object", "net", "Net", WeightsInfo("none", "random", "seeded random"))
    loaded = LoadedModel(net, info, torch.device("cpu"), torch.float64, "custom", None, None)
    inputs = Inputs(InputInfo("noise", ()), 1, 1, lambda: iter([Batch((pixels,), 1)]))
    target = 2
    request = AblationRequest(is_by_channel=True, target=parse_aim(str(target)))
    ours = {
        row.channel: row.target_logit_change
        for row in Ablating(loaded, select(net, [name], (), (pixels,)), request).run(inputs).rows
    }
    layer = net.get_submodule(name)
    n_channels = len(layer.weight)
    mask = torch.arange(n_channels).reshape(1, -1, *[1] * (2 if name != "head" else 0))
    theirs = LayerFeatureAblation(net, layer).attribute(
        pixels, layer_baselines=0, target=target, layer_mask=mask
    )
    for channel in range(n_channels):
        # captum's attribution is the score before less the score after
        assert -ours[channel] == close(float(theirs[0, channel].flatten()[0]), scale=0.01)
