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
from torch.nn import functional

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import operators_shown_to
from modelscope_cli.records.watch import ACTIVE, LEAKS
from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.parameters import is_sharded

_ROWS = 8  # of a batch, that a probe runs on
_MOST = 1 << 24  # parameters: a larger model is not copied
_WIDE, _MOST_WIDE = 8, 1 << 12  # values of a row whose direction is looked at
_MOST_VALUES = 1 << 20  # of what is kept of the first batch
_SOFTMAX = torch.ops.aten._softmax, torch.ops.aten._log_softmax
_DROPOUT = torch.ops.aten.bernoulli_.float, torch.ops.aten.native_dropout.default
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
        flat = made[0].float().flatten(1)
        spread = flat.std(0, correction=0).mean()
        directions = functional.normalize(flat[:, :_MOST_WIDE], dim=1)
        turn = (
            (1 - directions.mean(0).norm() ** 2).clamp_min(0).sqrt()
            if flat.shape[1] >= _WIDE
            else torch.zeros_like(spread)
        )
        model.outputs.append(torch.stack([alike.float(), spread, turn]))
    if model.probe is None and not model.step:
        model.probe = _first_batch(args, made)


def _first_batch(args: Any, made: list[Tensor]) -> tuple[Any, ...] | None:
    """Return a few rows of the tensors that a model was given, None where there is anything else or too much."""
    given = [x for x in args if isinstance(x, Tensor)]
    others = [x for x in args if not isinstance(x, Tensor | bool | int | float | None)]
    is_one = len(made) == 1 or all(x.ndim == 2 for x in made)
    if not is_one or not given or others or any(x.ndim < 2 or is_sharded(x) for x in given):
        return None
    is_small = len(given[0]) > 2 and sum(x[:_ROWS].numel() for x in given) <= _MOST_VALUES
    if not is_small or len({len(x) for x in given}) > 1:
        return None
    return tuple(x.detach()[:_ROWS].clone() if isinstance(x, Tensor) else x for x in args)


def find_leak(model: WatchedModel, targets: Tensor | None) -> tuple[str, str] | None:
    """Say what leaks into an output, from a changed forward pass of a copy in evaluation mode; None where nothing.

    Or that dropout is active there. The first word is the kind of event.

    The samples of a batch must not depend on each other where there is one vector for each; an output at a place
    must not depend on later places where its target is the next place of an input.

    Args:
        model: whose `probe` is used up.
        targets: that a criterion was given for the batch that begins with the probe's rows, flat.
    """
    root, given, model.probe = model.root(), model.probe, None
    if root is None or given is None:
        return None
    parameters = list(root.parameters())
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())
    if has_hooks or sum(p.numel() for p in parameters) > _MOST or any(map(is_sharded, parameters)):
        return None
    try:
        with _untouched(next(x.device for x in given if isinstance(x, Tensor))):
            leak = _leak_of(copy.deepcopy(root).eval(), given, targets)
    except Exception:
        return None
    place = f" ({model.called})" if model.called else ""
    return (leak[0], f"{model.label}: {leak[1]}{place}") if leak else None


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


def _leak_of(twin: nn.Module, given: tuple[Any, ...], targets: Tensor | None) -> tuple[str, str] | None:
    def run(given: tuple[Any, ...]) -> Tensor:
        made = tensors_in(twin(*(x.clone() if isinstance(x, Tensor) else x for x in given)))
        outs = [out for _, out in made if out.is_floating_point() and out.ndim > 1]
        return outs[0] if len(outs) == 1 else torch.cat([out / out.std() for out in outs], 1)

    batch = [(place, x) for place, x in enumerate(given) if isinstance(x, Tensor)]
    plain, rows = run(given), len(batch[0][1])
    if not torch.equal(plain, run(given)) or len(plain) != rows:  # it is random, or remembers
        ran: set[Any] = set()
        with operators_shown_to(lambda operator, *_: ran.add(operator)):
            run(given)
        words = "dropout is active in evaluation mode too, so that what is validated is random"
        return (ACTIVE, words) if ran & set(_DROPOUT) else None
    limit = _CHANGED * float(plain.std())
    told = [(place, x, *found) for place, x in batch if (found := _foretold(x, plain, targets)) is not None]
    if any(behind for *_, behind in told):
        told = [one for one in told if one[-1]]
    told = [one for one in told if one[-1] or one[0]]  # the first argument may be what is to be copied
    for place, x, time, behind in told:
        later = x.transpose(0, time).clone()
        later[-1] = _replaced(later[-1], x)
        changed = run((*given[:place], later.transpose(0, time), *given[place + 1 :]))
        seen = (changed - plain).transpose(0, time)
        if float(seen[: len(seen) - behind].abs().max()) > limit:
            what = "what comes after it, which is" if behind else "the target that it receives, which is"
            return LEAKS, f"its output at one place depends on {what} what it is to predict"
    is_in_rows = any(time == 1 for *_, time, _ in told)
    if is_in_rows or (not told and plain.ndim == 2 and _runs_over_rows(twin, given, rows)):
        for kept, like in ((slice(2), 1), (slice(-2, None), -2)):
            others = [x[like].expand_as(x).clone() if isinstance(x, Tensor) else x for x in given]
            for place, x in batch:
                others[place][kept] = x[kept]
            if float((run(tuple(others)) - plain)[kept].abs().max()) > limit:
                words = "its output for one sample depends on the other samples of the batch"
                return LEAKS, f"{words}, in evaluation mode too"
    return None


def _replaced(last: Tensor, x: Tensor) -> Tensor:
    """Return something else for each value, of the tokens that there are."""
    if x.is_floating_point():
        return last.roll(1, 0) + 1.0
    tokens = x.unique()
    return torch.where(last == tokens[0], tokens[-1], tokens[0])


def _runs_over_rows(twin: nn.Module, batch: tuple[Any, ...], rows: int) -> bool:
    """Tell whether a softmax, attention or recurrent layer runs over the rows of a batch.

    That a row depends on others is no mistake by itself: rows may be the points of a cloud, the nodes of a graph or
    the frames of a video.
    """
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
        twin(*(x.clone() if isinstance(x, Tensor) else x for x in batch))
    return any(found)


def _foretold(x: Tensor, plain: Tensor, targets: Tensor | None) -> tuple[int, int] | None:
    """Return the dimension of time, 1 or 0, and how far behind each place its target is in an input, 1 or 0.

    The input may be tokens, tokens as rows of zeros and a one, or numbers; what is to be told at once only tokens.
    """
    if targets is None or plain.ndim < 2 or x.shape[:2] != plain.shape[:2] or min(x.shape[:2]) < 2:
        return None
    told = x
    if x.ndim == 3 and not targets.is_floating_point():
        is_one = x.is_floating_point() and bool(((x == 0) | (x == 1)).all() & (x.sum(-1) == 1).all())
        if not is_one:
            return None
        told = x.argmax(-1)
    if told.is_floating_point() != targets.is_floating_point() or len(targets) < told.numel():
        return None
    wanted = targets[: told.numel()].reshape(told.shape)
    for time in (1, 0):
        behind, before = told.transpose(0, time)[1:], wanted.transpose(0, time)[:-1]
        if torch.equal(before, behind) and not torch.equal(behind, told.transpose(0, time)[:-1]):
            return time, 1
    return (1, 0) if x.ndim == 2 and not x.is_floating_point() and torch.equal(told, wanted) else None
