"""Layers that no forward calls and that take part: lists, modules used by a method, and those used by a tensor."""

import copy

import torch
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.records.summary import INSIDE, USED


class Rope(nn.Module):
    """Called by a method of its own, and holds a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.rand(4))

    def get(self, n: int) -> Tensor:
        return torch.cos(torch.arange(n)[:, None].to(self.frequencies) * self.frequencies)


class Projector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def project(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Uncalled(nn.Module):
    """Every kind of it beside what is idle indeed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(9, 9, 1)])
        self.heads = nn.ModuleDict({"used": nn.Linear(4, 2), "idle": nn.Linear(4, 2)})
        self.nested = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4)])])
        self.steps = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.rope, self.projector = Rope(), Projector()
        self.query = nn.Embedding(3, 4)
        self.extra = nn.ParameterList([nn.Parameter(torch.rand(4))])
        self.embed, self.tied = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.tied.weight = self.embed.weight
        self.idle = nn.ModuleList([nn.Linear(5, 5)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[:2]:
            x = block(x)
        for step in self.steps:
            x = step(x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens * self.rope.get(tokens.shape[1]) + self.query.weight.sum(0) + self.extra[0]
        tokens = self.projector.project(self.nested[0][0](self.embed(tokens)))
        return self.heads["used"](tokens.mean(1))


X = torch.ones(1, 3, 8, 8)


def test_only_what_takes_no_part_is_not_called() -> None:
    rows = {row.name: row for row in ms.summary(Uncalled(), X).layers}
    notes = {name: row.note for name, row in rows.items() if not row.executed}
    assert {name for name, note in notes.items() if note == INSIDE} == {
        "blocks", "heads", "nested", "nested.0", "steps", "projector",
    }  # fmt: skip
    assert {name for name, note in notes.items() if note == USED} == {"rope", "query", "extra", "tied"}
    assert {name for name, note in notes.items() if note not in (INSIDE, USED)} == {
        "blocks.2", "heads.idle", "idle", "idle.0",
    }  # fmt: skip


def test_the_cost_of_a_list_is_that_of_what_is_called_in_it() -> None:
    record = ms.summary(Uncalled(), X)
    macs = {row.name: row.macs for row in record.layers}
    assert macs["blocks"] == 6 * 6 * (4 * 3 * 9 + 4 * 4) == macs["blocks.0"] + macs["blocks.1"]
    assert macs["heads"] == macs["heads.used"] == 4 * 2
    assert macs["nested"] == macs["nested.0"] == macs["nested.0.0"] == 36 * 4 * 4
    assert macs["projector"] == 36 * 4 * 4
    assert macs["idle"] == macs["tied"] == 0
    at_depth_1 = [row for row in ms.summary(Uncalled(), X, depth=1).layers if row.depth == 1]
    assert sum(row.macs for row in at_depth_1) == record.totals.macs


class Inside(nn.Module):
    """Calls one entry of its list inside another, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4)])
        self.parts.append(nn.Sequential(self.parts[0], nn.Linear(4, 4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[0](self.parts[1](x))


def test_what_runs_inside_another_entry_counts_once() -> None:
    rows = ms.summary(Inside(), torch.ones(1, 4)).layers
    assert next(row.macs for row in rows if row.name == "parts") == rows[0].macs == 3 * 16


def test_stats_and_grads_name_only_what_takes_no_part() -> None:
    model = Uncalled().eval()
    before = copy.deepcopy(model.state_dict())
    for record in (ms.stats(model, X), ms.grads(model, X)):
        assert set(record.not_called) == {"blocks.2", "heads.idle", "idle.0"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # Who asks for a layer wants to know that it is not called.
    assert ms.stats(model, X, layer=["query", "linear"]).not_called[0] == "heads.idle"
    assert "query" in ms.stats(model, X, layer=["query", "linear"]).not_called
