"""Models of torchvision: their gradients against `torch.autograd.grad` on the same graph."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import A_NETWORK, are_close, close
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from modelscope_cli.analysis.gradients import measure as gradients
from modelscope_cli.analysis.gradients.gradient_statistics import (
    ActivationGradients,
    ParameterGradients,
    _Output,
)
from modelscope_cli.analysis.gradients.request import GradsRequest
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.python_inputs import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import ModelRequest

pytestmark = pytest.mark.usefixtures("quick_weights")

# One of each kind of output and way to pass tensors on, with the least input it runs on; all are quick.
MODELS = {
    "resnet18": InputRequest(size="64"),
    "shufflenet_v2_x0_5": InputRequest(size="64"),
    "swin_t": InputRequest(size="64"),
    "lraspp_mobilenet_v3_large": InputRequest(size="64"),
    "ssdlite320_mobilenet_v3_large": InputRequest(size="64", batch=2),
    "raft_small": InputRequest(size="128"),
    "r3d_18": InputRequest(shapes=("1,3,4,32,32",)),
}


def prepare(name: str) -> tuple[LoadedModel, Any]:
    model = load_model(ModelRequest(name, weights="none", device="cpu"))
    inputs = open_inputs(
        MODELS[name],
        family=model.family,
        transforms=model.transforms,
        module=model.module,
        device=model.device,
        dtype=model.dtype,
    )
    return model, inputs


def watch_edges(model: nn.Module) -> dict[tuple[str, str], GradientEdge]:
    """Collect, by hooks of the test's own, where in the graph each output was made, whatever comes after."""
    edges: dict[tuple[str, str], GradientEdge] = {}
    calls: Counter[str] = Counter()

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            label = f"{name}#{calls[name]}" if calls[name] else name
            calls[name] += 1
            for path, tensor in tensors_in(output):
                if tensor.requires_grad:
                    edges[label, path] = get_gradient_edge(tensor)

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(note(name))
    return edges


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[Any, Tensor | None]]:
    """Have autograd itself differentiate the graph just before the tool does."""
    backward = gradients.run_backward

    def watch(model: nn.Module) -> dict[Any, Tensor | None]:
        edges, expected = watch_edges(model), {}

        def differentiate(loss: Tensor, **options: Any) -> None:
            trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
            with monkeypatch.context() as quiet:
                quiet.setattr(_Output, "add", lambda *_: None)
                wanted = [*trained.values(), *edges.values()]
                found = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
            expected.update(zip([*trained, *edges], found, strict=True))
            backward(loss, **options)

        monkeypatch.setattr(gradients, "run_backward", differentiate)
        return expected

    return watch


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[Any, Tensor | None]], Counter[Any]]:
    """Compare every gradient with the truth as it arrives, before anything writes to it; copies would cost more
    than the gradients themselves. Counts those that agree."""

    def watch(expected: dict[Any, Tensor | None]) -> Counter[Any]:
        agreed: Counter[Any] = Counter()
        arrive, to_row = ActivationGradients._arrive, ParameterGradients._row

        def compare(key: Any, found: Tensor) -> None:
            truth = expected.get(key)
            agreed[key] += truth is not None and are_close(found, truth)

        def add_activation(self: ActivationGradients, one: Any, grad: Tensor | None) -> None:
            if grad is not None:
                compare((one.call.label, one.path), grad)
            arrive(self, one, grad)

        def add_parameter(self: ParameterGradients, one: Any, *args: Any) -> Any:
            if one.after.value is not None:
                compare(one.name, one.after.value)
            return to_row(self, one, *args)

        monkeypatch.setattr(ActivationGradients, "_arrive", add_activation)
        monkeypatch.setattr(ParameterGradients, "_row", add_parameter)
        return agreed

    return watch


def assert_figures(row: Any, grad: Tensor) -> None:
    """Compare the columns with NumPy on the same numbers in float64; the largest tensors take too long."""
    if grad.numel() > 1_000_000:
        return
    x = grad.double().numpy()
    top = np.abs(x).max(initial=0)
    assert row.grad_norm == close(np.linalg.norm(x))
    assert row.grad_mean == close(x.mean(), scale=0.1 * top)
    assert row.grad_std == close(x.std(), A_NETWORK, scale=0.01 * top)
    assert (row.grad_min, row.grad_max, row.grad_abs_max) == (x.min(), x.max(), top)
    assert (row.nan_count, row.inf_count) == (0, 0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("resnet18", "swin_t") else pytest.mark.slow) for name in MODELS],
)
def test_gradients_are_those_of_autograd(name, compared, truth, unchanged):
    model, inputs = prepare(name)
    expected = truth(model.module)
    agreed = compared(expected)
    check = unchanged(model.module)
    selection = Selection(is_innermost_only=True)
    request = GradsRequest(is_training=model.family == "detection")
    found = gradients.GradientMeasurement(model, selection, request).run(inputs)
    check()

    shapes = {name: tuple(p.shape) for name, p in model.module.named_parameters()}
    assert {row.name: row.shape for row in found.parameters} == shapes
    n_shown = 0
    for row in found.parameters:
        grad = expected.get(row.name)
        assert (grad is None) == (row.mark in ("unused", "frozen"))
        if grad is not None:
            assert agreed[row.name] == 1
            assert_figures(row, grad)
            assert row.zero_fraction == (grad.numel() - int(grad.count_nonzero())) / grad.numel()
            n_shown += 1
    for row in found.activations:
        label = f"{row.name}#{row.call}" if row.call else row.name
        grad = expected.get((label, row.output))
        assert agreed[label, row.output] == (grad is not None)
        if grad is not None:
            assert_figures(row, grad)
            n_shown += 1
    assert n_shown > 20
