"""Five ways to train, each to the same bits with and without somebody looking."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 4)
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        run = self._inside
        x = checkpoint(run, x, use_reentrant=False) if self.is_checkpointed else run(x)
        return self.head(x.mean((2, 3)))

    def _inside(self, x):
        x = self.drop(self.relu(self.bn(self.conv(x))))
        return nn.functional.dropout(torch.tanh(x), 0.1) + x


def train(kind):
    torch.manual_seed(0)
    model = Net(is_checkpointed=kind == "checkpointed")
    running = torch.compile(model, backend="aot_eager") if kind == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "amp")
    for i in range(8):
        x, labels = torch.randn(6, 3, 12, 12), torch.randint(4, (6,))
        with torch.autocast("cpu", enabled=kind == "amp"):
            loss = nn.functional.cross_entropy(running(x), labels)
        scaler.scale(loss).backward()
        if kind != "accumulation" or i % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return {**model.state_dict(), "rng": torch.get_rng_state()}


@pytest.mark.parametrize("kind", ["plain", "amp", "accumulation", "compiled", "checkpointed"])
def test_weights_and_random_numbers_are_the_same_to_the_last_bit(watching, kind):
    bare, watched = train(kind), {}
    torch._dynamo.reset()
    mute = pytest.warns(UserWarning, match="global hooks") if kind == "compiled" else contextlib.nullcontext()
    with mute:  # which the command does by itself
        heard = watching(lambda: watched.update(train(kind)))
    assert [key for key in bare if not torch.equal(bare[key], watched[key])] == []
    assert len(heard.reports) == (4 if kind == "accumulation" else 8)
    assert all(report.parameters and report.layers for report in heard.reports)
    assert [event[1] for event in heard.events] == (["compiled"] if kind == "compiled" else [])
