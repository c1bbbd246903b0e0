"""Which tensor of one state dict is which of another, where names differ."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.records.diff import Renaming

_MOST_RENAMINGS = 8


def pair_names(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> tuple[dict[str, str], tuple[Renaming, ...]]:
    """Return `{name in A: name in B}` of what both have, and the prefixes that had to be replaced for it.

    First what has one name in both; then, as long as it makes most of the rest fit, what another prefix gives
    the name; last, what has the same type, shape and values as exactly one tensor of the other side.
    """
    pairs = {name: name for name in a if name in b}
    rest_a, rest_b = _without(a, pairs), _without(b, pairs.values())
    renamings: list[Renaming] = []
    while len(renamings) < _MOST_RENAMINGS and (best := _best_prefixes(rest_a, rest_b)) is not None:
        prefix, b_prefix = best
        found = _renamed(rest_a, rest_b, prefix, b_prefix)
        pairs.update(found)
        renamings.append(Renaming(prefix, b_prefix, len(found)))
        rest_a, rest_b = _without(rest_a, found), _without(rest_b, found.values())
    pairs.update(_same_values(rest_a, rest_b))
    return pairs, tuple(renamings)


def _without(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    taken = set(names)
    return {name: tensor for name, tensor in tensors.items() if name not in taken}


def _best_prefixes(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Return the pair of prefixes that most tensors of one shape differ by, where that is half of them."""
    groups: dict[Any, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, tensors in enumerate((a, b)):
        for name, tensor in tensors.items():
            groups[tensor.shape, name.rpartition(".")[2]][side].append(name)
    votes = Counter(
        _differing_prefixes(name, other)
        for names, others in groups.values()
        for name in names
        for other in others
    )
    if not votes:
        return None
    best = max(votes, key=lambda pair: (votes[pair], -len(pair[0]) - len(pair[1])))
    return best if 2 * votes[best] >= min(len(a), len(b)) else None


def _differing_prefixes(name: str, other: str) -> tuple[str, str]:
    """Cut off the longest common end, in whole parts: `a.b.c`, `x.c` are `a.b.`, `x.`."""
    parts, others = name.split("."), other.split(".")
    while parts and others and parts[-1] == others[-1]:
        parts.pop()
        others.pop()
    return "".join(f"{part}." for part in parts), "".join(f"{part}." for part in others)


def _renamed(a: Mapping[str, Tensor], b: Mapping[str, Tensor], prefix: str, b_prefix: str) -> dict[str, str]:
    names = {name: b_prefix + name.removeprefix(prefix) for name in a if name.startswith(prefix)}
    return {name: other for name, other in names.items() if other in b}


def _same_values(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, str]:
    ours, theirs = _by_value(a), _by_value(b)
    return {
        names[0]: theirs[value][0]
        for value, names in ours.items()
        if len(names) == len(theirs.get(value, ())) == 1
    }


def _by_value(tensors: Mapping[str, Tensor]) -> dict[Any, list[str]]:
    names: dict[Any, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.layout == torch.strided and not tensor.is_quantized:
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            names[tensor.shape, tensor.dtype, hashlib.sha256(data).digest()].append(name)
    return names
