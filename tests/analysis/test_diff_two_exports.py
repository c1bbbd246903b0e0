"""`diff` of two ONNX files: what they compute counts, not how their nodes and tensors are called or written."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.report.diff.table import answer

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
faults = pytest.importorskip("onnx_faults")
X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    def __init__(self, pool=None, act=None):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), act or nn.ReLU()
        self.pool, self.fc = pool or nn.MaxPool2d(2), nn.Linear(6, 4)

    def forward(self, x):
        y = self.pool(self.act(self.bn(self.conv(x))))
        return self.fc((y + y.mean((2, 3), keepdim=True)).mean((2, 3)))


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net().eval()
        net.bn.running_mean.normal_()
    return net


@pytest.fixture(scope="module")
def file(net, tmp_path_factory):
    file = tmp_path_factory.mktemp("exports") / "a.onnx"
    faults.export(net, X, file, dynamo=False, opset_version=17)
    return file


def with_defaults(graph):
    given = {"Conv": {"auto_pad": "NOTSET"}, "MaxPool": {"storage_order": 0, "auto_pad": "NOTSET"}}
    for node in graph.node:
        for name, value in {**given, "Gemm": {"transA": 0}}.get(node.op_type, {}).items():
            node.attribute.append(onnx.helper.make_attribute(name, value))


def without_implied(graph):
    for node in graph.node:
        kept = [one for one in node.attribute if one.name not in ("kernel_shape", "group")]
        if node.op_type != "MaxPool":
            del node.attribute[:]
            node.attribute.extend(kept)


def renamed(graph):
    names = {one.name: f"w{n}" for n, one in enumerate(graph.initializer)}
    for one in graph.initializer:
        one.name = names[one.name]
    for n, node in enumerate(graph.node):
        node.name = f"n{n}"
        node.input[:] = [names.get(one, one) for one in node.input]


def with_identities(graph):
    for at, node in reversed([*enumerate(graph.node)]):
        if node.op_type in ("Conv", "Relu"):
            output = node.output[0]
            graph.node[at].output[0] = f"{output}_before"
            graph.node.insert(at + 1, onnx.helper.make_node("Identity", [f"{output}_before"], [output]))


def numbered_anew(graph):
    first, second = (one for one in graph.initializer if one.name.startswith("onnx::"))
    old = first.name, second.name
    first.name, second.name = "onnx::Conv_98", old[0]
    names = dict(zip(old, (first.name, second.name), strict=True))
    for node in graph.node:
        node.input[:] = [names.get(one, one) for one in node.input]


def of_constants(graph):
    made = [onnx.helper.make_node("Constant", [], [one.name], value=one) for one in graph.initializer]
    nodes = [*made, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)


@pytest.mark.parametrize(
    "change",
    [with_defaults, without_implied, renamed, numbered_anew, with_identities, of_constants],
    ids=lambda x: x.__name__,
)
def test_another_way_to_write_the_same_graph_is_not_a_difference(change, file, tmp_path):
    model = onnx.load(file)
    change(model.graph)
    onnx.save(model, tmp_path / "b.onnx")
    record = ms.diff(file, tmp_path / "b.onnx")
    assert (record.is_same, [one for one in record.causes if one.kind == "operator"]) == (True, [])


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("norms apart", {"dynamo": False, "training": torch.onnx.TrainingMode.PRESERVE}),
        pytest.param("dynamo", {"dynamo": True}, marks=pytest.mark.slow),
    ],
)
def test_another_exporter_gives_the_same_output_and_another_structure(way, options, net, file, tmp_path):
    folding = {"do_constant_folding": False} if way == "norms apart" else {}
    faults.export(net, X, tmp_path / "b.onnx", **options, **folding)
    record = ms.diff(file, tmp_path / "b.onnx")
    assert (record.is_same, record.run.input.source) == (True, "noise")
    said = "is Relu in A and BatchNormalization in B" if way == "norms apart" else ""
    assert answer(record).startswith("No difference")
    assert said in answer(record)
    ran = ms.diff(file, tmp_path / "b.onnx", X)
    assert (ran.is_same, ran.first_divergence, ran.totals.changed) == (True, None, 0)


FAULTS = {
    "pool": (
        lambda net: setattr(net, "pool", nn.AvgPool2d(2)),
        "(in pool) is MaxPool in A and AveragePool in B",
    ),
    "act": (lambda net: setattr(net, "act", nn.LeakyReLU(0.2)), "(in act) is Relu in A and LeakyRelu in B"),
    "fc": (lambda net: net.fc.weight.data[0].add_(1), "the values, all in output channel 0: fc"),
}


@pytest.mark.parametrize("layer", FAULTS)
@pytest.mark.parametrize("way", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_a_fault_is_named_with_its_layer_whoever_exported_it(layer, way, net, file, tmp_path):
    fault, said = FAULTS[layer]
    other = Net().eval()
    other.load_state_dict(net.state_dict())
    fault(other)
    faults.export(other, X, tmp_path / "b.onnx", dynamo=way == "dynamo")
    record = ms.diff(file, tmp_path / "b.onnx")
    assert (record.is_same, said in answer(record)) == (False, True)
    assert record.tensors is not None or record.first_divergence == layer
    ran = ms.diff(file, tmp_path / "b.onnx", X)
    assert (ran.is_same, ran.first_divergence) == (False, layer)
    assert said in answer(ran)


def test_a_value_inside_that_does_not_reach_the_output_is_told_and_not_a_difference(net, tmp_path):
    for name, pool in (("a", nn.MaxPool2d(2)), ("b", nn.AvgPool2d(2))):
        one = Net(pool).eval()
        one.load_state_dict(net.state_dict())
        one.fc.weight.data.zero_()
        faults.export(one, X, tmp_path / f"{name}.onnx", dynamo=False)
    files = tmp_path / "a.onnx", tmp_path / "b.onnx"
    record = ms.diff(*files)
    assert (record.is_same, record.totals.changed, record.totals.not_tested > 0) == (True, 0, True)
    assert "is MaxPool in A and AveragePool in B" in answer(record)
    assert "the largest difference" not in answer(record)
    assert not ms.diff(*files, X, layer="pool").is_same


def test_files_that_cannot_run_are_compared_as_stored(file, tmp_path):
    model = onnx.load(file)
    model.graph.node[1].domain, model.graph.node[1].op_type = "mine", "Act"
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    onnx.save(model, tmp_path / "b.onnx")
    record = ms.diff(file, tmp_path / "b.onnx")
    assert not record.is_same
    assert [one.kind for one in record.causes] == ["operator", "not_run"]
    assert "what they compute was not compared: " in record.causes[1].message
