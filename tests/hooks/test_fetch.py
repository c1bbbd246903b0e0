"""Results that leave a device together are those that leave it one by one."""

import pytest
import torch

from modelscope_cli.hooks.fetch import Deferred, fetch, joined, numbers


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it is not there; `cpu` counts how often it is copied."""

    copies = 0
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    device = property(lambda self: torch.device("meta"))  # type: ignore[assignment]

    def cpu(self):
        Elsewhere.copies += 1
        return self.as_subclass(torch.Tensor)


@pytest.fixture
def tensors():
    drawn = torch.Generator().manual_seed(0)
    wide = torch.randn(3, 4, generator=drawn)
    return [
        torch.tensor(True),
        wide.half()[:, ::2],
        wide.double().t(),
        torch.empty(0, 5),
        torch.arange(7, dtype=torch.int32),
        wide.bfloat16(),
        torch.tensor([1 + 2j]),
        wide[:1].expand(1, 4),
        torch.tensor(3, dtype=torch.uint8),
    ]


def test_tensors_of_every_dtype_and_layout_are_fetched_in_one_copy(tensors):
    Elsewhere.copies = 0
    fetched = fetch(one.as_subclass(Elsewhere) for one in tensors)
    assert Elsewhere.copies == 1
    for before, after in zip(tensors, fetched, strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        assert torch.equal(after.as_subclass(torch.Tensor), before)
        assert after.untyped_storage().nbytes() == before.numel() * before.itemsize  # all that is saved


def test_tensors_of_the_cpu_are_returned_as_they_are(tensors):
    fetched = fetch(iter(tensors))
    assert all(after is before for before, after in zip(tensors, fetched, strict=True))


def test_deferred_results_are_finished_together():
    first = numbers([torch.tensor(1.5), torch.tensor(2), torch.tensor(3.0, dtype=torch.float64)])
    second = Deferred((torch.ones(2), torch.zeros(1)), lambda a, b: len(a) + len(b)).then(str)
    assert first() == [1.5, 2, 3.0]
    assert joined([first, second, Deferred((), lambda: "none")])() == [[1.5, 2, 3.0], "3", "none"]
