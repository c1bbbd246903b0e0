"""The dependence of a model's output on its input, and on what it must not depend on."""

import contextlib
import copy
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.hooks.torch_private import operators_shown_to
from modelscope_cli.records.watch import ACTIVE, LEAKS
from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.parameters import is_sharded

_ROWS = 8  # of a batch that a probe runs on
_MOST = 1 << 24  # parameters: a larger model is not copied
_WIDE, _MOST_WIDE = 8, 1 << 12  # values of a row whose direction is compared
_MOST_VALUES = 1 << 20  # kept of the first batch
_SOFTMAX = torch.ops.aten._softmax, torch.ops.aten._log_softmax
_POOLS = torch.ops.aten.mean, torch.ops.aten.sum, torch.ops.aten.max, torch.ops.aten.amax
_DROPOUT = torch.ops.aten.bernoulli_.float, torch.ops.aten.native_dropout.default
_PLACES_FIRST = (  # unless `batch_first` says otherwise
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_CHANGED = 1e-3  # share of the standard deviation of an output


def see_output(model: WatchedModel, args: Any, output: Any) -> None:
    """Record how much the rows of an output differ if those of the input do."""
    inputs = [x for _, x in tensors_in(args) if x.ndim and not x.is_meta and not is_sharded(x)]
    outputs = [x.detach() for _, x in tensors_in(output) if x.is_floating_point() and x.ndim and x.numel()]
    outputs = [x for x in outputs if len(x) == len(outputs[0]) > 1 and not x.is_meta and not is_sharded(x)]
    inputs = [x for x in inputs if outputs and len(x) == len(outputs[0])]
    if not outputs or not inputs:
        return
    with torch.no_grad():  # a model may have its parts on several devices
        device = outputs[0].device
        differs = torch.stack([(x != x[:1]).any().to(device) for x in inputs]).any()
        alike = torch.stack([(x == x[:1]).all().to(device) for x in outputs]).all() & differs
        flat = outputs[0].float().reshape(len(outputs[0]), -1)
        spread = flat.std(0, correction=0).mean()
        directions = functional.normalize(flat[:, :_MOST_WIDE], dim=1)
        turn = torch.zeros_like(spread)
        if flat.shape[1] >= _WIDE:
            turn = (1 - directions.mean(0).norm() ** 2).clamp_min(0).sqrt()
        model.outputs.append(torch.stack([alike.float(), spread, turn]))
    if model.probe is None and not model.step:
        model.probe = _first_batch(args)


def _first_batch(args: Any) -> tuple[Any, ...] | None:
    """Return a few rows of the tensors passed to a model; None if there are other arguments or too many values."""
    inputs = [x for x in args if isinstance(x, Tensor)]
    others = [x for x in args if not isinstance(x, Tensor | bool | int | float | None)]
    if not inputs or others or any(x.ndim < 2 or is_sharded(x) for x in inputs):
        return None
    is_small = len(inputs[0]) > 2 and sum(x[:_ROWS].numel() for x in inputs) <= _MOST_VALUES
    if not is_small or len({len(x) for x in inputs}) > 1:
        return None
    return tuple(x.detach()[:_ROWS].clone() if isinstance(x, Tensor) else x for x in args)


def find_leak(model: WatchedModel) -> tuple[str, str] | None:
    """Return the kind and description of a leak into an output, or of dropout in evaluation mode; None without one.

    A copy of the model runs on a changed input. Samples of a batch must not depend on each other if there is one
    vector for each.

    Args:
        model: its `probe` is consumed.
    """
    root, inputs, model.probe = model.root(), model.probe, None
    if root is None or inputs is None:
        return None
    parameters = list(root.parameters())
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())
    if has_hooks or sum(p.numel() for p in parameters) > _MOST or any(map(is_sharded, parameters)):
        return None
    try:
        with _untouched():
            leak = _leak_of(copy.deepcopy(root).eval(), inputs)
    except Exception:
        return None
    place = f" ({model.called})" if model.called else ""
    return (leak[0], f"{model.label}: {leak[1]}{place}") if leak else None


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Restore the random state and suppress output."""
    with (
        kept_random_states(),
        torch.no_grad(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def _leak_of(twin: nn.Module, inputs: tuple[Any, ...]) -> tuple[str, str] | None:
    from modelscope_cli.analysis.outputs.output_kinds import main_leaf

    def run(inputs: tuple[Any, ...]) -> Tensor:
        outputs = tensors_in(twin(*(x.clone() if isinstance(x, Tensor) else x for x in inputs)))
        leaves = [(name, x) for name, x in outputs if x.is_floating_point() and x.ndim]
        # Without a state, whose first dimension is the layers
        leaves = [(name, x) for name, x in leaves if len(x) == rows] or leaves
        floats = [out for _, out in leaves]
        if len(floats) > 1 and all(out.ndim == floats[0].ndim in (2, 3) for out in floats):
            return torch.cat([out / out.std() for out in floats], -1)
        return main_leaf(leaves)[1]

    batch = [(index, x) for index, x in enumerate(inputs) if isinstance(x, Tensor)]
    rows = len(batch[0][1])
    plain = run(inputs)
    if not torch.equal(plain, run(inputs)) or len(plain) != rows:  # it is random, or has state
        ran: set[Any] = set()
        with operators_shown_to(lambda operator, *_: ran.add(operator)):
            run(inputs)
        words = "dropout is active in evaluation mode too, so validation results are random"
        return (ACTIVE, words) if ran & set(_DROPOUT) else None
    limit = _CHANGED * float(plain.std())
    are_sets = plain.ndim in (2, 3) and all(x.ndim == 3 for _, x in batch)
    if are_sets and plain.ndim == 3:
        moved = [torch.cat([x[:, -1:] + 1, x[:, 1:]], 1) if isinstance(x, Tensor) else x for x in inputs]
        are_sets = int(((run(tuple(moved)) - plain).abs().amax((0, 2)) > limit).sum()) > 1
    if (plain.ndim <= 2 or are_sets) and _runs_over_rows(twin, inputs, rows, _SOFTMAX + _POOLS * are_sets):
        for rows_kept, filler in ((slice(2), 1), (slice(-2, None), -2)):
            others = [x[filler].expand_as(x).clone() if isinstance(x, Tensor) else x for x in inputs]
            for index, x in batch:
                others[index][rows_kept] = x[rows_kept]
            if float((run(tuple(others)) - plain)[rows_kept].abs().max()) > limit:
                words = "its output for one sample depends on the other samples of the batch"
                return LEAKS, f"{words}, in evaluation mode too"
    return None


def _runs_over_rows(twin: nn.Module, batch: tuple[Any, ...], rows: int, kinds: tuple[Any, ...]) -> bool:
    """Tell whether an operator of these kinds, attention or a recurrent layer runs over the rows of a batch.

    Rows may depend on each other on purpose: as points of a cloud, nodes of a graph or frames of a video. They are
    samples if each is a set of positions, which depend on each other too.
    """
    over_rows: list[bool] = []

    def note(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        if getattr(operator, "overloadpacket", None) in kinds and len(args) > 1:
            x, dim = args[:2]
            dims = [dim] if isinstance(dim, int) else dim
            is_of_rows = x.ndim > 1 and len(x) % rows == 0 and x[0].numel() > 1
            over_rows.append(is_of_rows and isinstance(dims, list) and (0 in dims or -x.ndim in dims))

    def note_order(module: Any, args: Any) -> None:  # rows may be the positions of several sequences
        x, attention = next(iter(args), None), getattr(module, "self_attn", module)
        if isinstance(x, Tensor) and x.ndim == 3 and not attention.batch_first:
            over_rows.append(len(x) == rows and x.shape[1] > 1)

    with contextlib.ExitStack() as stack:
        stack.enter_context(operators_shown_to(note))
        for module in twin.modules():
            if isinstance(module, _PLACES_FIRST):
                stack.callback(module.register_forward_pre_hook(note_order).remove)
        twin(*(x.clone() if isinstance(x, Tensor) else x for x in batch))
    return any(over_rows)
