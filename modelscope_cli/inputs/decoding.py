"""Decode blocks of images, here or in the workers of a DataLoader, and collate them by model family."""

import multiprocessing
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, stack
from torch.utils.data import DataLoader, Dataset, default_collate

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.inputs.grammar import by
from modelscope_cli.inputs.image import (
    UnreadableImage,
    UnreadableImageError,
    UnreadableImages,
    decode,
    in_words,
)
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.records.naming import counted

Group = Sequence[ListedImage]


def collate(family: str, names: Sequence[str], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the arguments of one forward from prepared `(C, H, W)` images.

    `(N, C, H, W)`; detection: a list.
    """
    if family == "detection":
        return (list(tensors),)
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            height, width = tensors[0].shape[-2:]
            message = f"'{name}' becomes {by(tensor.shape[-2:])}, but '{names[0]}' {height} x {width}"
            raise CannotRunError(message, f"--size {height},{width}")
    return (stack(tuple(tensors)),)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A block of images."""

    numbers: tuple[int, ...]  # indices in the list of images, of the decoded ones
    tensors: tuple[Tensor, ...]  # the prepared images, `(C, H, W)` float32
    broken: tuple[UnreadableImage, ...]  # the images that could not be decoded


@dataclass(frozen=True, slots=True)
class ImageBlocks(Dataset["tuple[int, Decoded | None]"]):
    """Blocks of image files by number."""

    listed: Sequence[ListedImage]
    size: int  # images per block except the last: image `n` of block `b` is number `b * size + n` of the list
    plan: Preprocessing
    is_strict: bool  # whether a broken image is an error

    def __len__(self) -> int:
        return (len(self.listed) + self.size - 1) // self.size

    def decode(self, block: int) -> Decoded:
        """Decode and prepare the images of a block, repeated ones once."""
        ready: dict[ListedImage, Tensor | UnreadableImageError] = {}
        numbers: list[int] = []
        tensors: list[Tensor] = []
        broken: list[UnreadableImage] = []
        first = block * self.size
        for number, file in enumerate(self.listed[first : first + self.size], first):
            if file not in ready:
                ready[file] = self._prepare(file)
            prepared = ready[file]
            if isinstance(prepared, UnreadableImageError):
                broken.append(UnreadableImage(number, file.name, prepared.kind))
            else:
                numbers.append(number)
                tensors.append(prepared)
        return Decoded(tuple(numbers), tuple(tensors), tuple(broken))

    def __getitem__(self, block: int) -> tuple[int, Decoded | None]:
        """Decode a block in a worker; None if that fails, and the main process repeats it to raise the error."""
        with suppress(Exception):
            return block, self.decode(block)
        return block, None

    def _prepare(self, file: ListedImage) -> Tensor | UnreadableImageError:
        try:
            return self.plan.apply(decode(file, self.plan.mode), file.name)
        except UnreadableImageError as error:
            if self.is_strict:
                raise
            return error


MANY = 32  # minimum number of images to start workers


class DecodeCounts:
    """Counts over all passes through the same images."""

    def __init__(self) -> None:
        self.broken = UnreadableImages()  # the images that could not be decoded
        self.workers = 0  # number of decoding processes; 0 if this process decodes


_AHEAD = 2  # blocks per worker
_MOST_BY_DEFAULT = 4
# Forked workers start in milliseconds; as they use no threads of torch and no accelerator, forking is safe.
_START_METHOD = "fork" if sys.platform == "linux" else "spawn"


def choose_workers(asked: int | None) -> int:
    """Return the number of workers: as requested, else by the available cores.

    One core is left to the model; ranks on one machine share the cores. Workers that are not forked import torch
    first, which takes seconds: they are only started if requested.
    """
    is_daemon = multiprocessing.current_process().daemon
    if asked and is_daemon:
        message = f"'--workers {asked}' needs a process that may start child processes"
        raise UsageError(message, "--workers 0")
    if asked is not None:
        return asked
    if is_daemon or _START_METHOD != "fork":
        return 0
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(0, min(_MOST_BY_DEFAULT, cores - 1))


@dataclass(frozen=True, slots=True)
class Packed:
    """A block on its way from a worker, its images in one tensor: each tensor costs a file descriptor."""

    decoded: Decoded  # without `tensors`
    shapes: tuple[torch.Size, ...]  # of the images
    pixels: Any  # their values one after the other, a tensor in shared memory or an array


def pack(item: Any) -> tuple[int, Packed | None]:
    """Pack a block in a worker: the `collate_fn` of the DataLoader."""
    block, decoded = item
    if decoded is None:
        return block, None
    shapes = tuple(tensor.shape for tensor in decoded.tensors)
    tensors = [tensor.flatten() for tensor in decoded.tensors] or [torch.empty(0)]
    if len({*shapes}) > 1:
        tensors = [torch.cat(tensors)]
    try:
        pixels = default_collate(tensors)  # in a worker, into shared memory
    except RuntimeError:  # /dev/shm is full, which is small in containers: an array goes through the pipe
        pixels = stack(tensors).numpy()
    return block, Packed(replace(decoded, tensors=()), shapes, pixels)


def unpack(packed: Packed) -> Decoded:
    parts = torch.as_tensor(packed.pixels).flatten().split([shape.numel() for shape in packed.shapes])
    tensors = tuple(part.view(shape) for part, shape in zip(parts, packed.shapes, strict=True))
    return replace(packed.decoded, tensors=tensors)


_ENDING = (signal.SIGINT, signal.SIGTERM)


def _leave_to_main(worker: int) -> None:
    """Leave Ctrl-C and every report to the main process: the threads of a worker may print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    sys.excepthook = lambda *_: None


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Deliver Ctrl-C afterwards: an iterator that it stops halfway prints a traceback when it is freed."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_torchs_handler() -> Iterator[None]:
    """Keep the SIGCHLD handler as it is, and the one of torch out, also that of an earlier DataLoader.

    It raises the end of a worker wherever the program is: in the model, or while the workers are ended.
    """
    is_main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    handler = signal.getsignal(signal.SIGCHLD) if is_main and hasattr(signal, "SIGCHLD") else None
    if handler is None:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


class BlockSource:
    """Decoded blocks by number, any number of times."""

    def __init__(self, images: ImageBlocks, feed: DecodeCounts, workers: int, n_files: int) -> None:
        """Args:
        workers: processes that decode if there are enough images; 0 for none.
        """
        self._images, self._feed = images, feed
        self._workers = workers if n_files >= MANY else 0
        self._ready: dict[int, Decoded] = {}
        feed.workers = self._workers

    def find_first(self) -> tuple[int, Decoded]:
        """Decode the first block with an image, and cache it until it is requested."""
        broken = UnreadableImages()
        for block in range(len(self._images)):
            decoded = self._images.decode(block)
            if decoded.tensors:
                self._ready[block] = decoded
                return block, decoded
            broken.take(decoded.broken)
        kinds = broken.kinds()
        message = f"none of the {len(broken):,} images can be read: {in_words(kinds)}"
        raise CannotRunError(message, f"file {shlex.quote(kinds[0].names[0])}")

    def blocks(self, numbers: Iterable[int]) -> Iterator[tuple[int, Decoded]]:
        """Yield the blocks with these numbers, decoded ahead while the model runs."""
        for block, decoded in self._decoded(iter(numbers)):
            self._feed.broken.take(decoded.broken)
            yield block, decoded

    def _decoded(self, numbers: Iterator[int]) -> Iterator[tuple[int, Decoded]]:
        # A single block should not have to wait for workers to start.
        for block in numbers:
            is_ready = block in self._ready
            yield block, self._ready.pop(block) if is_ready else self._images.decode(block)
            break
        else:
            return
        if not self._workers or (second := next(numbers, None)) is None:
            yield from ((block, self._images.decode(block)) for block in numbers)
            return
        workers = self._start(chain([second], numbers))
        try:
            for block, packed in _received(workers):
                yield block, self._images.decode(block) if packed is None else unpack(packed)
        finally:
            with _without_torchs_handler():
                workers._shutdown_workers()  # at once: tracebacks may refer to it for long
                for worker in workers._workers:  # one may wait for a lock that died with another
                    worker.kill()
                    worker.join()

    def _start(self, numbers: Iterator[int]) -> Any:
        """Start the workers, and return the iterator over the packed blocks."""
        try:
            with _without_torchs_handler(), warnings.catch_warnings(), _signals_held_back():
                # Of more workers than cores, and of threads that forks lose: decoding uses none.
                warnings.simplefilter("ignore")
                loader: Iterable[Any] = DataLoader(
                    self._images,
                    batch_size=None,  # an item is a block
                    sampler=numbers,
                    num_workers=self._workers,
                    prefetch_factor=_AHEAD,
                    collate_fn=pack,
                    worker_init_fn=_leave_to_main,
                    multiprocessing_context=_START_METHOD,
                    # A generator of its own, as it would draw from torch's and change what the model draws.
                    generator=torch.Generator(),
                )
                return iter(loader)
        except OSError as error:  # no more processes, files or memory
            message = f"{counted(self._workers, 'worker')} cannot be started: {error.strerror}"
            raise CannotRunError(message, "--workers 0") from error


def _received(workers: Any) -> Iterator[tuple[int, Packed | None]]:
    try:
        yield from workers
    except (RuntimeError, ConnectionError, EOFError) as error:  # the latter where it ends amid what it sends
        message = f"a process that decodes images ended too early: {error}"
        raise CannotRunError(message, "--workers 0") from error
