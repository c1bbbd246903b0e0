"""The layer after which nothing depends on the image, found by a pass with another image."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import cloned, map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.naming import rounded
from modelscope_cli.records.run import Args, Arguments, Kwargs

HARDLY = 2**-8  # of the range of scores: the resolution of bfloat16, in which trained models are run
_LOSS = 16  # the layer reduces the difference at least by this factor
_MASK = -500  # scores below this are of classes that are masked, whatever the image


class _Figures(Observer):
    """Records the mean, deviation and range of what enters and leaves each innermost call."""

    def __init__(self) -> None:
        self._entered: dict[int, Tensor] = {}
        self.calls: list[tuple[Call, nn.Module]] = []
        self.found: list[Tensor] = []  # two for each call

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self._entered[call.order] = _figures((args, kwargs))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if is_innermost:
            self.calls.append((call, module))
            self.found += [self._entered[call.order], _figures(output)]


def has_zero_weights(model: nn.Module) -> bool:
    """Tell whether a weight may be zero throughout, by the first value of each, which in others rarely is."""
    with suppress(RuntimeError, NotImplementedError, TypeError):  # such as weights of a few bits
        weights = [p.detach() for p in model.parameters() if p.ndim > 1 and p.numel() and not p.is_meta]
        return any(bool(first == 0) for first in fetch(p[(0,) * p.ndim].float() for p in weights))
    return False


def lost_signal(model: nn.Module, batch: Batch, seed: int) -> tuple[str, str, float] | None:
    """Return the last layer whose input differs between two images, if its output and that of the model do not.

    Its label, what was seen, and the share by which the outputs of the model differ; None if no layer is to blame.
    """
    n = batch.n_images

    def other(x: Tensor) -> Tensor:  # a blank one if there is no other
        return x[:1] if n > 1 and x.shape[:1] == (n,) else x * (not x.is_floating_point())

    one = map_tensors(batch.args, lambda _, x: x[-1:] if n > 1 and x.shape[:1] == (n,) else x)
    with suppress(CannotRunError, RuntimeError, ValueError), seeded(seed):
        (calls, *found, output) = _run(model, one)
        (_, *others, other_output) = _run(model, map_tensors(batch.args, lambda _, x: other(x)))
        final = _share(output, other_output)
        shares = [_share(x, y) for x, y in zip(found, others, strict=True)]
        rows = zip(calls, shares[::2], shares[1::2], found[1::2], strict=True)
        reached = [row for row in rows if row[1] >= max(_LOSS * final, 1e-6)]
        if final <= HARDLY and reached:
            (call, module), before, after, left = reached[-1]
            differs = f"differs by {rounded(after)} of its size, its input by {rounded(before)}"
            words = f"the output of {call.label} ({call.type}) {differs if after else 'is the same for all images'}"
            return (call.label, words + _why(module, left), final) if _LOSS * after <= before else None
    return None


def _run(model: nn.Module, args: Arguments) -> tuple[Any, ...]:
    """Return the calls, and on the CPU their figures and the output of the model."""
    observer = _Figures()
    with HookSession(model, [observer]) as session:
        output = session.run(cloned(args))
    scores = torch.cat([x.float().flatten() for _, x in tensors_in(output) if x.is_floating_point()])
    return observer.calls, *fetch([*observer.found, scores.masked_fill(scores < _MASK, 0)[None]])


def _figures(value: Any) -> Tensor:
    every = [x.detach().float() for _, x in tensors_in(value) if x.is_floating_point() and x.numel()]
    rows = [torch.stack((x.mean(), x.std(correction=0), x.amin(), x.amax())) for x in every]
    return torch.stack(rows) if rows else torch.zeros(1, 4)


def _share(x: Tensor, y: Tensor) -> float:
    """Return the largest difference as a share of the largest value of its row."""
    if x.shape != y.shape:
        return 1.0
    return float(((x - y).abs().amax(1) / torch.maximum(x.abs(), y.abs()).amax(1).clamp_min(1e-38)).amax())


def _why(module: nn.Module, left: Tensor) -> str:
    own = dict(module.named_parameters())
    weights = [one for name, one in own.items() if "bias" not in name]
    bias = max((float(one.detach().abs().max()) for name, one in own.items() if "bias" in name), default=0.0)
    size = float(left.abs().max())
    if weights and not any(bool(one.any()) for one in weights):
        return "; all its weights are zero"
    if size and 0.9 < bias / size < 1.1:
        return f"; nearly all of its output is its bias, up to {rounded(bias)}"
    return "" if size else "; its output is 0 everywhere"
