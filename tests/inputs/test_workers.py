"""Decoding in other processes: the same bits in the order asked, and nobody left behind."""

import multiprocessing
import os
import pickle
import random
import signal
from dataclasses import replace

import pytest
import torch

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs import decoding
from modelscope_cli.inputs.decoding import ImageBlocks, choose_workers, pack, unpack
from modelscope_cli.inputs.files import find_images

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="processes are forked on Linux only"
)


@pytest.fixture
def folder(make_picture, tmp_path):
    for n in range(40):
        make_picture(f"f/{n:02}.png", size=(30 + n, 50 - n // 2))
    return tmp_path / "f"


def children():
    return [process.pid for process in multiprocessing.active_children()]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("options", [{"size": "24", "batch": 4}, {"family": "segmentation", "size": "24"}])
def test_the_bits_are_those_of_one_process(opened, folder, workers, options):
    here = list(opened(folder, workers=0, **options))
    inputs = opened(folder, workers=workers, **options)
    for _ in range(2):
        beside = list(inputs)
        assert [batch.names for batch in beside] == [batch.names for batch in here]
        assert all(torch.equal(a.args[0], b.args[0]) for a, b in zip(here, beside, strict=True))
        assert all(
            torch.equal(p, q)
            for a, b in zip(here, beside, strict=True)
            for p, q in zip(a.pictures, b.pictures, strict=True)
        )
    assert inputs.feed.workers == workers
    assert children() == []


def test_blocks_come_in_the_order_asked_and_are_taken_no_further_than_two_a_worker_ahead(opened, folder):
    order = list(range(20))
    random.Random(0).shuffle(order)
    taken = []

    def numbers():
        for number in order:
            taken.append(number)
            yield number

    inputs = opened(folder, size="24", batch=2, workers=2)
    for n, batch in enumerate(inputs.make_blocks(numbers())):
        assert batch.block == order[n]
        assert len(taken) <= n + 1 + 2 * 2
    assert taken == order


def test_who_wants_one_batch_starts_nobody_and_who_leaves_ends_them(opened, folder):
    inputs = opened(folder, size="24", batch=4, workers=2)
    next(iter(inputs))
    assert children() == []
    batches = iter(inputs)
    next(batches), next(batches)
    assert len(children()) == 2
    del batches
    assert children() == []


def test_a_model_that_writes_into_its_input_changes_no_later_batch(opened, folder):
    here = [batch.args[0].clone() for batch in opened(folder, size="24", batch=4, workers=0)]
    for batch, expected in zip(opened(folder, size="24", batch=4, workers=2), here, strict=True):
        assert torch.equal(batch.args[0], expected)
        batch.args[0].fill_(torch.nan)


def test_a_worker_that_is_killed_ends_the_run_with_what_to_do(opened, folder):
    handler = signal.getsignal(signal.SIGCHLD)
    batches = iter(opened(folder, size="24", batch=2, workers=2))
    next(batches), next(batches)
    assert signal.getsignal(signal.SIGCHLD) is handler
    os.kill(children()[0], signal.SIGKILL)
    with pytest.raises(CannotRunError, match="ended too early") as caught:
        list(batches)
    assert caught.value.hint == "--workers 0"
    assert children() == []


def test_the_random_numbers_of_the_caller_stay_the_same(opened, folder):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert len(list(opened(folder, size="24", batch=4, workers=1))) == 10
    assert torch.equal(torch.rand(1), expected)


def test_without_room_in_shared_memory_the_bits_stay_the_same(opened, folder, monkeypatch):
    def refuse(tensors):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    here = list(opened(folder, size="24", batch=4, workers=0))
    monkeypatch.setattr(decoding, "default_collate", refuse)
    beside = list(opened(folder, size="24", batch=4, workers=1))
    assert all(torch.equal(a.args[0], b.args[0]) for a, b in zip(here, beside, strict=True))


def test_a_worker_that_is_not_forked_gets_the_same_files(opened, folder):
    """Such a worker gets a pickled copy, here of files, one of which cannot be read."""
    (folder / "01.png").write_text("words")
    plan = opened(folder, size="24").preprocessing
    files = find_images([str(folder)]).files
    images = ImageBlocks(files, 4, plan, is_strict=False)
    assert len(files) == 40
    for block in (0, 9):
        one = images.decode(block)
        _, packed = pack(pickle.loads(pickle.dumps(images))[block])
        other = unpack(packed)
        assert replace(other, tensors=()) == replace(one, tensors=())
        assert all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))
    assert [image.number for image in images.decode(0).broken] == [1]


def test_what_fails_in_a_worker_is_raised_here_in_its_turn(opened, folder):
    (folder / "21.png").write_text("words")
    batches = iter(opened(folder, size="24", batch=2, workers=2, is_strict=True))
    for _ in range(10):
        next(batches)
    with pytest.raises(CannotRunError, match=r"21\.png' is not an image"):
        next(batches)
    assert children() == []


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [(1, None, 0), (2, None, 1), (4, "1", 3), (64, "8", 4), (16, "8", 1), (2, "2", 0)],
)
def test_by_default_there_is_a_core_for_the_model(monkeypatch, cores, ranks, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert choose_workers(None) == expected
    assert choose_workers(7) == 7
