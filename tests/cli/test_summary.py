"""`modelscope summary`: every kind of torchvision model, against what torchvision publishes, and every option."""

import pytest
from kinds import SWEEP
from torchvision import models


def family(name):
    return models.get_model_builder(name).__module__.split(".")[2]


# Detection models have to run for real, but not on large images: what they count is the same.
SMALL = "--input-shape 1,3,96,96 --model-arg min_size=96"
FEW = "--model-arg rpn_post_nms_top_n_test=20"


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


def test_a_forward_that_fails_prints_its_error_alone_and_a_table_only_if_asked(run, refused):
    message, _ = refused("summary resnet18 --input-shape 1,5,32,32", 4)
    assert "conv1" in message
    asked = run("summary resnet18 --input-shape 1,5,32,32 --json", expect=4)
    assert asked.json["failed"] == "conv1"


@pytest.mark.parametrize(
    ("column", "least"),
    [("macs", 0), ("params", 0), ("memory", 0), ("saved --train", 0), ("flops:asc", None)],
)
def test_sorted_by_a_cost_layers_that_consist_of_others_come_last(run, column, least):
    printed = run(f"summary resnet18 --sort {column} --input-shape 1,3,64,64")
    key, rows = column.partition(":")[0].split()[0], printed.rows
    outer = {"ResNet", *(row["name"] for row in rows if row["type"] in ("Sequential", "BasicBlock"))}
    is_outer = [row["name"] in outer for row in rows]
    assert is_outer == sorted(is_outer)
    values = [float(row[key]) for row in rows if row["name"] not in outer]
    assert values == sorted(values, reverse=least is not None)
    assert "order: layers that contain others come last" in printed.err


def test_what_runs_inside_no_sublayer_counts_as_a_layer(run):
    first = run("summary vit_b_16 --sort params --top 1 --columns name").rows[0]["name"]
    assert first.endswith("self_attention")  # whose input projection is its own
