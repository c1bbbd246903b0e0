"""Which rows and columns a person sees."""

import torch
from torch import nn

from modelscope_cli import watch
from modelscope_cli.report.watch.table import watch_sheet


def record_of(model, scale=1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    with watch(model, optimizer) as watched:
        for _ in range(3):
            model(scale * torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    return watched.record()


def shown(record):
    sheet = watch_sheet(record)
    return [row.name for row in sheet.rows], {column.key for column in sheet.columns if column.is_shown}


def test_an_identity_that_repeats_its_neighbour_is_counted_and_left_out():
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.Identity(), nn.ReLU(), nn.Identity())
    record = record_of(model)
    assert len(record.layers) == 5
    assert shown(record)[0] == ["0", "3"]
    assert ("left out", "3 Identity layers that repeat a neighbour") in watch_sheet(record).facts
    first = nn.Sequential(nn.Identity(), nn.Linear(6, 6))  # it shows what enters
    assert shown(record_of(first))[0] == ["0", "1"]


def test_dead_channels_and_saturation_have_columns_where_there_are_any():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with torch.no_grad():
        model[0].bias[0] = 10
    healthy = shown(record_of(model, 0.1))[1]
    assert not healthy & {"saturated_last"}
    with torch.no_grad():
        model[0].bias[:] = torch.tensor([10.0, -100, 10, 10, 10, 10])
    assert "dead_last" in shown(record_of(model, 0.1))[1]
    with torch.no_grad():
        model[0].bias[:] = 10
    assert not shown(record_of(model, 0.1))[1] & {"dead_last", "saturated_last"}
    assert "saturated_last" in shown(record_of(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), 100.0))[1]
