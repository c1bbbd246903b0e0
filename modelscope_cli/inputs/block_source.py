"""Decoded blocks in the order asked for: in this process, or in others beside the model."""

import shlex
from collections.abc import Iterable, Iterator
from itertools import chain

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.broken import BrokenImages, in_words
from modelscope_cli.inputs.decoding import Decoded, Decoder
from modelscope_cli.inputs.feed import MANY, Feed
from modelscope_cli.inputs.workers import WorkerLostError, Workers


class BlockSource:
    """Gives blocks by number, as often as asked."""

    def __init__(self, decoder: Decoder, feed: Feed, workers: int, n_files: int) -> None:
        """Args:
        workers: processes that decode where there are images in number; 0 for none.
        """
        self._decoder, self._feed = decoder, feed
        self._workers = workers if n_files >= MANY else 0
        self._ready: dict[int, Decoded] = {}
        self._n_bytes = 0  # of a block, as far as is known
        feed.workers = self._workers

    def find_first(self) -> tuple[int, Decoded]:
        """Decode the first block with an image; it is kept until it is asked for.

        Raises:
            BrokenImageError: an image that is broken and must not be (exit 4).
            CannotRunError: all images are broken (exit 4).
        """
        broken = BrokenImages()
        for block in range(len(self._decoder.groups)):
            decoded = self._decoder.decode(block)
            if decoded.tensors:
                self._ready[block] = decoded
                self._n_bytes = self._decoder.size * decoded.tensors[0].nbytes
                return block, decoded
            broken.take(block, decoded.broken)
        kinds = broken.kinds()
        raise CannotRunError(
            f"none of the {len(broken):,} images can be read: {in_words(kinds)}",
            f"file {shlex.quote(kinds[0].names[0])}",
        )

    def blocks(self, numbers: Iterable[int]) -> Iterator[tuple[int, Decoded]]:
        """Give blocks in the order of their numbers, which are taken ahead while the model runs.

        Raises:
            BrokenImageError: an image that is broken and must not be (exit 4).
        """
        return self._feed.watch(self._decoded(iter(numbers)))

    def _decoded(self, numbers: Iterator[int]) -> Iterator[tuple[int, Decoded]]:
        # Whoever wants but one block should not have to wait until processes are there.
        for block in numbers:
            is_ready = block in self._ready
            yield block, self._ready.pop(block) if is_ready else self._decoder.decode(block)
            break
        else:
            return
        if not self._workers or (second := next(numbers, None)) is None:
            yield from self._here(numbers)
            return
        numbers = chain([second], numbers)
        taken: list[int] = []
        try:
            with Workers(self._decoder, self._workers, self._n_bytes) as workers:
                try:
                    yield from workers.decode(numbers, self._decoder)
                finally:
                    taken = list(workers.taken)
        except WorkerLostError:
            self._feed.has_lost_worker = True
            self._workers = 0
            yield from self._here(chain(taken, numbers))

    def _here(self, numbers: Iterable[int]) -> Iterator[tuple[int, Decoded]]:
        for block in numbers:
            yield block, self._decoder.decode(block)
