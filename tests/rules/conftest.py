"""The healthy sample network and ten pictures, one of each class."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from modelscope_cli.analysis.activations.batch_norm import never_saw_a_batch
from modelscope_cli.analysis.health.checkup import gather
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.models.load import load_model
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import Finding
from modelscope_cli.records.run import InputInfo
from modelscope_cli.rules.registry import RULES
from modelscope_cli.rules.rule import judge, needs_of

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="session")
def pictures() -> Tensor:
    """(10, 3, 224, 224), normalised as for ImageNet."""
    spec = importlib.util.spec_from_file_location("shapes_dataset", SAMPLES / "dataset.py")
    dataset = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dataset)
    raw = torch.stack([dataset.render(label, 900 + label, 224) for label in range(10)])
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (raw - mean[:, None, None]) / deviation[:, None, None]


@pytest.fixture
def healthy() -> LoadedModel:
    model, checkpoint = f"{SAMPLES}/tiny_resnet.py:TinyResNet", SAMPLES / "tiny_resnet.safetensors"
    return load_model(ModelRequest(model=model, checkpoint=checkpoint, device="cpu"))


Examine = Callable[..., Evidence]


@pytest.fixture
def examine(pictures: Tensor) -> Examine:
    """Gather all the evidence there is about a model on the pictures."""

    def look(loaded: LoadedModel, module=None, x: Tensor = pictures, needs=None, truth=None) -> Evidence:
        """`truth`: the class of each image; by default its number, as of the pictures."""
        loaded = replace(loaded, module=loaded.module if module is None else module)
        batches = list(x.split(5))
        truths = torch.arange(len(x)).split(5) if truth is None else truth.split(5)
        inputs = Inputs(
            InputInfo("image", (tuple(batches[0].shape),)),
            n_listed=len(x),
            n_batches=len(batches),
            make_batches=lambda: (
                Batch((part,), len(part), truth=lambda n_classes, classes=classes: classes)
                for part, classes in zip(batches, truths, strict=True)
            ),
        )
        every = frozenset().union(*(rule.needs for rule in RULES))
        is_training = never_saw_a_batch(loaded.module)()
        return gather(loaded, inputs, needs or every, is_training=is_training, is_real=True)

    return look


@pytest.fixture
def findings() -> Callable[..., tuple[Finding, ...]]:
    """Judge evidence by every rule; budgets only where they are given."""

    def find(evidence: Evidence, **thresholds: float | str) -> tuple[Finding, ...]:
        assert needs_of(RULES, thresholds)
        return judge(RULES, thresholds, evidence)[0]

    return find
