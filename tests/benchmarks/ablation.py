"""`ablate --by-channel` of a layer in the last stage: every rerun begins at the layer, not at the picture."""

from collections.abc import Iterator
from typing import Any

import torch
from figure import Figure
from paired import compare_calls
from torch import Tensor, nn
from torchvision.models import resnet50

from modelscope_cli.analysis.ablation.ablating import Ablating, AblationRequest
from modelscope_cli.hooks.selection import select
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.run import InputInfo, ModelInfo, WeightsInfo

_LAYER = "layer4.1.conv2"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare with a whole run of the model for each channel, each with a forward hook."""
    torch.manual_seed(0)
    model = resnet50().eval()
    x = torch.randn(1, 3, 224, 224)
    info = ModelInfo("zoo", "resnet50", "ResNet", WeightsInfo("none", "random", "seeded random"))
    loaded = LoadedModel(model, info, x.device, x.dtype, "classification", None, None)
    inputs = Inputs(InputInfo("noise", (tuple(x.shape),)), 1, 1, lambda: iter([Batch((x,), 1)]))

    def ours() -> None:
        selection = select(model, [_LAYER], (), (x,), is_feedforward=True)
        Ablating(loaded, selection, AblationRequest(is_by_channel=True)).run(inputs)

    ratio = compare_calls(ours, lambda: _one_run_a_channel(model, x), pairs or 3)
    yield ratio.times_faster(f"all channels of {_LAYER} of resnet50 / a whole run for each", 2.0)


def _one_run_a_channel(model: nn.Module, x: Tensor) -> list[Tensor]:
    layer = model.get_submodule(_LAYER)
    logits = []
    for channel in range(512):

        def silence(module: nn.Module, args: Any, output: Tensor, channel: int = channel) -> None:
            output[:, channel] = 0

        handle = layer.register_forward_hook(silence)
        with torch.no_grad():
            logits.append(model(x))
        handle.remove()
    return logits
