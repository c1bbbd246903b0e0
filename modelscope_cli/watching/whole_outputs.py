"""What a model gives as a whole: whether it depends on the input, and on what it must not depend."""

import contextlib
import copy
import io
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import operators_shown_to
from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.parameters import is_sharded

_ROWS = 8  # of a batch, that a probe runs on
_MOST = 1 << 24  # parameters: a larger model is not copied
_MOST_VALUES = 1 << 20  # of what is kept of the first batch
_SOFTMAX = torch.ops.aten._softmax, torch.ops.aten._log_softmax
_PLACES_FIRST = (  # unless `batch_first` says otherwise
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_CHANGED = 1e-3  # share of the standard deviation of an output


def see_output(model: WatchedModel, args: Any, output: Any) -> None:
    """Note how much the rows of an output differ, where those of the input do."""
    given = [x for _, x in tensors_in(args) if x.ndim and not x.is_meta and not is_sharded(x)]
    made = [x.detach() for _, x in tensors_in(output) if x.is_floating_point() and x.ndim > 1 and x.numel()]
    made = [x for x in made if len(x) == len(made[0]) > 1 and not x.is_meta and not is_sharded(x)]
    given = [x for x in given if made and len(x) == len(made[0])]
    if not made or not given:
        return
    with torch.no_grad():
        differs = torch.stack([(x != x[:1]).any() for x in given]).any()
        alike = torch.stack([(x == x[:1]).all() for x in made]).all() & differs
        spread = made[0].float().flatten(1).std(0, correction=0).mean()
        model.outputs.append(torch.stack([alike.float(), spread]))
    if model.probe is None and not model.step:
        model.probe = _first_batch(args, made)


def _first_batch(args: Any, made: list[Tensor]) -> Tensor | None:
    """Return a few rows of the only tensor that a model was given, None where it is another one or too large."""
    given = [x for _, x in tensors_in(args)]
    if len(given) != 1 or len(made) != 1 or given[0].ndim < 2 or len(args) != 1 or given[0] is not args[0]:
        return None
    few = given[0].detach()[:_ROWS]
    return few.clone() if len(few) > 2 and few.numel() <= _MOST_VALUES else None


def find_leak(model: WatchedModel, targets: Tensor | None) -> str | None:
    """Say what leaks into an output, from a changed forward pass of a copy in evaluation mode; None where nothing.

    The samples of a batch must not depend on each other where there is one vector for each; an output at a place
    must not depend on later places where its target is the next token of the input.

    Args:
        model: whose `probe` is used up.
        targets: that a criterion was given for the batch that begins with the probe's rows, flat.
    """
    root, x, model.probe = model.root(), model.probe, None
    if root is None or x is None:
        return None
    parameters = list(root.parameters())
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())
    if has_hooks or sum(p.numel() for p in parameters) > _MOST or any(map(is_sharded, parameters)):
        return None
    try:
        with _untouched(x.device):
            leak = _leak_of(copy.deepcopy(root).eval(), x, targets)
    except Exception:
        return None
    place = f" ({model.called})" if model.called else ""
    return f"{model.label}: {leak}{place}" if leak else None


@contextlib.contextmanager
def _untouched(device: torch.device) -> Iterator[None]:
    """Put random state back, and let nothing be printed."""
    numpy = sys.modules.get("numpy.random")
    state, numpys = random.getstate(), numpy.get_state() if numpy else None
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.no_grad(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.set_state(numpys)


def _leak_of(twin: nn.Module, x: Tensor, targets: Tensor | None) -> str | None:
    def run(x: Tensor) -> Tensor:
        return next(out for _, out in tensors_in(twin(x.clone())) if out.is_floating_point())

    plain = run(x)
    if not torch.equal(plain, run(x)) or len(plain) != len(x):
        return None  # it is random, or remembers
    limit = _CHANGED * float(plain.std())
    foretells = _foretells(x, plain, targets)
    if foretells:
        later = x.clone()
        later[:, -1] = torch.where(x[:, -1] == x[0, 0], x[0, 1], x[0, 0])
        if float((run(later) - plain)[:, :-1].abs().max()) > limit:
            return "its output at one place depends on the tokens behind it, which are what it is to predict"
    if foretells or (plain.ndim == 2 and _runs_over_rows(twin, x)):
        for kept, like in ((slice(2), 1), (slice(-2, None), -2)):
            others = x[like].expand_as(x).clone()
            others[kept] = x[kept]
            if float((run(others) - plain)[kept].abs().max()) > limit:
                return "its output for one sample depends on the other samples of the batch, in evaluation mode too"
    return None


def _runs_over_rows(twin: nn.Module, x: Tensor) -> bool:
    """Tell whether a softmax, attention or recurrent layer runs over the rows of a batch.

    That a row depends on others is no mistake by itself: rows may be the points of a cloud, the nodes of a graph or
    the frames of a video.
    """
    rows = len(x)
    found: list[bool] = []

    def see(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        if getattr(operator, "overloadpacket", None) in _SOFTMAX:
            given, dim = args[:2]
            is_of_rows = given.ndim > 1 and len(given) % rows == 0 and given[0].numel() > 1
            found.append(is_of_rows and dim in (0, -given.ndim))

    def enter(module: Any, args: Any) -> None:  # rows for the places of several sequences
        given, own = next(iter(args), None), getattr(module, "self_attn", module)
        if isinstance(given, Tensor) and given.ndim == 3 and not own.batch_first:
            found.append(len(given) == rows and given.shape[1] > 1)

    with contextlib.ExitStack() as stack:
        stack.enter_context(operators_shown_to(see))
        for module in twin.modules():
            if isinstance(module, _PLACES_FIRST):
                stack.callback(module.register_forward_pre_hook(enter).remove)
        twin(x.clone())
    return any(found)


def _foretells(x: Tensor, plain: Tensor, targets: Tensor | None) -> bool:
    """Tell whether the target at each place is the next token of the input."""
    if (
        x.is_floating_point()
        or x.ndim != 2
        or x.shape[1] < 2
        or plain.shape[:2] != x.shape
        or targets is None
    ):
        return False
    if len(targets) < x.numel() or bool((x == x[0, 0]).all()):
        return False
    wanted = targets[: x.numel()].reshape(x.shape)
    return torch.equal(wanted[:, :-1], x[:, 1:])
