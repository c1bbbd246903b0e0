"""Decoding in other processes while the model runs: two blocks a process ahead, handed over in the order asked.

Processes are forked, so that nothing has to be pickled and the list of files is shared; that is safe on Linux
alone. A fork is quick there, and the child, which runs no parallel region and never touches an accelerator, needs
none of the threads it loses. Images come back through memory shared since the fork, and all else through a pipe. A
worker whose pipe closes ends: nobody is left behind however this process ends.
"""

import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.decoding import Decoded, Decoder

_AHEAD = 2  # blocks a worker
_MOST_BY_DEFAULT = 4


def choose_workers(asked: int | None) -> int:
    """Return how many processes decode: what was asked for, else by the cores this process may use.

    One core is the model's. Of several processes on one machine each has its share of the cores.

    Raises:
        UsageError: more than none where processes cannot be forked (exit 2).
    """
    can_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    if asked is not None:
        if asked and not can_fork:
            message = f"'--workers {asked}' needs Linux, and a process that may start others"
            raise UsageError(message, "--workers 0")
        return asked
    if not can_fork:
        return 0
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(0, min(_MOST_BY_DEFAULT, cores - 1))


class WorkerLostError(Exception):
    """A worker ended before its work did: it was killed, or something in it crashed."""


class Workers:
    """Processes that decode blocks; a context that ends them."""

    def __init__(self, decoder: Decoder, n: int, n_bytes: int) -> None:
        """Fork them.

        Args:
            n_bytes: memory to share for a block; one that needs more goes by pipe.

        Raises:
            WorkerLostError: the system has no room for them.
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
                    # Python warns of threads that a child does not have; see above why it needs none.
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
            process.kill()  # it holds nothing that would have to be cleaned up
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()

    def decode(self, blocks: Iterable[int], decoder: Decoder) -> Iterator[tuple[int, Decoded]]:
        """Give the blocks in the order asked; numbers are taken `_AHEAD` blocks a worker in advance.

        What fails in a worker is done once more here, where it raises as it would have.

        Raises:
            WorkerLostError: one ended; the blocks that were taken and not given are in `taken`.
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
        with suppress(OSError):  # who has gone is noticed when the answer is missing
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
    decoder: Decoder,
    pipe: Connection,
    others: tuple[Connection, ...],
    memory: mmap.mmap,
    first: int,
    slot: int,
) -> None:
    """Decode the blocks whose numbers come in, until the pipe closes; the life of a worker."""
    for other in others:  # else the pipe would never close, as this process held its other end
        other.close()
    # Ctrl-C reaches the whole group; who asked answers it, and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    turn = 0
    with suppress(EOFError, OSError):
        while True:
            block = pipe.recv()
            try:
                decoded: Decoded | None = decoder.decode(block)
            except Exception:  # whatever it is, it is raised where it can be answered
                decoded = None
            start = (first + turn % _AHEAD) * slot
            turn += 1
            pipe.send(_put(decoded, memory, start, slot))


def _put(
    decoded: Decoded | None, memory: mmap.mmap, start: int, slot: int
) -> tuple[Decoded | None, list[tuple[int, ...]] | None]:
    """Lay the tensors into the shared memory; return the rest and their shapes. What does not fit goes with it."""
    if decoded is None:
        return None, None
    tensors = decoded.tensors
    if any(t.dtype != torch.float32 for t in tensors) or sum(t.nbytes for t in tensors) > slot:
        arrays: Any = tuple(tensor.numpy() for tensor in tensors)  # of a tensor torch sends a file descriptor
        return replace(decoded, tensors=arrays), None
    shapes = [tuple(tensor.shape) for tensor in tensors]
    for place, tensor in zip(_laid_out(memory, start, shapes), tensors, strict=True):
        place.copy_(tensor)
    return replace(decoded, tensors=()), shapes


def _laid_out(memory: mmap.mmap, start: int, shapes: Iterable[tuple[int, ...]]) -> Iterator[Tensor]:
    """Give float32 tensors of these shapes that lie one after the other in shared memory."""
    for shape in shapes:
        count = torch.Size(shape).numel()
        yield torch.frombuffer(memory, dtype=torch.float32, count=count, offset=start).reshape(shape)
        start += 4 * count
