"""An order that puts what is alike side by side."""

from typing import Any


def alike_together(likeness: Any) -> list[int]:
    """Return an order of n things in which those that are alike are neighbours.

    Average linkage by chains of nearest neighbours, `O(n^2)` (Murtagh, 1983); the leaves of its tree from left to
    right, each pair of branches laid so that their nearer ends meet.

    Args:
        likeness: `(n, n)`, symmetric, finite; the larger, the more alike.
    """
    import numpy as np

    n = len(likeness)
    near = np.array(likeness, dtype=float)
    np.fill_diagonal(near, -np.inf)
    whole = np.array(near)
    sizes = np.ones(n)
    leaves: dict[int, list[int]] = {i: [i] for i in range(n)}
    chain: list[int] = []
    while len(leaves) > 1:
        if not chain:
            chain.append(next(iter(leaves)))
        last = chain[-1]
        best = int(near[last].argmax())
        if len(chain) > 1 and near[last, chain[-2]] >= near[last, best]:
            best = chain[-2]
        if len(chain) < 2 or best != chain[-2]:
            chain.append(best)
            continue
        del chain[-2:]
        leaves[best] = _joined(leaves[best], leaves.pop(last), whole)
        row = (sizes[best] * near[best] + sizes[last] * near[last]) / (sizes[best] + sizes[last])
        near[best], near[:, best] = row, row
        near[best, best] = -np.inf
        near[last], near[:, last] = -np.inf, -np.inf
        sizes[best] += sizes[last]
    return next(iter(leaves.values()), [])


def _joined(a: list[int], b: list[int], likeness: Any) -> list[int]:
    """Lay two runs end to end, turned so that the likest ends meet."""
    ways = [(a, b), (a, b[::-1]), (a[::-1], b), (a[::-1], b[::-1])]
    first, second = max(ways, key=lambda way: likeness[way[0][-1], way[1][0]])
    return first + second
