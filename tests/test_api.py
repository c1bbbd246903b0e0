"""The Python API: the same engine, from a notebook."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerance import close
from torch import nn

import modelscope_cli
from modelscope_cli.errors import UsageError


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 5)
    )


def test_summary_of_a_module_runs_it_where_it_is(model):
    record = modelscope_cli.summary(model, torch.zeros(2, 3, 8, 8))
    assert record.layers[0].output_shapes == ((2, 5),)
    assert record.run.model.source == "object"
    assert record.totals.macs == 2 * (4 * 36 * 27 + 144 * 5)
    assert modelscope_cli.summary(model, input_shape=(2, 3, 8, 8)).totals == record.totals


def test_observe_sees_every_forward_and_leaves_no_hook(model):
    images = torch.randn(6, 3, 8, 8)
    kept = []
    handle = model[0].register_forward_hook(lambda module, args, output: kept.append(output.clone()))
    with modelscope_cli.observe(model, "conv") as seen:
        model(images[:2])
        model(images[2:])
    handle.remove()
    row = seen.record().layers[0]
    truth = torch.cat(kept).detach().double().numpy()
    assert seen.record().images == 6
    assert row.mean == close(truth.mean())
    assert row.std == close(truth.std())
    assert row.min == np.float32(truth.min())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_observe_leaves_the_mode_and_the_gradients_to_the_caller(model):
    with modelscope_cli.observe(model) as seen:
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert model.training
    assert model[0].weight.grad is not None
    assert [row.name for row in seen.record().layers] == ["0", "1", "2", "3", "4"]


def test_observe_counts_on_after_a_forward_that_raised(model):
    with modelscope_cli.observe(model, "conv") as seen:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 3, 9, 9))
        model(torch.randn(2, 3, 8, 8))
    assert [row.call for row in seen.record().layers] == [0]


@pytest.mark.parametrize("pattern", ["nosuchlayer", "conv@1", "0#1"])
def test_observe_refuses_what_it_cannot_know(model, pattern):
    with pytest.raises(UsageError, match=pattern), modelscope_cli.observe(model, pattern):
        pass


def test_the_example_in_the_readme_runs(capsys):
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(code, {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0
