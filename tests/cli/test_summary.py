"""`modelscope summary`: every kind of torchvision model, against what torchvision publishes, and every option."""

import pytest
from kinds import SWEEP
from torchvision import models

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError


def family(name):
    return models.get_model_builder(name).__module__.split(".")[2]


# Detection models have to run for real, but not on large images: what they count is the same.
SMALL = "--input-shape 1,3,96,96 --model-arg min_size=96"
FEW = "--model-arg rpn_post_nms_top_n_test=20"

NESTED = """
from torch import nn

class Twice(nn.Module):
    \"\"\"One ReLU used twice, and a layer the forward does not use.\"\"\"
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 8)
        self.relu, self.idle = nn.ReLU(), nn.Linear(3, 3)
    def forward(self, x):
        return self.relu(self.second(self.relu(self.first(x))))
"""


def is_below(name, ancestor):
    return name.startswith(f"{ancestor}.") or (not ancestor and name != "")


@pytest.fixture
def document(run):
    return lambda line: run(f"summary {line} --json").json


@pytest.mark.parametrize("name", SWEEP)
def test_every_kind_of_torchvision_model(document, name):
    is_large = family(name) == "detection" and not name.startswith("ssd")
    options = f"{SMALL} {FEW if 'rcnn' in name else ''}" if is_large else ""
    found = document(f"{name} {options}")
    layers, totals = found["layers"], found["totals"]
    assert found["model"] == {**found["model"], "source": "zoo", "name": name}
    root, rest = layers[0], layers[1:]
    assert rest
    assert root["name"] == ""
    assert (root["macs"], root["flops"]) == (totals["macs"], totals["flops"])
    assert totals["calls"] == sum(row["executed"] for row in layers)
    assert sorted(row["order"] for row in layers if row["executed"]) == list(range(1, totals["calls"] + 1))
    assert totals["params"] >= totals["trainable_params"]

    published = models.get_model_weights(name).DEFAULT.meta["num_params"]
    if name == "googlenet":  # its published count leaves out the auxiliary heads, which it has all the same
        heads = sum(row["params"] for row in layers if row["name"] in {"aux1", "aux2"})
        assert totals["params"] == published + heads
    elif family(name) == "detection":
        # Built for pretrained weights, their backbones have frozen batch norms, which own no parameters.
        norms = [row for row in layers if row["type"] == "BatchNorm2d" and row["call"] == 0]
        assert 0 <= totals["params"] - published <= sum(row["params"] for row in norms)
    elif family(name) != "quantization":  # packed weights are no parameters
        assert totals["params"] == published


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "swin_t", "googlenet", "vit_b_16"])
def test_parameters_of_the_layers_add_up(document, name):
    layers = document(name)["layers"]
    params = {row["name"]: row["params"] for row in layers if row["call"] == 0}
    own = {
        ancestor: total - sum(n for child, n in params.items() if is_child(child, ancestor, params))
        for ancestor, total in params.items()
    }
    assert min(own.values()) >= 0
    assert sum(own.values()) == params[""]
    if name == "resnet18":
        assert sum(row["params"] for row in layers if row["is_leaf"] and row["call"] == 0) == params[""]


def is_child(name, parent, names):
    if not is_below(name, parent):
        return False
    between = (other for other in names if is_below(name, other) and is_below(other, parent))
    return next(between, None) is None


def test_the_columns_add_up_to_the_printed_totals(run, document):
    totals, table = document("{TINY}")["totals"], run("summary {TINY} --format table").out
    root, *rows = run("summary {TINY}").rows
    innermost = [row for row in rows if row["type"] != "Block"]
    counted_once = [row for row in innermost if "#" not in row["name"]]
    for some, key, total in [
        (counted_once, "params", "params"),
        (counted_once, "trainable", "trainable_params"),
        (innermost, "macs", "macs"),
        (innermost, "flops", "flops"),
        (innermost, "memory", "activation_bytes"),
    ]:
        assert sum(int(row[key]) for row in some) == totals[total]
        assert int(root[key]) == totals[total] or key == "memory"
    assert f"parameters     {totals['params']:,} ({totals['trainable_params']:,} trainable)" in table


def test_published_multiply_adds(document):
    for name in ["resnet34", "vit_b_16"]:
        published = models.get_model_weights(name).DEFAULT.meta["_ops"]
        assert document(name)["totals"]["macs"] / 1e9 == pytest.approx(published, abs=0.001)


def test_batch_scales_work_and_memory_and_nothing_else(document):
    one, three = (document(f"resnet18 --batch {n}") for n in (1, 3))
    for key in ["macs", "flops", "activation_bytes"]:
        assert three["totals"][key] == 3 * one["totals"][key]
    for key in ["params", "param_bytes", "buffer_bytes", "layers", "calls"]:
        assert three["totals"][key] == one["totals"][key]
    assert three["input"]["shape"] == [[3, 3, 224, 224]]
    assert three["layers"][1]["output_shapes"] == [[3, 64, 112, 112]]


def test_depth_layer_and_exclude_choose_rows_and_leave_the_totals(document):
    whole = document("resnet18")
    for options, kept in [
        ("--depth 0", lambda row: row["depth"] == 0),
        ("--depth 1", lambda row: row["depth"] <= 1),
        ("--layer conv", lambda row: row["type"] == "Conv2d"),
        ("-l conv -l fc", lambda row: row["type"] in {"Conv2d", "Linear"}),
        ("-l conv --exclude 'layer*'", lambda row: row["name"] == "conv1"),
        ("-l layer1.0.relu#1", lambda row: (row["name"], row["call"]) == ("layer1.0.relu", 1)),
        ("--exclude type:ReLU", lambda row: row["type"] != "ReLU"),
    ]:
        found = document(f"resnet18 {options}")
        assert found["layers"] == [row for row in whole["layers"] if kept(row)]
        assert found["totals"] == whole["totals"]


def test_names_are_whole_where_what_a_layer_is_in_is_not_shown(run):
    found = run(
        "summary resnet18 -l 'layer1.0' -l 'layer1.0.conv?' -l layer2.0.conv1 --columns name --format table"
    )
    table = found.out.split("\n\n")[1]
    names = [line.rstrip() for line in table.splitlines()[1:]]
    assert names == ["layer1.0", "  conv1", "  conv2", "layer2.0.conv1"]


def test_freeze(document):
    found = document("resnet18 --freeze layer1 --freeze conv1")
    frozen = {"conv1", "layer1"}
    trainable = {row["name"]: row["trainable_params"] for row in found["layers"]}
    params = {row["name"]: row["params"] for row in found["layers"]}
    for name, n in params.items():
        is_frozen = name in frozen or is_below(name, "layer1")
        assert name == "" or trainable[name] == (0 if is_frozen else n)
    assert found["totals"]["trainable_params"] == params[""] - params["conv1"] - params["layer1"]


def test_reused_and_uncalled_layers(run, cwd):
    (cwd / "nested.py").write_text(NESTED)
    line = "summary nested.py:Twice --input-shape 1,8"
    layers = {(row["name"], row["call"]): row for row in run(f"{line} --json").json["layers"]}
    assert [name for name, call in layers if call] == ["relu"]
    assert layers["relu", 1]["calls"] == 2
    assert (layers["idle", 0]["executed"], layers["idle", 0]["order"]) == (False, None)
    assert layers["", 0]["params"] == 8 * 6 + 6 + 6 * 8 + 8 + 3 * 3 + 3
    assert run(line).column("name") == ["Twice", "first", "relu", "second", "relu#1", "idle"]
    lines = run(f"{line} --format table").out.splitlines()
    assert [line.split()[0] for line in lines if line.strip().startswith("relu")] == ["relu", "relu#1"]
    assert any(line.startswith("#1 ") and "1 layer called more than once" in line for line in lines)
    assert "not called     idle: not with this input" in lines


def test_a_forward_that_needs_values_is_run_for_real_and_says_so(run, cwd):
    (cwd / "own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.a(x) if x.sum().item() < 1e9 else x\n"
    )
    outcome = run("summary own.py:Own --input-shape 2,4 --json")
    assert "warning: run on the CPU with real values: " in outcome.err
    assert [warning["code"] for warning in outcome.json["warnings"]] == ["real_forward"]
    assert outcome.json["device"] == "cpu"
    assert run("summary resnet18 --json").json["device"] == "meta"


CHECKED = """
import torch
from torch import nn

class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        print("built")
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        assert x.shape[2] == 33, "of another size"
        return self.conv(x)

class Misfit(Checked):
    def forward(self, x):
        return self.conv(x[:, :2])

class Two(Checked):
    def forward(self, x, y):
        return self.conv(x) + y

class Valued(Checked):
    def forward(self, x):
        return self.conv(x) if x.sum() != 0.5 else x
"""


@pytest.mark.parametrize(("name", "times"), [("Checked", 1), ("Misfit", 1), ("Two", 1), ("Valued", 2)])
def test_what_would_fail_with_values_too_is_not_tried_twice(tmp_path, capfd, name, times):
    (tmp_path / "net.py").write_text(CHECKED)
    try:
        ms.summary(f"{tmp_path / 'net.py'}:{name}", input_shape=(1, 3, 32, 32))
    except ModelscopeError as error:
        assert times == 1
        said = "needs more arguments" if name == "Two" else "forward raised"
        assert said in error.message  # noqa: PT017 - that nothing was raised is as good
    assert capfd.readouterr().err.count("built") == times
