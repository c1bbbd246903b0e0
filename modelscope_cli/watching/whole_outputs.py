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
from modelscope_cli.watching.token_targets import arguments_of, width_by_place

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


def see_output(model: WatchedModel, args: Any, kwargs: Any, output: Any) -> None:
    """Record how much the rows of an output differ if those of the input do."""
    if model.arguments is None and not model.step:
        model.arguments = arguments_of(args, kwargs)
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
        turn = (
            (1 - directions.mean(0).norm() ** 2).clamp_min(0).sqrt()
            if flat.shape[1] >= _WIDE
            else torch.zeros_like(spread)
        )
        model.outputs.append(torch.stack([alike.float(), spread, turn]))
    if model.probe is None and not model.step:
        model.probe = _first_batch(args, outputs)


def _first_batch(args: Any, outputs: list[Tensor]) -> tuple[Any, ...] | None:
    """Return a few rows of the tensors passed to a model; None if there are other arguments or too many values."""
    inputs = [x for x in args if isinstance(x, Tensor)]
    others = [x for x in args if not isinstance(x, Tensor | bool | int | float | None)]
    is_one = len(outputs) == 1 or all(x.ndim == outputs[0].ndim in (2, 3) for x in outputs)
    if not is_one or not inputs or others or any(x.ndim < 2 or is_sharded(x) for x in inputs):
        return None
    is_small = len(inputs[0]) > 2 and sum(x[:_ROWS].numel() for x in inputs) <= _MOST_VALUES
    if not is_small or len({len(x) for x in inputs}) > 1:
        return None
    return tuple(x.detach()[:_ROWS].clone() if isinstance(x, Tensor) else x for x in args)


def find_leak(model: WatchedModel, targets: Tensor | None) -> tuple[str, str] | None:
    """Return the kind and description of a leak into an output, or of dropout in evaluation mode; None without one.

    A copy of the model runs on a changed input. Samples of a batch must not depend on each other if there is one
    vector for each; an output at a position must not depend on later ones if its target is the next input.

    Args:
        model: its `probe` is consumed.
        targets: flat targets of a criterion for the batch that begins with the probe's rows.
    """
    root, inputs, model.probe = model.root(), model.probe, None
    given, model.arguments = model.arguments, None
    if root is None or inputs is given is None:
        return None
    parameters = list(root.parameters())
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())
    if has_hooks or sum(p.numel() for p in parameters) > _MOST or any(map(is_sharded, parameters)):
        return None
    try:
        with _untouched():
            twin = copy.deepcopy(root).eval()
            if given is not None:
                model.width_by_place = width_by_place(twin, *given)
            leak = None if inputs is None else _leak_of(twin, inputs, targets)
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


def _leak_of(twin: nn.Module, inputs: tuple[Any, ...], targets: Tensor | None) -> tuple[str, str] | None:
    def run(inputs: tuple[Any, ...]) -> Tensor:
        outputs = tensors_in(twin(*(x.clone() if isinstance(x, Tensor) else x for x in inputs)))
        floats = [out for _, out in outputs if out.is_floating_point() and out.ndim]
        return floats[0] if len(floats) == 1 else torch.cat([out / out.std() for out in floats], -1)

    batch = [(index, x) for index, x in enumerate(inputs) if isinstance(x, Tensor)]
    plain, rows = run(inputs), len(batch[0][1])
    if not torch.equal(plain, run(inputs)) or len(plain) != rows:  # it is random, or has state
        ran: set[Any] = set()
        with operators_shown_to(lambda operator, *_: ran.add(operator)):
            run(inputs)
        words = "dropout is active in evaluation mode too, so validation results are random"
        return (ACTIVE, words) if ran & set(_DROPOUT) else None
    limit = _CHANGED * float(plain.std())
    predicting = [
        (index, x, *offsets) for index, x in batch if (offsets := _foretold(x, plain, targets)) is not None
    ]
    if any(offset for *_, offset in predicting):
        predicting = [one for one in predicting if one[-1]]
    # The first argument may be the sequence to copy.
    predicting = [one for one in predicting if one[-1] or one[0]]
    for index, x, time, time_out, offset in predicting:
        later = x.transpose(0, time).clone()
        later[-1] = _replaced(later[-1], x)
        changed = run((*inputs[:index], later.transpose(0, time), *inputs[index + 1 :]))
        change = (changed - plain).transpose(0, time_out)
        if float(change[: len(change) - offset].abs().max()) > limit:
            source = "later inputs" if offset else "the target that it receives"
            return LEAKS, f"its output at one position depends on {source}, which it has to predict"
    is_in_rows = any(time_out for *_, time_out, _ in predicting)
    are_sets = plain.ndim in (2, 3) and all(x.ndim == 3 for _, x in batch)
    if are_sets and plain.ndim == 3 and not predicting:
        moved = [torch.cat([x[:, -1:] + 1, x[:, 1:]], 1) if isinstance(x, Tensor) else x for x in inputs]
        are_sets = int(((run(tuple(moved)) - plain).abs().amax((0, 2)) > limit).sum()) > 1
    if is_in_rows or (
        not predicting
        and (plain.ndim <= 2 or are_sets)
        and _runs_over_rows(twin, inputs, rows, _SOFTMAX + _POOLS * are_sets)
    ):
        for rows_kept, filler in ((slice(2), 1), (slice(-2, None), -2)):
            others = [x[filler].expand_as(x).clone() if isinstance(x, Tensor) else x for x in inputs]
            for index, x in batch:
                others[index][rows_kept] = x[rows_kept]
            if float((run(tuple(others)) - plain)[rows_kept].abs().max()) > limit:
                words = "its output for one sample depends on the other samples of the batch"
                return LEAKS, f"{words}, in evaluation mode too"
    return None


def _replaced(last: Tensor, x: Tensor) -> Tensor:
    """Return another value for each element, out of the tokens that occur."""
    if x.is_floating_point():
        return last.roll(1, 0) + 1.0
    tokens = x.unique()
    return torch.where(last == tokens[0], tokens[-1], tokens[0])


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


def _foretold(x: Tensor, plain: Tensor, targets: Tensor | None) -> tuple[int, int, int] | None:
    """Return the dimensions of time (the second, first or last) in an input and the output, and how far targets are
    from their position: 1, for tokens also 0."""
    times = [time for time in _times(x, plain) if x.shape[time[0]] > 1]
    if targets is None or not times:
        return None
    sequence = x
    if x.ndim == 3 and not targets.is_floating_point():
        is_one = x.is_floating_point() and bool(((x == 0) | (x == 1)).all() & (x.sum(-1) == 1).all())
        if not is_one:
            return None
        sequence = x.argmax(-1)
    if sequence.is_floating_point() != targets.is_floating_point() or len(targets) < sequence.numel():
        return None
    target = targets[: sequence.numel()].reshape(sequence.shape)
    for time, time_out in times:
        if time == sequence.ndim:  # behind classes that became tokens
            continue
        shifted, aligned = sequence.transpose(0, time)[1:], target.transpose(0, time)[:-1]
        if torch.equal(aligned, shifted) and not torch.equal(shifted, sequence.transpose(0, time)[:-1]):
            return time, time_out, 1
    is_given = x.ndim == 2 and not x.is_floating_point() and torch.equal(sequence, target)
    return (*times[0], 0) if is_given else None


def _times(x: Tensor, plain: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the dimensions of an input and the output that may be time."""
    if plain.ndim > 1 and x.shape[:2] == plain.shape[:2] and len(x) > 1:
        yield from ((1, 1), (0, 0))
    elif plain.ndim == 3 and x.shape == (len(plain), plain.shape[2]):  # scores of classes before time
        yield 1, 2
    if x.is_floating_point() and x.ndim == plain.ndim == 3 and x.shape[::2] == plain.shape[::2]:
        yield 2, 2
