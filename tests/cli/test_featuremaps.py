"""`modelscope featuremaps`: which pictures are written, what is on them, and where."""

import pytest
import torch
from collected import outputs_of
from safetensors.torch import load_file
from tolerance import A_NETWORK, assert_close


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def resnet18(loaded):
    """resnet18 as the command builds it, and the image as it prepares it."""
    return loaded("harbour.jpg", model="resnet18", weights="none")


def shown(run, options):
    (row,) = run(f"featuremaps {{star}} {{healthy}} -l block3.conv1 {options} --json").json["maps"]
    return row


def test_channels_are_spread_evenly(run):
    assert shown(run, "")["shown"] == list(range(64))
    assert shown(run, "--max-channels 4")["shown"] == [0, 21, 42, 63]
    assert shown(run, "--max-channels 1000")["shown"] == list(range(64))


def test_channels_are_picked_by_number_in_the_order_they_are_typed(run, cwd):
    assert shown(run, "--channels 7,3,10..12,3")["shown"] == [7, 3, 10, 11, 12]
    assert shown(run, "--channels 60..200")["shown"] == [60, 61, 62, 63]
    assert shown(run, "--channels 60..200")["note"] == "no channel 200"
    outcome = run("featuremaps {star} {healthy} -l block3.conv1 --channels 7 --out one --json")
    assert outcome.json["maps"][0]["shown"] == [7]


@pytest.mark.parametrize(("options", "code", "said"), [
    ("--channels 3,x", 2, "--channels '3,x': 'x' is not a channel such as 3 or 0..15"),
    ("--channels 9..3", 2, "'9..3' counts backwards"),
    ("--channels 64..70", 4, "block3.conv1: it has no such channel, only 0 to 63"),
])  # fmt: skip
def test_channels_that_are_none_are_refused(run, cwd, options, code, said):
    outcome = run(f"featuremaps {{star}} {{healthy}} -l block3.conv1 {options} --out here", expect=code)
    assert said in outcome.err
    assert not (cwd / "here").exists()


def test_a_deep_network_gives_one_grid_a_stage_and_says_so(run, cwd):
    outcome = run("featuremaps {star} -m resnet18 -w none --size 64 --out here --json")
    rows = outcome.json["maps"]
    assert [row["name"] for row in rows] == ["relu", *(f"layer{n}.1.relu" for n in (1, 2, 3, 4))]
    assert [row["shape"][1:] for row in rows] == [[32, 32], [16, 16], [8, 8], [4, 4], [2, 2]]
    assert [row["call"] for row in rows] == [0, 1, 1, 1, 1]
    assert outcome.json["outputs"] > 40
    assert f"{len(rows)} of {outcome.json['outputs']} outputs are drawn, one per stage;" in outcome.err
    asked = run("featuremaps {star} -m resnet18 -w none --size 64 -l conv --json").json
    assert len(asked["maps"]) == asked["outputs"] == 20


def test_saved_tensors_are_the_layers_own_outputs(run, cwd, resnet18):
    run(
        "featuremaps resnet18 {harbour} -w none -l 'layer1.*conv?' -l bn1 -l fc --max-channels 3 "
        "--save-tensors all.safetensors"
    )
    saved = load_file(cwd / "all.safetensors")
    module, args = resnet18
    truth = {name: output[0] for (name, call), output in outputs_of(module, *args).items() if call == 0}
    assert sorted(saved) == sorted(["bn1", "fc", *(f"layer1.{i}.conv{n}" for i in range(2) for n in (1, 2))])
    for name, tensor in saved.items():
        assert_close(tensor, truth[name], A_NETWORK)  # bn1, too, though an in-place ReLU follows it


OWN_TRANSFORMER = """
import torch
from torch import nn
from torchvision.models import VisionTransformer

def vit():
    return VisionTransformer(64, 16, 2, 2, 16, 32, num_classes=3)

class Registers(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.registers = nn.Conv2d(3, 8, 16, 16), nn.Parameter(torch.randn(1, 4, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        return self.norm(torch.cat([self.registers.expand(len(x), -1, -1), tokens], 1))[:, 4:].mean(1)
"""

NOTHING = """
class Nothing(nn.Module):
    def forward(self, x):
        return "a word"
"""


@pytest.mark.parametrize(("line", "said"), [
    ("{tiny} --attention", "no attention in the selected layers"),
    ("-m own.py:vit -w none --size 64 --attention -l conv_proj", "no attention in the selected layers"),
    ("-m own.py:vit -w none --size 64 -l *.out_proj", "no selected layer ran: encoder.layers.encoder_layer_0."),
    ("-m own.py:Nothing -w none", "no layer of the model outputs a tensor, so there is nothing to draw"),
])  # fmt: skip
def test_where_nothing_can_be_drawn_a_sentence_says_why(run, cwd, line, said):
    (cwd / "own.py").write_text(OWN_TRANSFORMER + NOTHING)
    outcome = run(f"featuremaps {{star}} {line} --out here", expect=4)
    assert f"error: {said}" in outcome.err
    assert not (cwd / "here").exists()


def test_layers_that_cannot_be_drawn_are_rows_that_say_why(run, cwd):
    (cwd / "own.py").write_text(
        "from torch import nn\n"
        "class Mean(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.mean()\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.mean = nn.Conv2d(3, 4, 3), Mean()\n"
        "    def forward(self, x):\n"
        "        return self.mean(self.conv(x))\n"
    )
    outcome = run("featuremaps {star} -m own.py:Own -w none --out here --json")
    conv, mean = outcome.json["maps"]
    assert conv["problem"] is None
    assert (mean["file"], mean["problem"]) == (None, "a single number or a bare list cannot be drawn")
    assert files(cwd / "here") == [conv["file"], "contact_sheet.png", "report.html", "report.json"]
    outcome = run("featuremaps {star} -m own.py:Own -w none -l mean --out there", expect=4)
    assert "error: no selected layer has an output that can be drawn" in outcome.err
    assert not (cwd / "there").exists()


def test_tensors_go_into_a_file_of_safetensors(run, cwd):
    result = run("featuremaps {star} {healthy} -l conv --save-tensors kept.pt", expect=2)
    assert "--save-tensors kept.safetensors" in result.err
    assert not (cwd / "kept.pt").exists()


def test_layers_with_nan_say_how_many_values(run, cwd, samples):
    state = load_file(samples / "tiny_resnet.safetensors")
    state["block3.conv1.weight"][5] = torch.nan
    torch.save(state, "nan.pt")
    net = "{samples}/tiny_resnet.py:TinyResNet {star} --size 64 -l block3 -l block3.* -l head --json"
    maps = run(f"featuremaps {net} -c nan.pt").json["maps"]
    notes = {row["name"]: row["note"] for row in maps}
    first = next(row for row in maps if "NaN" in row["note"] and row["name"] != "block3")
    assert first["name"] == "block3.conv1"
    assert first["note"].startswith(f"{first['shape'][1] * first['shape'][2]} values NaN or infinite")
    assert "NaN" in notes["head"]
    healthy = run(f"featuremaps {net} -c {{samples}}/tiny_resnet.safetensors").json["maps"]
    assert not any("NaN" in row["note"] for row in healthy)
