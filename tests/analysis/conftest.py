"""One way to measure the gradients of any module, and to look at the raw tensors behind the figures."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.gradient_statistics import ActivationGradients, ParameterGradients
from modelscope_cli.analysis.gradients.measure import GradientMeasurement, Gradients
from modelscope_cli.analysis.gradients.request import GradsRequest, LossRequest
from modelscope_cli.hooks.selection import select
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.run import ModelInfo, WeightsInfo

Measure = Callable[..., Gradients]


def loaded(module: nn.Module, family: str, categories: tuple[str, ...] | None) -> LoadedModel:
    info = ModelInfo("object", "mine", type(module).__name__, WeightsInfo("none", "random", "random"))
    return LoadedModel(module, info, torch.device("cpu"), torch.float32, family, None, categories)


@pytest.fixture(scope="session")
def measure() -> Measure:
    """Return `measure(module, *passes)`: a pass is a tensor, or a tuple of the arguments."""

    def run(
        module: nn.Module,
        *passes: Any,
        layers: tuple[str, ...] = (),
        family: str = "custom",
        categories: tuple[str, ...] | None = None,
        loss: LossRequest | None = None,
        **request: Any,
    ) -> Gradients:
        batches = [Batch(args if isinstance(args, tuple) else (args,), 1) for args in passes]
        asked = GradsRequest(loss=loss or LossRequest(), **request)
        selection = select(module, layers, (), batches[0].args)
        return GradientMeasurement(loaded(module, family, categories), selection, asked).run(batches)

    return run


@dataclass
class Kept:
    """Gradients as they were: of activations one a pass under `(label, output)`, of
    parameters their means under `(name, "before" or "after")`."""

    activations: dict[tuple[str, str, str], list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    parameters: dict[tuple[str, str], Tensor] = field(default_factory=dict)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Keep every gradient that is reduced to figures from here on."""
    found = Kept()
    arrive, to_row = ActivationGradients._arrive, ParameterGradients._row

    def keep_activation(self: ActivationGradients, one: Any, grad: Tensor | None) -> None:
        if grad is not None:
            found.activations[one.call.label, one.path].append(grad.detach().clone())
        arrive(self, one, grad)

    def keep_parameter(self: ParameterGradients, one: Any, *args: Any) -> Any:
        for place, mean in (("before", one.before), ("after", one.after)):
            if mean.value is not None:
                found.parameters[one.name, place] = mean.value.clone()
        return to_row(self, one, *args)

    monkeypatch.setattr(ActivationGradients, "_arrive", keep_activation)
    monkeypatch.setattr(ParameterGradients, "_row", keep_parameter)
    return found
