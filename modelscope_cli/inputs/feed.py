"""What happens to images on their way to the model: which were broken, and who waited for whom."""

import time
from collections.abc import Iterable, Iterator

from modelscope_cli.inputs.broken import BrokenImages
from modelscope_cli.inputs.decoding import Decoded
from modelscope_cli.records.run import Feeding, Notice

MANY = 32  # images from which on times are told, and other processes decode


class Feed:
    """Counts over all passes through the same images.

    Attributes:
        broken: the images that could not be decoded.
        workers: how many processes decode beside the model; 0 where they take turns.
        has_lost_worker: whether one of those processes ended before its work did.
    """

    def __init__(self) -> None:
        self.broken = BrokenImages()
        self.workers = 0
        self.has_lost_worker = False
        self._decode_s = self._model_s = self._wait_s = 0.0
        self._n_decoded = 0

    def watch(self, blocks: Iterable[tuple[int, Decoded]]) -> Iterator[tuple[int, Decoded]]:
        """Pass blocks on; the time until the next is asked for is the model's."""
        before = time.perf_counter()
        for block, decoded in blocks:
            arrived = time.perf_counter()
            self._wait_s += arrived - before
            self._decode_s += decoded.seconds
            self._n_decoded += len(decoded.numbers)
            self.broken.take(block, decoded.broken)
            yield block, decoded
            before = time.perf_counter()
            self._model_s += before - arrived

    def times(self) -> Feeding | None:
        """Return how long everything took; None for a few images, where it means nothing."""
        if self._n_decoded < MANY:
            return None
        decode, model, wait = (round(1000 * s, 1) for s in (self._decode_s, self._model_s, self._wait_s))
        return Feeding(self.workers, decode, model, wait)

    def notes(self) -> list[str]:
        """Say who waited for whom, where there were images in number."""
        if (times := self.times()) is None:
            return []
        decode, model, wait = (
            f"{ms / 1000:.1f} s" for ms in (times.decode_ms, times.model_ms, times.wait_ms)
        )
        if not times.workers:
            return [f"decoding {decode}, model {model}: they took turns in one process"]
        where = f"in {times.workers} processes" if times.workers > 1 else "in a process of its own"
        return [f"decoding {decode} {where}, model {model}: the model waited {wait} for images"]

    def warnings(self, n_listed: int) -> tuple[Notice, ...]:
        """Say which images were broken, and whether a decoding process was lost."""
        lost: tuple[Notice, ...] = ()
        if self.has_lost_worker:
            message = "a process that decoded images was lost; this one decoded them from there on"
            lost = (Notice("lost-process", message),)
        return (*self.broken.warnings(n_listed), *lost)
