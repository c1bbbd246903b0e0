"""While a CUDA graph is captured nothing is looked at: a number that is read would end the capture.

Only the calls that begin and end a capture are made; that watching adds no operator then keeps a real one whole.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

N_BEFORE, N_CAPTURED, N_AFTER = 3, 2, 6


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def train(clip):
    """Return the operators of the steps that are captured."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    captured = Operators()

    def steps(n):
        for _ in range(n):
            x = torch.randn(16, 4)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    steps(N_BEFORE)
    graph = torch.cuda.CUDAGraph
    graph.capture_begin(None, pool=(0, 0))
    with captured:
        steps(N_CAPTURED)
    graph.capture_end(None)
    steps(N_AFTER)
    return captured.names


@pytest.mark.parametrize("clip", [False, True])
def test_nothing_is_added_to_a_captured_step(recorded, monkeypatch, clip):
    for name in ("capture_begin", "capture_end"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, lambda graph, **_: None)
    bare, seen = train(clip), []
    record = recorded(lambda: seen.extend(train(clip)))
    assert seen == bare
    assert len(bare) > 10
    assert record.steps == N_BEFORE + N_AFTER
    told = [event.message for event in record.events if event.kind == "captured"]
    assert told == ["a CUDA graph was captured: the steps that it replays are not visible"]
