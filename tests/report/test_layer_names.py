"""Names of layers beside a figure: the block of each, and where they are cut."""

import pytest

from modelscope_cli.records.naming import block_of
from modelscope_cli.report.layer_axis import LayerGroup, groups_of, layer_names, parameter_names
from modelscope_cli.report.numbers import shortened


@pytest.mark.parametrize(("layer", "block"), [
    ("conv1", ""),
    ("layer1.0.conv1", "layer1.0"),
    ("layer1.0.downsample.0", "layer1.0"),
    ("features.2.0.block.1.0", "features.2.0"),
    ("features.0", "features"),
    ("features.denseblock1.denselayer6.conv2", "features.denseblock1.denselayer6"),
    ("encoder.layers.encoder_layer_11.self_attention.out_proj", "encoder.layers.encoder_layer_11"),
    ("classifier.1", "classifier"),
    ("encoder.ln", "encoder"),
    ("blocks.3.attn.qkv", "blocks.3"),
    ("", ""),
])  # fmt: skip
def test_the_block_of_a_layer_ends_with_the_first_numbers(layer, block):
    assert block_of(layer) == block


def test_rows_of_a_block_that_follow_each_other_are_a_group():
    names = layer_names(["conv1", "layer1.0.conv1", "layer1.0.relu#1", "layer1.1.conv1", "fc"])
    assert groups_of(names) == [
        LayerGroup("", 0, 1),
        LayerGroup("layer1.0", 1, 3),
        LayerGroup("layer1.1", 3, 4),
        LayerGroup("", 4, 5),
    ]
    assert [name.within for name in names] == ["conv1", "conv1", "relu#1", "conv1", "fc"]


def test_a_parameter_is_in_the_block_of_its_layer():
    (name,) = parameter_names(["layer1.0.conv1.weight"])
    assert (name.block, name.within) == ("layer1.0", "conv1.weight")


@pytest.mark.parametrize("length", [33, 34, 35, 200])
def test_a_long_name_keeps_both_ends(length):
    name = "a" * 10 + "b" * (length - 20) + "c" * 10
    short = shortened(name)
    assert len(short) == min(length, 34)
    assert short[:10] == name[:10]
    assert short[-10:] == name[-10:]


def test_a_name_is_one_line():
    assert [name.text for name in layer_names(["new\nline.0"])] == ["new\\nline.0"]
    assert [name.text for name in parameter_names(["new\nline.weight"])] == ["new\\nline.weight"]
