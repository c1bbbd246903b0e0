"""Private functions of torch: each is done without where torch no longer has it."""

from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modelscope_cli.hooks import torch_private
from modelscope_cli.hooks.session import HookSession, Observer
from modelscope_cli.hooks.torch_private import children_of, in_backward, leaves_of, map_leaves, version_of


def test_a_compiled_module_is_reported_however_it_was_compiled() -> None:
    plain, compiled = nn.Linear(2, 2), nn.Linear(2, 2)
    compiled.compile()
    found = [torch_private.is_compiled(module) for module in (plain, torch.compile(plain), compiled)]
    assert found == [False, True, True]


class Checkpointed(nn.Module):
    """Runs its layer once more inside the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.use_reentrant)


class Counter(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def enter(self, call, module, args, kwargs):
        self.seen.append(call.name)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_runs_again_does_not_count(use_reentrant):
    model, counter = Checkpointed(use_reentrant), Counter()
    x = torch.randn(2, 4, requires_grad=True)
    ran = []
    model.layer.register_forward_pre_hook(lambda *_: ran.append(in_backward()))
    with HookSession(model, [counter], is_restoring=False):
        model(x).sum().backward()
        assert not in_backward()
    assert ran == [False, True]
    assert counter.seen == ["", "layer", "layer.0", "layer.1"]


@pytest.mark.parametrize("tensor", [
    torch.arange(6.0).reshape(2, 3).T,
    torch.tensor(3.0),
    torch.tensor([True, False]),
    torch.full((2,), torch.nan),
    torch.ones(3, dtype=torch.bfloat16),
    torch.ones(2, dtype=torch.complex64),
], ids=str)  # fmt: skip
def test_a_write_in_place_shows(tensor):
    tensor = tensor.clone()
    before = version_of(tensor)
    assert version_of(tensor) == before
    tensor.zero_()
    assert version_of(tensor) != before


def test_tensors_without_values_have_a_version():
    with torch.inference_mode():
        assert version_of(torch.ones(2)) == 0
    assert version_of(torch.empty(2, device="meta")) == 0
    assert version_of(torch.empty(0)) == 0


Pair = namedtuple("Pair", "left right")
NESTED = [
    (1, [2, {"a": 3, "b": (4, None)}]),
    OrderedDict(x=[1], y=deque([2, 3], maxlen=4)),
    defaultdict(list, {"k": [1, 2]}),
    Pair((1,), {"z": 2}),
    [],
    (),
    {},
    5,
]


@pytest.mark.parametrize("value", NESTED, ids=str)
def test_containers_are_taken_apart_and_put_together(value):
    assert map_leaves(value, lambda leaf: leaf) == value
    assert type(map_leaves(value, str)) is (type(value) if value != 5 else str)
    leaves = leaves_of(value)
    counted = iter(range(len(leaves)))
    assert leaves_of(map_leaves(value, lambda leaf: next(counted))) == list(range(len(leaves)))


def test_the_names_of_what_is_inside() -> None:
    children, _ = children_of(NESTED[3]) or ([], None)
    assert [name for name, _ in children] == ["left", "right"]
