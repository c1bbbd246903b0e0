"""What a forward may change is put back; what refuses to be written to is left alone where it has not changed."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.hooks.snapshot import Snapshot

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of layouts that are in beta


def refuse(*args: Any, **kwargs: Any) -> None:
    raise TypeError("this is read-only")


_WRITES = ("__setitem__", "__delitem__", "clear", "update", "extend", "append", "add", "pop")
KINDS = {
    kind: type(f"Frozen{kind.__name__}", (kind,), dict.fromkeys(_WRITES, refuse))
    for kind in (dict, OrderedDict, list, set)
}
ENTRIES = {dict: {"a": 1, "b": []}, OrderedDict: {"a": 1, "b": 2}, list: [1, 2], set: {1, 2}}


@pytest.mark.parametrize("kind", [dict, list, set])
def test_containers_that_refuse_writes_are_left_alone_and_put_back(kind: Any) -> None:
    model = nn.Linear(2, 2)
    made = KINDS[kind](ENTRIES[kind])
    model.config = made
    snapshot = Snapshot(model)
    snapshot.restore()  # would raise
    snapshot = Snapshot(model)
    kind.clear(made)  # by a way round the refusal
    snapshot.restore()
    assert made == kind(ENTRIES[kind])


def test_the_order_of_an_ordered_dict_is_put_back() -> None:
    model = nn.Linear(2, 2)
    model.cache = OrderedDict(a=1, b=2)
    snapshot = Snapshot(model)
    model.cache.move_to_end("a")
    model.cache["c"] = 3
    snapshot.restore()
    assert list(model.cache.items()) == [("a", 1), ("b", 2)]
    model.cache.move_to_end("a")  # its own links are whole


def zeroed(tensor: Tensor) -> None:
    tensor.fill_(0)


NAN = float("nan")
BUFFERS: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Any]]] = {
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), zeroed),
    "complex": (lambda: torch.tensor([1 + 2j]), zeroed),
    "bool": (lambda: torch.tensor([True]), zeroed),
    "expanded": (lambda: torch.ones(1, 3).expand(4, 3), lambda t: t[:1].zero_()),
    "NaN": (lambda: torch.tensor([NAN, 1.0]), zeroed),
    "float8": (lambda: torch.tensor([NAN, 1.0]).to(torch.float8_e4m3fn), lambda t: t.copy_(torch.zeros(2))),
    "empty": (lambda: torch.zeros(0, 3), zeroed),
    "meta": (lambda: torch.empty(3, device="meta"), zeroed),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_is_untouched_and_put_back(kind: str) -> None:
    make, change = BUFFERS[kind]
    model = nn.Module()
    model.register_buffer("held", make())
    before, version = str(model.held), model.held._version
    snapshot = Snapshot(model)
    snapshot.restore()
    assert model.held._version == version  # a graph that saved it can still go backward
    snapshot = Snapshot(model)
    with torch.no_grad():
        change(model.held)
    assert kind in ("empty", "meta") or str(model.held) != before
    snapshot.restore()
    assert str(model.held) == before
