"""`featuremaps --filters`: the weights of convolutions as images."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.activations.featuremaps import FEW
from modelscope_cli.report.image_tiles import BAND, MARGIN, TITLE, in_colour

NET = "resnet18 --weights none --filters"


def test_a_filter_is_the_weight_or_its_strongest_slice(run, cwd, loaded):
    resnet18, _ = loaded("harbour.jpg", model="resnet18", weights="none")
    run(f"featuremaps {NET} -l conv1 -l layer1.0.conv1 --out out --save-tensors filters.safetensors")
    saved = load_file("filters.safetensors")
    assert torch.equal(saved["conv1"], resnet18.conv1.weight)
    weight = resnet18.layer1[0].conv1.weight.detach().numpy()
    strongest = np.square(weight).sum((2, 3)).argmax(1)
    assert np.array_equal(saved["layer1.0.conv1"].numpy(), weight[np.arange(len(weight)), strongest])


def test_colours_are_those_that_a_filter_reads():
    red, black = torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 2, 2)
    red[0, 0], red[0, 1, 0, 0] = 1, 1
    black[0, :, 1, 1] = 1
    shown = np.asarray(in_colour(torch.cat([red, black]), "channel", 2))
    assert shown[:2, :2].tolist() == [[[255, 255, 0], [255, 0, 0]], [[255, 0, 0], [255, 0, 0]]]
    assert shown[:2, 4:].tolist() == [[[0, 0, 0], [0, 0, 0]], [[0, 0, 0], [255, 255, 255]]]


def test_each_layer_gets_a_grid_and_no_layer_runs(run, cwd):
    outcome = run("featuremaps squeezenet1_0 --weights none --filters --out out --json")
    rows = outcome.json["maps"]
    assert [row["name"] for row in rows if row["type"] != "Conv2d"] == []
    assert {tuple(row["shape"][2:]) for row in rows} == {(7, 7), (3, 3)}
    for row in rows:
        assert row["kind"] == "filters"
        assert row["channels"] == row["shape"][0]
        assert (cwd / "out" / row["file"]).is_file()
    assert "without 17 convolutions of 1 x 1" in outcome.err
    first = Image.open(cwd / "out" / rows[0]["file"])
    assert first.mode == "RGB"
    corner = np.asarray(first)[MARGIN + TITLE + BAND, MARGIN]
    assert len({*corner.tolist()}) > 1


def test_all_layers_of_a_deep_network_are_not_drawn_at_once(run, cwd):
    outcome = run("featuremaps densenet121 --weights none --filters --out out --json")
    assert len(outcome.json["maps"]) == FEW
    assert f"{FEW} of " in outcome.err
    assert "are drawn, the first ones" in outcome.err


def test_transposed_and_grouped_convolutions_have_a_filter_for_each_output_channel(tmp_path):
    net = nn.Sequential(nn.ConvTranspose2d(6, 8, 3, groups=2), nn.Conv2d(8, 4, 3, groups=4))
    record = ms.featuremaps(net, torch.zeros(1, 6, 8, 8), filters=True)
    assert [row.shape for row in record.maps] == [(8, 3, 3, 3), (4, 2, 3, 3)]
    saved = record.save(tmp_path / "filters.safetensors")
    tensors = load_file(tmp_path / "filters.safetensors")
    assert saved.maps == record.maps
    # The gradient of an output channel by the input is its filter, turned around by the convolution's transpose.
    x = torch.zeros(1, 6, 1, 1, requires_grad=True)
    for channel in range(8):
        image = torch.zeros(1, 8, 3, 3)
        for at in range(9):
            image.zero_()[0, channel].view(-1)[at] = 1
            (slope,) = torch.autograd.grad((net[0](x) * image).sum(), x)
            group = slice(3 * (channel // 4), 3 * (channel // 4) + 3)
            assert torch.equal(tensors["0"][channel].flatten(1)[:, at], slope[0, group].flatten())


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--overlay", 2, "'--filters' and '--overlay' cannot be combined"),
        ("--attention", 2, "'--filters' and '--attention' cannot be combined"),
        ("-l relu", 4, "the selected layers have no convolution"),
        ("-l layer2.0.downsample.0", 4, "filters of 1 x 1 are not images"),
        ("-l relu@1", 2, "names calls"),
        ("-l conv1 --channels 99", 4, "no such channel"),
    ],
)
def test_mistakes(run, cwd, options, code, said):
    assert said in run(f"featuremaps {NET} {options} --out out", expect=code).err
    assert not (cwd / "out").exists()
