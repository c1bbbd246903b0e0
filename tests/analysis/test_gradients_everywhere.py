"""Every torchvision model: its gradients against `torch.autograd.grad` on the same graph, bit by bit."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from modelscope_cli.analysis.gradients import measure as gradients
from modelscope_cli.analysis.gradients.activation_gradients import ActivationGradients
from modelscope_cli.analysis.gradients.request import GradsRequest
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.batches import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import LoadedModel, load_model
from modelscope_cli.models.names import model_names
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.models.zoo import family_of

# One of each family, then one of each task; the other names are slow only because they are many.
QUICK = {
    *("alexnet", "vgg11", "resnet18", "densenet121", "mobilenet_v2", "mobilenet_v3_small"),
    *("efficientnet_b0", "googlenet", "inception_v3"),
    *("shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "regnet_y_400mf", "convnext_tiny", "vit_b_32"),
    *("swin_t", "swin_v2_t", "maxvit_t"),
    *("lraspp_mobilenet_v3_large", "raft_small", "r3d_18", "ssdlite320_mobilenet_v3_large"),
    *("fasterrcnn_mobilenet_v3_large_320_fpn", "quantized_mobilenet_v2"),
}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in model_names()]


def smallest(name: str) -> tuple[tuple[str, ...], InputRequest]:
    """Return the arguments of a model and its input that are the least it runs on."""
    family = family_of(name)
    if name.startswith("vit_"):
        side = 2 * int(name.rpartition("_")[2])
        return (f"image_size={side}",), InputRequest(size=str(side))
    if name.startswith(("maxvit", "mvit")):
        return (), InputRequest()  # made for one size
    if family == "detection":
        can_shrink = "rcnn" in name or name.startswith(("fcos", "retinanet"))
        return ("min_size=64",) if can_shrink else (), InputRequest(size="64", batch=2)
    if family == "video":
        return (), InputRequest(shapes=("1,3,14,224,224" if name == "s3d" else "1,3,4,32,32",))
    side = {"optical_flow": 128}.get(family, 96 if "inception" in name else 64)
    return (), InputRequest(size=str(side))


def prepare(name: str) -> tuple[LoadedModel, Any]:
    model_args, given = smallest(name)
    model = load_model(ModelRequest(name, weights="none", device="cpu", model_args=model_args))
    inputs = open_inputs(
        given,
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
                quiet.setattr(ActivationGradients, "_add", lambda *_: None)
                wanted = [*trained.values(), *edges.values()]
                found = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
            expected.update(zip([*trained, *edges], found, strict=True))
            backward(loss, **options)

        monkeypatch.setattr(gradients, "run_backward", differentiate)
        return expected

    return watch


def assert_figures(row: Any, grad: Tensor) -> None:
    """Compare the columns with NumPy on the same numbers in float64; the largest tensors take too long."""
    if grad.numel() > 1_000_000:
        return
    x = grad.double().numpy()
    top = np.abs(x).max(initial=0)
    assert row.grad_norm == pytest.approx(np.linalg.norm(x), rel=1e-5)
    assert row.grad_mean == pytest.approx(x.mean(), rel=1e-5, abs=1e-6 * top)
    assert row.grad_std == pytest.approx(x.std(), rel=1e-4, abs=1e-6 * top)
    assert (row.grad_min, row.grad_max, row.grad_abs_max) == (x.min(), x.max(), top)
    assert (row.nan_count, row.inf_count) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_autograd(name, kept, truth, unchanged):
    model, inputs = prepare(name)
    expected = truth(model.module)
    check = unchanged(model.module)
    selection = Selection(is_innermost_only=True)
    request = GradsRequest(is_training=model.family == "detection")
    found = gradients.measure_gradients(model, inputs, selection, request)
    check()

    shapes = {name: tuple(p.shape) for name, p in model.module.named_parameters()}
    assert {row.name: row.shape for row in found.parameters} == shapes
    n_shown = 0
    for row in found.parameters:
        grad = expected.get(row.name)
        assert (grad is None) == (row.mark in ("unused", "frozen"))
        if grad is not None:
            assert torch.equal(kept.parameters[row.name, "after"], grad)
            assert_figures(row, grad)
            assert row.zero_fraction == (grad == 0).double().mean().item()
            n_shown += 1
    for row in found.activations:
        label = f"{row.name}#{row.call}" if row.call else row.name
        grad = expected.get((label, row.output))
        arrived = kept.activations[label, row.output, "after"]
        assert len(arrived) == (grad is not None)
        if grad is not None:
            assert torch.equal(arrived[0], grad)
            assert_figures(row, grad)
            n_shown += 1
    assert n_shown > 20
