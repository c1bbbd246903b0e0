"""The Python API: the same engine, from a notebook."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerance import close
from torch import nn

import modelscope_cli
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.session import ForwardError


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 5)
    )


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, modelscope_cli; modelscope_cli.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_summary_of_a_name_needs_no_memory_and_has_the_published_parameters():
    record = modelscope_cli.summary("resnet18")
    assert record.run.device == "meta"
    assert record.totals.params == 11_689_512
    assert record.to_dict()["schema"] == "modelscope/summary/1"


def test_summary_of_a_module_runs_it_where_it_is(model):
    record = modelscope_cli.summary(model, torch.zeros(2, 3, 8, 8))
    assert record.layers[0].output_shapes == ((2, 5),)
    assert record.run.model.source == "object"
    assert record.totals.macs == 2 * (4 * 36 * 27 + 144 * 5)
    assert modelscope_cli.summary(model, input_shape=(2, 3, 8, 8)).totals == record.totals


def test_summary_of_a_module_that_raises_says_where(model):
    with pytest.raises(ForwardError, match=r"4 \(Linear\)"):
        modelscope_cli.summary(model, torch.zeros(2, 3, 9, 9))


def test_load_gives_an_ordinary_module_in_eval_mode():
    loaded = modelscope_cli.load("squeezenet1_1", weights="none", num_classes=3)
    assert not loaded.module.training
    assert loaded.module(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


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


def test_records_show_themselves(model):
    record = modelscope_cli.summary(model, torch.zeros(1, 3, 8, 8))
    assert "multiply-adds" in str(record)
    html = record._repr_html_()
    assert html.count("<tr>") == 1 + len(record.layers)


def test_html_escapes_what_users_name():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("<b>x</b>", nn.Identity())

        def forward(self, x):
            return getattr(self, "<b>x</b>")(x)

    assert "<b>x" not in modelscope_cli.summary(Odd(), torch.zeros(1, 3))._repr_html_()


def test_the_example_in_the_readme_runs(capsys):
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(code, {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0
