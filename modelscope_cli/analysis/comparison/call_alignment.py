"""Put what two models give side by side as it comes, keeping as little as possible."""

from collections.abc import Iterator

from modelscope_cli.hooks.forward_passes import StreamedOutput

Pair = tuple[StreamedOutput | None, StreamedOutput | None]


class Pairing:
    """Pair the outputs of the same call of both models.

    As long as both make the same calls in the same order nothing is kept. What only one model has a layer for is
    passed on alone. Where orders differ, both sides go on step by step and copies are kept of what the other side
    may still come to: as many as the orders are apart.

    Args:
        names_a, names_b: all layers of either model.

    Attributes:
        most_bytes: how much was kept at one time.
    """

    def __init__(self, names_a: frozenset[str], names_b: frozenset[str]) -> None:
        self._names_a, self._names_b = names_a, names_b
        self._kept_a: dict[tuple[str, int, str], StreamedOutput] = {}
        self._kept_b: dict[tuple[str, int, str], StreamedOutput] = {}
        self.most_bytes = 0

    def pairs(self, a: Iterator[StreamedOutput], b: Iterator[StreamedOutput]) -> Iterator[Pair]:
        """Yield each output once, with its counterpart or None; good until the next pair is asked for."""
        x, y = next(a, None), next(b, None)
        while x is not None or y is not None:
            if x is not None and y is not None and x.key == y.key:
                yield x, y
                x = y = None  # the models must not go on with these still held
                x, y = next(a, None), next(b, None)
            elif x is not None and (x.key in self._kept_b or y is None or x.call.name not in self._names_b):
                yield x, self._kept_b.pop(x.key, None)
                x = None
                x = next(a, None)
            elif y is not None and (y.key in self._kept_a or x is None or y.call.name not in self._names_a):
                yield self._kept_a.pop(y.key, None), y
                y = None
                y = next(b, None)
            elif x is not None and y is not None:
                self._keep(x, y)
                x = y = None
                x, y = next(a, None), next(b, None)
        yield from ((kept, None) for kept in self._kept_a.values())
        yield from ((None, kept) for kept in self._kept_b.values())
        self._kept_a.clear()
        self._kept_b.clear()

    def _keep(self, x: StreamedOutput, y: StreamedOutput) -> None:
        self._kept_a[x.key], self._kept_b[y.key] = x.copied(), y.copied()
        kept = (*self._kept_a.values(), *self._kept_b.values())
        self.most_bytes = max(self.most_bytes, sum(output.tensor.nbytes for output in kept))
