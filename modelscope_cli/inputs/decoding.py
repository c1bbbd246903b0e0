"""Decode blocks of images, here or in worker processes ahead of the model, and collate them by model family.

Workers are forked (Linux only), so that nothing is pickled and the file list is shared. This is safe as they run no
parallel region and use no accelerator. Images return through shared memory, everything else through a pipe. A
worker ends when its pipe closes, so none outlives this process.
"""

import mmap
import multiprocessing
import os
import shlex
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor, nn, stack

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.inputs.grammar import by
from modelscope_cli.inputs.image import (
    UnreadableImage,
    UnreadableImageError,
    UnreadableImages,
    decode,
    evenly_spaced,
    in_words,
)
from modelscope_cli.inputs.listing import FileGroups, ListedImage
from modelscope_cli.inputs.model_config import CLIP_FRAMES, clip_of
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.records.run import Arguments, Feeding, Notice

# Images per forward without `--batch`.
_FIXED_SIZE_BATCH, _OWN_SIZE_BATCH = 8, 1
Group = Sequence[ListedImage]


# How models take clips, and the dimension of the frames in one.
CLIPS = {"video": 1, "frames": 0}


def frames_in(module: nn.Module, family: str, args: Arguments) -> tuple[int, int]:
    """Return the dimension of the frames or slices of the input and their number; 0 and 1 for images."""
    tensors = [tensor for _, tensor in tensors_in(args)]
    if len(tensors) != 1 or tensors[0].ndim != 5:
        return 0, 1
    clip = clip_of(module, family)
    dim = 1 + CLIPS[clip[0] if clip is not None else "video"]
    return dim, tensors[0].shape[dim]


def group_images(
    family: str, files: Group, batch: int | None, is_fixed_size: bool, n_frames: int = CLIP_FRAMES
) -> tuple[Sequence[Group], list[str]]:
    """Return the images of each forward, and notes on automatic choices.

    Video: all files are the frames of one clip. Optical flow: two files form a pair.

    Args:
        n_frames: of a clip; 0 takes all images.
    """
    if family in {*CLIPS, "optical_flow"} and batch not in {None, 1}:
        group_name = "one pair" if family == "optical_flow" else "one clip"
        raise UsageError(f"'--batch {batch}' does not fit: the images are {group_name}", "--batch 1")
    if family == "optical_flow":
        if len(files) != 2:
            raise UsageError(
                f"optical flow takes two images, not {len(files)}: "
                + ", ".join(f"'{file.name}'" for file in files[:4]),
                "modelscope stats first.png second.png --model raft_small",
            )
        return [files], []
    if family in CLIPS and not n_frames:
        return [files], [f"volume: {len(files)} images in order"]
    if family in CLIPS:
        # Evenly spaced, with the first and last file; with fewer files than frames some repeat.
        last = len(files) - 1
        frames = [files[number] for number in evenly_spaced(last + 1, n_frames)]
        description = "one image held still" if last == 0 else f"{len(files)} images in order, evenly sampled"
        return [frames], [f"clip: {n_frames} frames of {description}"]
    size = batch or (_FIXED_SIZE_BATCH if is_fixed_size else _OWN_SIZE_BATCH)
    return FileGroups(files, size), []


def collate(family: str, names: Sequence[str], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the arguments of one forward from prepared `(C, H, W)` images.

    `(N, C, H, W)`; video: one `(1, C, T, H, W)`; frames: one `(1, T, C, H, W)`; optical flow: two `(1, C, H, W)`;
    detection: a list.
    """
    if family == "detection":
        return (list(tensors),)
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            height, width = tensors[0].shape[-2:]
            raise CannotRunError(
                f"'{name}' becomes {by(tensor.shape[-2:])}, but '{names[0]}' {height} x {width}",
                f"--size {height},{width}",
            )
    if family in CLIPS:
        return (stack(tuple(tensors), dim=CLIPS[family])[None],)
    if family == "optical_flow":
        return tuple(tensor[None] for tensor in tensors)
    return (stack(tuple(tensors)),)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A block of images."""

    numbers: tuple[int, ...]  # indices in the list of images, of the decoded ones
    tensors: tuple[Tensor, ...]  # the prepared images, `(C, H, W)` float32
    broken: tuple[UnreadableImage, ...]  # the images that could not be decoded
    seconds: float  # time taken


@dataclass(frozen=True, slots=True)
class BlockDecoder:
    """Decodes blocks by number."""

    groups: Sequence[Group]  # the files of each block
    size: int  # images per block except the last: image `n` of block `b` is number `b * size + n` of the list
    plan: Preprocessing
    is_strict: bool  # whether a broken image is an error

    def decode(self, block: int) -> Decoded:
        """Decode and prepare the images of a block, repeated ones once."""
        started = time.perf_counter()
        ready: dict[ListedImage, Tensor | UnreadableImageError] = {}
        numbers: list[int] = []
        tensors: list[Tensor] = []
        broken: list[UnreadableImage] = []
        for number, file in enumerate(self.groups[block], block * self.size):
            if file not in ready:
                ready[file] = self._prepare(file)
            prepared = ready[file]
            if isinstance(prepared, UnreadableImageError):
                broken.append(UnreadableImage(number, file.name, prepared.kind))
            else:
                numbers.append(number)
                tensors.append(prepared)
        seconds = time.perf_counter() - started
        return Decoded(tuple(numbers), tuple(tensors), tuple(broken), seconds)

    def files(self, block: int, decoded: Decoded) -> list[ListedImage]:
        group = self.groups[block]
        return [group[number - block * self.size] for number in decoded.numbers]

    def _prepare(self, file: ListedImage) -> Tensor | UnreadableImageError:
        try:
            return self.plan.apply(decode(file, self.plan.mode), file.name)
        except UnreadableImageError as error:
            if self.is_strict:
                raise
            return error


MANY = 32  # minimum number of images to report times and to start workers


class DecodeTiming:
    """Counts and times over all passes through the same images."""

    def __init__(self) -> None:
        self.broken = UnreadableImages()  # the images that could not be decoded
        self.workers = 0  # number of decoding processes; 0 if this process decodes
        self.has_lost_worker = False  # whether a worker ended too early
        self._decode_s = self._model_s = self._wait_s = 0.0
        self._n_decoded = 0

    def watch(self, blocks: Iterable[tuple[int, Decoded]]) -> Iterator[tuple[int, Decoded]]:
        """Yield the blocks; the time until the next request counts as the model's."""
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
        """Return the timings; None for too few images."""
        if self._n_decoded < MANY:
            return None
        decode, model, wait = (round(1000 * s, 1) for s in (self._decode_s, self._model_s, self._wait_s))
        return Feeding(self.workers, decode, model, wait)

    def notes(self) -> list[str]:
        """Return notes on whether the model or decoding was the bottleneck, if there were enough images."""
        if (times := self.times()) is None:
            return []
        decode, model, wait = (
            f"{ms / 1000:.1f} s" for ms in (times.decode_ms, times.model_ms, times.wait_ms)
        )
        if not times.workers:
            return [f"decoding {decode}, model {model} (sequential; --workers overlaps them)"]
        where = f"in {times.workers} processes" if times.workers > 1 else "in a process of its own"
        return [f"decoding {decode} {where}, model {model}; the model waited {wait} for images"]

    def warnings(self, n_listed: int) -> tuple[Notice, ...]:
        """Return warnings about broken images and a lost worker."""
        lost: tuple[Notice, ...] = ()
        if self.has_lost_worker:
            message = "a decoding process died; the main process decoded the rest"
            lost = (Notice("lost-process", message),)
        return (*self.broken.warnings(n_listed), *lost)


_AHEAD = 2  # blocks per worker
_MOST_BY_DEFAULT = 4


def choose_workers(asked: int | None) -> int:
    """Return the number of workers: as requested, else by the available cores.

    One core is left to the model; ranks on one machine share the cores.
    """
    can_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    if asked is not None:
        if asked and not can_fork:
            message = f"'--workers {asked}' needs Linux, and a process that may start child processes"
            raise UsageError(message, "--workers 0")
        return asked
    if not can_fork:
        return 0
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(0, min(_MOST_BY_DEFAULT, cores - 1))


class WorkerLostError(Exception):
    """A worker ended too early: it was killed or crashed."""


class Workers:
    """Context manager of processes that decode blocks.

    `torch.utils.data.DataLoader` with the same decoder takes 1.3 to 1.4 times the CPU time at 8 photos per block.
    """

    def __init__(self, decoder: BlockDecoder, n: int, n_bytes: int) -> None:
        """Fork them.

        Args:
            n_bytes: shared memory per block; larger blocks are sent through the pipe.
        """
        self.taken: deque[int] = deque()
        self._slot = max(n_bytes, 4)
        self._memory = mmap.mmap(-1, n * _AHEAD * self._slot)
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        try:
            for worker in range(n):
                ours, theirs = context.Pipe()
                self._pipes.append(ours)
                arguments = (decoder, theirs, tuple(self._pipes), self._memory, worker * _AHEAD, self._slot)
                process = context.Process(target=_serve, args=arguments, daemon=True)
                with warnings.catch_warnings():
                    # Python warns that forked children lose threads; they need none, see above.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                theirs.close()
                self._processes.append(process)
        except OSError as error:  # no more processes, files or memory
            self.__exit__()
            raise WorkerLostError from error

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()  # it has nothing to clean up
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()

    def decode(self, blocks: Iterable[int], decoder: BlockDecoder) -> Iterator[tuple[int, Decoded]]:
        """Yield the blocks in the given order, taking `_AHEAD` numbers per worker in advance.

        A block that fails in a worker is decoded again here, to raise the same error.
        """
        numbers = iter(blocks)
        turns: deque[int] = deque()
        for worker in list(range(len(self._pipes))) * _AHEAD:
            self._ask(worker, numbers, turns)
        received = [0] * len(self._pipes)
        while turns:
            worker = turns.popleft()
            decoded = self._receive(worker, received[worker] % _AHEAD)
            received[worker] += 1
            block = self.taken[0]
            self._ask(worker, numbers, turns)
            if decoded is None:
                decoded = decoder.decode(block)
            self.taken.popleft()
            yield block, decoded

    def _ask(self, worker: int, numbers: Iterator[int], turns: deque[int]) -> None:
        block = next(numbers, None)
        if block is None:
            return
        self.taken.append(block)
        turns.append(worker)
        with suppress(OSError):  # a dead worker is noticed when its answer is missing
            self._pipes[worker].send(block)

    def _receive(self, worker: int, turn: int) -> Decoded | None:
        pipe, process = self._pipes[worker], self._processes[worker]
        wait([pipe, process.sentinel])
        try:
            if not pipe.poll():
                raise EOFError
            decoded, shapes = pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerLostError from error
        if decoded is None:
            return None
        if shapes is None:
            return replace(decoded, tensors=tuple(map(torch.from_numpy, decoded.tensors)))
        start = (worker * _AHEAD + turn) * self._slot
        return replace(decoded, tensors=tuple(t.clone() for t in _laid_out(self._memory, start, shapes)))


def _serve(
    decoder: BlockDecoder,
    pipe: Connection,
    others: tuple[Connection, ...],
    memory: mmap.mmap,
    first: int,
    slot: int,
) -> None:
    """Run a worker: decode the requested blocks until the pipe closes."""
    for other in others:  # else this process would keep the other workers' pipes open
        other.close()
    # Ctrl-C reaches the whole process group; the parent handles it and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    turn = 0
    with suppress(EOFError, OSError):
        while True:
            block = pipe.recv()
            try:
                decoded: Decoded | None = decoder.decode(block)
            except Exception:  # the parent decodes again and raises it
                decoded = None
            start = (first + turn % _AHEAD) * slot
            turn += 1
            pipe.send(_put(decoded, memory, start, slot))


def _put(
    decoded: Decoded | None, memory: mmap.mmap, start: int, slot: int
) -> tuple[Decoded | None, list[tuple[int, ...]] | None]:
    """Copy the tensors into shared memory; return the rest and their shapes, or everything if too large."""
    if decoded is None:
        return None, None
    tensors = decoded.tensors
    if any(t.dtype != torch.float32 for t in tensors) or sum(t.nbytes for t in tensors) > slot:
        arrays: Any = tuple(
            tensor.numpy() for tensor in tensors
        )  # for a tensor torch would send a file descriptor
        return replace(decoded, tensors=arrays), None
    shapes = [tuple(tensor.shape) for tensor in tensors]
    for place, tensor in zip(_laid_out(memory, start, shapes), tensors, strict=True):
        place.copy_(tensor)
    return replace(decoded, tensors=()), shapes


def _laid_out(memory: mmap.mmap, start: int, shapes: Iterable[tuple[int, ...]]) -> Iterator[Tensor]:
    """Yield float32 tensors of these shapes, contiguous in shared memory."""
    for shape in shapes:
        count = torch.Size(shape).numel()
        yield torch.frombuffer(memory, dtype=torch.float32, count=count, offset=start).reshape(shape)
        start += 4 * count


class BlockSource:
    """Decoded blocks by number, any number of times."""

    def __init__(self, decoder: BlockDecoder, feed: DecodeTiming, workers: int, n_files: int) -> None:
        """Args:
        workers: processes that decode if there are enough images; 0 for none.
        """
        self._decoder, self._feed = decoder, feed
        self._workers = workers if n_files >= MANY else 0
        self._ready: dict[int, Decoded] = {}
        self._n_bytes = 0  # of the largest block so far
        feed.workers = self._workers

    def find_first(self) -> tuple[int, Decoded]:
        """Decode the first block with an image, and cache it until it is requested."""
        broken = UnreadableImages()
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
        """Yield the blocks with these numbers, decoded ahead while the model runs."""
        return self._feed.watch(self._decoded(iter(numbers)))

    def _decoded(self, numbers: Iterator[int]) -> Iterator[tuple[int, Decoded]]:
        # A single block should not have to wait for workers to start.
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
        requested: list[int] = []
        try:
            with Workers(self._decoder, self._workers, self._n_bytes) as workers:
                try:
                    yield from workers.decode(numbers, self._decoder)
                finally:
                    requested = list(workers.taken)
        except WorkerLostError:
            self._feed.has_lost_worker = True
            self._workers = 0
            yield from self._here(chain(requested, numbers))

    def _here(self, numbers: Iterable[int]) -> Iterator[tuple[int, Decoded]]:
        for block in numbers:
            yield block, self._decoder.decode(block)
