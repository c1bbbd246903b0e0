"""What is compiled stays as it is: the same bits, no further graph, and nothing of ours is compiled with it."""

import logging

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F


class Whole:
    """A step that is compiled as a whole: pass, loss, backward and optimizer."""

    def __init__(self, model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        self.step = torch.compile(step, backend="eager")


def in_parts(compiled_model, compiled_loss, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = compiled_loss(compiled_model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def make(kind, model, optimizer):
    if kind == "step":
        return Whole(model, optimizer).step
    if kind == "in place":
        model.compile(backend="eager")
        return in_parts(model, F.cross_entropy, optimizer)
    if kind == "loss":
        loss = torch.compile(lambda out, y: F.cross_entropy(out, y) + out.square().mean(), backend="eager")
        return in_parts(model, loss, optimizer)
    whole = torch.compile(model, backend="eager", fullgraph=kind == "one graph")
    return in_parts(whole, F.cross_entropy, optimizer)


def train(kind, n=24):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step, losses = make(kind, model, optimizer), []
    for _ in range(n):
        x = torch.randn(16, 4)
        losses.append(step(x, x[:, :3].argmax(1)).detach())
    graphs = counters["stats"]["unique_graphs"], counters["frames"]["total"], len(counters["graph_break"])
    return torch.stack(losses), [p.detach() for p in model.parameters()], graphs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's own
@pytest.mark.parametrize("kind", ["model", "one graph", "in place", "loss", "step"])
def test_it_is_seen_and_not_disturbed(recorded, caplog, kind):
    bare, seen = train(kind), []
    with caplog.at_level(logging.WARNING):
        record = recorded(lambda: seen.extend(train(kind)))
    assert torch.equal(bare[0], seen[0])
    assert all(map(torch.equal, bare[1], seen[1]))
    assert all(now <= before for before, now in zip(bare[2], seen[2], strict=True)), (bare[2], seen[2])
    assert [one for one in caplog.messages if "modelscope_cli" in one] == []
    assert record.steps in (23, 24)  # of a step that is told by what has changed, the last is seen at the end
    assert {row.name for row in record.parameters} == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert record.loss[0].value[0] == pytest.approx(float(bare[0][0]), rel=1e-6)
    assert ("compiled" in {event.kind for event in record.events}) == (kind != "loss")
    if kind != "loss":
        assert record.reason is not None
        assert "the layers of a compiled model, which are not visible" in record.reason
