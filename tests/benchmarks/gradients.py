"""What `grads` adds to a forward and a backward pass: resnet50, eight pictures, on the CPU."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from figure import Figure
from paired import PYTHON, compare_calls, compare_commands
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.measure import GradientMeasurement
from modelscope_cli.analysis.gradients.request import GradsRequest
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest

BATCH = 8
_PEER = Path(__file__).parent / "peers" / "bare_backward.py"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare `grads`, and gradients looked at the obvious way, with the bare passes; then peak memory."""
    loaded = load_model(ModelRequest("resnet50", weights="none", device="cpu"))
    model = loaded.module
    pictures = torch.randn(BATCH, 3, 224, 224, generator=torch.Generator().manual_seed(0))

    def bare() -> None:
        scores = model(pictures)
        F.cross_entropy(scores, scores.detach().argmax(1)).backward()
        model.zero_grad()

    def grads() -> None:
        batches = [Batch((pictures,), BATCH)]
        GradientMeasurement(loaded, Selection(is_innermost_only=True), GradsRequest()).run(batches)

    peer = f"the bare forward and backward (resnet50, batch {BATCH})"
    every = compare_calls(grads, bare, pairs or 9)
    yield every.at_most(f"`grads` / {peer}", 1.25)
    obvious = compare_calls(lambda: look_obviously(model, pictures), bare, pairs or 9)
    yield obvious.at_most(f"retain_grad, mean, std, min, max of every tensor / {peer}", None)

    options = ["--model", "resnet50", "--weights", "none", "--batch", str(BATCH), "--no-save"]
    ours = [PYTHON, "-m", "modelscope_cli", "grads", *options]
    seconds, peak = compare_commands(ours, [PYTHON, str(_PEER), str(BATCH)], pairs or 3)
    yield peak.at_most(f"peak memory of `grads` / {peer}", 1.1)
    yield seconds.at_most(f"time of `grads`, the whole command / {peer}", None)


def look_obviously(model: nn.Module, pictures: Tensor) -> list[dict[str, float]]:
    """Keep every output's gradient until the end and then look at each, as one writes it at first."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    handles = [
        module.register_forward_hook(keep) for module in model.modules() if not list(module.children())
    ]
    scores = model(pictures)
    F.cross_entropy(scores, scores.detach().argmax(1)).backward()
    for handle in handles:
        handle.remove()
    tensors = [tensor.grad for tensor in (*kept, *model.parameters()) if tensor.grad is not None]
    rows = [
        {"mean": g.mean().item(), "std": g.std().item(), "min": g.min().item(), "max": g.max().item()}
        for g in tensors
    ]
    model.zero_grad()
    return rows
