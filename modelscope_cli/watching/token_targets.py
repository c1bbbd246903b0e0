"""Labels that are the tokens which a model reads, at the same place or at a wrong distance from it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import leaves_of, map_leaves
from modelscope_cli.records.watch import MISALIGNED
from modelscope_cli.watching.model_registry import WatchedModel

_NEXT, _HERE, _LAST, _TWICE, _BEFORE, _SLICED = range(6)
_ALPHABET = 20  # classes: with fewer, a task may be to repeat the token before
_FEWEST = 5  # steps
_MOST_KEPT = 8  # tensors of tokens
_MOST_VALUES = 1 << 20  # of the arguments of a model that are kept
_OWN = 3.0  # times the change of the output at any other place
_SAME_PLACE = "the token that the model reads at the same place, so it has only to copy its input"
_WORDS = {
    _HERE: _SAME_PLACE,
    _LAST: "the last token that the model reads, so it has only to copy that",
    _TWICE: "the token two places later: the targets were shifted twice, as transformers models shift their "
    "labels themselves",
    _BEFORE: "the token one place earlier, which the model has already read",
    _SLICED: "a token that the model has already read at that place, so it has only to copy its input",
}


@dataclass(slots=True)
class _Comparison:
    """The labels of a criterion beside the tokens that entered the model, over the calls of one line."""

    name: str
    n_classes: int
    n_calls: int = 0
    wrong: list[Tensor] = field(default_factory=list)  # of each call: labels that differ, at each distance
    n_labels: list[Tensor] = field(default_factory=list)


class TokenWatch:
    """The tokens that entered models since the last step, and the labels that criteria compare with scores."""

    def __init__(self) -> None:
        self._tokens: deque[Tensor] = deque(maxlen=_MOST_KEPT)
        self._by_line: dict[str | None, _Comparison | None] = {}

    def see_input(self, module: nn.Module, x: Tensor | None) -> None:
        """Keep tokens that enter an embedding, or a sequence that may be one-hot vectors."""
        if x is not None and not x.is_meta and x.ndim == (2 if isinstance(module, nn.Embedding) else 3):
            self._tokens.append(x.detach() if x.is_floating_point() else x.detach().clone())

    def forget(self) -> None:
        """Forget the tokens of a step that has ended."""
        self._tokens.clear()

    def compare(
        self, name: str, place: str | None, target: Tensor, ignored: int, n_classes: int | None
    ) -> None:
        """Compare the labels of one call with all tokens of this step; nothing waits for a device."""
        if n_classes is None or target.is_floating_point() or not self._tokens:
            return
        with torch.no_grad():
            rows = [_differing(x, target.detach().flatten(), ignored, n_classes) for x in self._tokens]
            found = [row for row in rows if row is not None]
            if not found:
                self._by_line[place] = None
            one = self._by_line.setdefault(place, _Comparison(name, n_classes))
            if one is None:
                return
            one.n_calls += 1
            one.wrong.append(torch.stack(found).amin(0))
            one.n_labels.append((target != ignored).sum())
            if len(one.wrong) >= _MOST_KEPT:
                one.wrong = [torch.stack(one.wrong).sum(0)]
                one.n_labels = [torch.stack(one.n_labels).sum()]

    def at_end(self, models: Sequence[WatchedModel]) -> Iterator[tuple[str, str]]:
        """Yield `(kind, message)` of criteria whose labels all have the same wrong distance from the tokens."""
        compared = [(place, one) for place, one in self._by_line.items() if one is not None]
        read = [
            (place, one, torch.stack(fetch(one.wrong)).sum(0).tolist(), int(sum(fetch(one.n_labels))))
            for place, one in compared
            if one.n_calls >= _FEWEST
        ]
        if any(wrong[_NEXT] == 0 for *_, wrong, _ in read):
            return  # others predict tokens further on, or reconstruct the input, beside it
        widths = {model.width_by_place for model in models}
        for place, one, wrong, n_labels in read:
            given = [n for n in _WORDS if wrong[n] == 0 and n_labels]
            if given in ([_HERE], [_SLICED]) and one.n_classes not in widths:
                continue  # such as an autoencoder, whose output at a place depends on all of them
            if given and (given[0] < _BEFORE or one.n_classes >= _ALPHABET):
                where = f" ({place})" if place else ""
                yield (
                    MISALIGNED,
                    f"each of the {n_labels:,} labels of {one.name} is {_WORDS[given[0]]}{where}",
                )


def _differing(x: Tensor, labels: Tensor, ignored: int, n_classes: int) -> Tensor | None:
    """Return how many labels differ from the tokens at each distance; None if their numbers do not fit."""
    tokens = x
    if x.is_floating_point():
        if x.shape[-1] != n_classes:
            return None
        tokens = x.argmax(-1)
    rows, columns = tokens.shape
    n = labels.numel()
    never = labels.new_tensor(n + 1)

    def count(some: Tensor, others: Tensor) -> Tensor:
        wrong = ((some != others) & (some != ignored)).sum()
        return wrong if some.numel() else never

    found = [never] * 6
    if n == rows * columns:
        grid = labels.view(rows, columns)
        found[_HERE] = count(grid, tokens)
        for ahead, distance in ((_NEXT, 1), (_TWICE, 2), (_BEFORE, -1)):
            found[ahead] = torch.minimum(
                count(*_apart(grid, tokens, distance)), count(*_apart(grid.T, tokens.T, distance))
            )
    elif n == rows and columns > 1:
        found[_LAST] = count(labels, tokens[:, -1])
    else:
        for one in (tokens, tokens.T):
            if n == one.shape[0] * (one.shape[1] - 1) and n:
                # A grid without its transpose, as flat labels are in the order of the tokens
                grid = labels.view(one.shape[0], -1) if one is tokens else labels.view(-1, one.shape[0]).T
                found[_NEXT], found[_SLICED] = count(grid, one[:, 1:]), count(grid, one[:, :-1])
                break
        else:
            return None
    wrong = torch.stack(found)
    if x.is_floating_point():
        is_one_hot = ((x == 0) | (x == 1)).all() & (x.sum(-1) == 1).all()
        wrong = torch.where(is_one_hot, wrong, never)
    return wrong


def _apart(labels: Tensor, tokens: Tensor, distance: int) -> tuple[Tensor, Tensor]:
    """Return the labels and the tokens so many columns after them."""
    if distance < 0:
        return labels[:, -distance:], tokens[:, :distance]
    return labels[:, :-distance], tokens[:, distance:]


def arguments_of(args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Return a copy of the arguments of a model that reads sequences; None for others, and too many values."""
    leaves = [x for x in leaves_of((tuple(args), kwargs)) if isinstance(x, Tensor)]
    if not any(_is_sequence(x) for x in leaves) or sum(x.numel() for x in leaves) > _MOST_VALUES:
        return None

    def copied(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, Tensor) else x

    return map_leaves(tuple(args), copied), map_leaves(dict(kwargs), copied)


def _is_sequence(x: Any) -> bool:
    """Tell whether a tensor may be tokens in rows, or one-hot vectors."""
    return isinstance(x, Tensor) and min(x.shape[:2], default=0) > 0 and x.ndim == 2 + x.is_floating_point()


def width_by_place(twin: nn.Module, args: Any, kwargs: Any) -> int:
    """Return the width of an output that at a place depends on the token there far more than elsewhere; else 0.

    That of an autoencoder goes through a code of the whole sequence, and depends on each of its tokens alike.
    """
    tokens = next(x for x in leaves_of((args, kwargs)) if _is_sequence(x))
    changed = tokens.clone()
    other = (tokens != tokens[-1, -1]).flatten(2).any(-1) if tokens.ndim > 2 else tokens != tokens[-1, -1]
    changed[-1, -1] = tokens[other][0]

    def run(now: Tensor) -> Tensor | None:
        def given(x: Any) -> Any:
            is_it = isinstance(x, Tensor) and x.shape == tokens.shape and torch.equal(x, tokens)
            return now.clone() if is_it else x.clone() if isinstance(x, Tensor) else x

        outputs = twin(*map_leaves(args, given), **map_leaves(kwargs, given))
        floats = [x.float() for _, x in tensors_in(outputs) if x.is_floating_point()]
        return next((y for x in floats if (y := _by_place(x, tokens.shape[:2])) is not None), None)

    plain, again, after = run(tokens), run(tokens), run(changed)
    if plain is None or again is None or after is None or not torch.equal(plain, again):
        return 0
    change = (after - plain).abs().amax(-1).flatten()
    return plain.shape[-1] if bool(change[-1] > _OWN * change[:-1].max()) else 0


def _by_place(x: Tensor, shape: torch.Size) -> Tensor | None:
    """Return scores in the last dimension, for every place of a sequence; None for another output."""
    if x.ndim == 3 and x.shape[:2] == shape:
        return x
    if x.ndim == 3 and (x.shape[0], x.shape[2]) == shape:
        return x.transpose(1, 2)
    return x.view(*shape, -1) if x.ndim == 2 and len(x) == shape.numel() else None
