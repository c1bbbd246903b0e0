"""Workers of a data loader that draw the same random numbers."""

import pickle
import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch, worker

from modelscope_cli.watching.workers import WorkerWatch


class Noisy(Dataset):
    """Adds numbers of a generator that it holds, or of one of torch, Python or NumPy, to each sample."""

    def __init__(self, how: str):
        self.how, self.x = how, torch.arange(48.0)
        self.held = {"kept": [numpy.random.default_rng(0)], "python": random.Random(0)}
        self.generator, self.seeded = torch.Generator().manual_seed(0), numpy.random.RandomState(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if self.how == "by index":
            self.seeded.seed(i)
        draw = {
            "kept": self.held["kept"][0].normal,
            "python": self.held["python"].random,
            "generator": lambda: torch.randn((), generator=self.generator).item(),
            "torch": lambda: torch.randn(()).item(),
            "numpy": numpy.random.randn,
            "random": random.random,
            "by index": self.seeded.randn,
            "none": lambda: 0.0,
        }
        return self.x[i] + draw[self.how]()


def said_of(
    how: str, shuffle: bool = True, workers: int = 2, epochs: int = 1, init=None, batch: int = 4, **more
):
    torch.manual_seed(0)
    watch = WorkerWatch()
    with watch.installed(lambda: False, lambda: more.get("validates", False)):  # asked in the worker
        loader = DataLoader(Noisy(how), batch, shuffle=shuffle, num_workers=workers, worker_init_fn=init)
        seen = [batch for _ in range(epochs) for batch in loader]
        return watch.take(), seen


@pytest.mark.parametrize("how", ["kept", "python", "generator"])
def test_a_generator_that_each_worker_has_a_copy_of(how) -> None:
    name = {"kept": "dataset.held['kept'][0]", "python": "dataset.held['python']"}.get(
        how, "dataset.generator"
    )
    assert name in (said_of(how)[0] or "")


@pytest.mark.parametrize("how", ["torch", "numpy", "random", "by index", "none"])
def test_numbers_that_are_seeded_for_each_worker_or_sample(how) -> None:
    assert said_of(how)[0] is None


def test_validation_in_order_may_have_the_same_noise_each_time() -> None:
    assert said_of("kept", shuffle=False, validates=True)[0] is None
    assert said_of("kept", shuffle=False, batch=1, validates=True)[0] is None
    assert said_of("kept", shuffle=False, workers=1, epochs=2)[0] is None
    with torch.no_grad():
        assert said_of("kept", shuffle=False)[0] is None


def test_a_training_in_order_must_not_give_two_workers_the_same_noise() -> None:
    assert "workers of a DataLoader" in (said_of("kept", shuffle=False)[0] or "")


def test_one_worker_that_begins_anew_in_each_epoch() -> None:
    assert "several epochs" in (said_of("kept", workers=1, epochs=2)[0] or "")
    assert said_of("torch", workers=1, epochs=2)[0] is None


def one_seed(_: int) -> None:
    numpy.random.seed(0)


def test_one_seed_for_all_workers() -> None:
    assert "numpy.random" in (said_of("numpy", init=one_seed)[0] or "")


def test_batches_are_the_same_to_the_last_bit_and_nothing_is_left_behind() -> None:
    before = worker._worker_loop, fetch._MapDatasetFetcher.fetch
    torch.manual_seed(0)
    bare = list(DataLoader(Noisy("kept"), 4, shuffle=True, num_workers=2))
    assert all(map(torch.equal, bare, said_of("kept")[1]))
    assert (worker._worker_loop, fetch._MapDatasetFetcher.fetch) == before


def test_a_worker_that_is_spawned_gets_the_loop_of_torch() -> None:
    with WorkerWatch().installed(lambda: False, lambda: False):
        text = pickle.dumps(worker._worker_loop)
    assert pickle.loads(text) is worker._worker_loop
