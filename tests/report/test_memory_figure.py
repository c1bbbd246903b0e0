"""The figure of `summary --train` against the record that it draws."""

import pytest
from torch import nn

import modelscope_cli as ms
from modelscope_cli.report.summary.figures import draw_memory


def test_the_lines_are_the_levels_in_mib_and_the_names_those_of_the_layers():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    record = ms.summary(net, input_shape=(2, 3, 8, 8), train=True)
    (axes,) = draw_memory(record).axes
    timeline = record.training.timeline
    for phase in ("forward", "backward", "optimizer"):
        (line,) = [one for one in axes.lines if one.get_label() == phase]
        expected = [(n, level.bytes / 2**20) for n, level in enumerate(timeline) if level.phase == phase]
        assert list(zip(*line.get_data(), strict=True)) == [pytest.approx(one) for one in expected]
    labels = [one.get_text() for one in axes.get_xticklabels()]
    assert labels[: len(timeline)] == [level.layer or level.phase for level in timeline]
    assert [*axes.get_xticks()] == [*range(len(timeline))]
