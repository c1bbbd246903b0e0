"""`modelscope models`: every name, with what torchvision publishes."""

import pytest
from torchvision import models


def test_every_name_is_listed_once(run):
    assert run("models").column("name") == sorted(models.list_models())
    assert run("summary --list").column("name") == sorted(models.list_models())


@pytest.mark.parametrize("pattern", ["resnet", "RESNET", "vit_", "_v3_"])
def test_a_word_is_a_part_of_the_name(run, pattern):
    expected = [name for name in sorted(models.list_models()) if pattern.lower() in name]
    assert run(f"models --columns name {pattern}").column("name") == expected
    assert run(f"summary --list {pattern}").column("name") == expected


@pytest.mark.parametrize("pattern", ["vit_*", "*_v2", "resnet?8", "efficientnet_b[01]"])
def test_a_glob_is_the_whole_name(run, pattern):
    assert run(f"models '{pattern}'").column("name") == sorted(models.list_models(include=pattern))


def test_the_figures_are_torchvisions(run):
    for row in run("models --json").json["models"]:
        weights = models.get_model_weights(row["name"])
        assert row["params"] == weights.DEFAULT.meta["num_params"]
        assert row["macs"] / 1e9 == pytest.approx(weights.DEFAULT.meta["_ops"], abs=1e-6)
        own = set(weights.__members__) - {"DEFAULT"}
        assert set(row["weights"]) >= own
        # Quantized models are built from the weights of the plain ones, too.
        assert set(row["weights"]) == own or row["family"] == "quantization"
        assert getattr(weights, row["default_weights"]) is weights.DEFAULT


def test_input_shapes_are_those_the_models_take(run):
    shapes = {row["name"]: row["input_shapes"] for row in run("models --json").json["models"]}
    assert shapes["resnet34"] == [[1, 3, 224, 224]]
    assert shapes["inception_v3"] == [[1, 3, 299, 299]]
    assert shapes["efficientnet_b7"] == [[1, 3, 600, 600]]
    assert len(shapes["raft_large"]) == 2
    assert len(shapes["r3d_18"][0]) == 5
    assert shapes["fasterrcnn_resnet50_fpn"] == []
