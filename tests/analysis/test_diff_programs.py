"""`diff` of a model and what becomes of it: ONNX files, programs of torch.export, compiled, quantised. Held against
onnxruntime run by hand, `verify_onnx_program`, torchao's own error and brute force."""

import copy
import dataclasses
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.diff import count_up

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
faults = pytest.importorskip("onnx_faults")


class Net(nn.Module):
    """A convolution with a norm to fold, a layer called twice, a resize between layers, and a norm of its own."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.act = nn.GELU()
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.conv3 = nn.Conv2d(8, 12, 1)
        self.norm, self.fc = nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, x):
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)))
        x = self.conv3(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False))
        return self.fc(self.norm(x.mean((2, 3))))


def made():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net().eval()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.3, 2)
    return net


NET = made()
X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    faults.export(NET, X, None, dynamo=True).save(path)
    return path


@pytest.fixture
def planted(file):
    """Return a function that changes the file and gives the record of its diff."""

    def plant(change):
        model = onnx.load(file)
        change(model)
        changed = file.parent / "changed.onnx"
        onnx.save(model, changed)
        return ms.diff(NET, changed, X)

    return plant


def test_an_export_is_the_same_layer_by_layer(file):
    record = ms.diff(NET, file, X)
    assert record.is_same
    assert record.first_divergence is None
    assert record.matched_by == "the scopes in the file"
    found = faults.statuses(record)
    assert found.pop("conv2") == "not tested"  # folded into its norm
    assert set(found.values()) <= {"same", "not tested"}
    folded = next(row for row in record.layers if row.name == "bn2")
    assert folded.matched == "with conv2 folded in"
    assert record.totals.same + record.totals.not_tested == len(record.layers)


def test_the_largest_difference_is_that_of_torchs_own_verification(tmp_path):
    from torch.onnx.verification import verify_onnx_program

    worse, path = copy.deepcopy(NET), tmp_path / "net.onnx"
    program = faults.export(worse, X, None, dynamo=True)
    program.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (checked,) = verify_onnx_program(program, (X,))
    record = ms.diff(worse, path, X)
    assert checked.max_abs_diff < 1e-5
    assert record.layers[-1].max_abs < 1e-5
    with torch.no_grad():
        worse.fc.bias[3] += 0.25
    record = ms.diff(worse, path, X)
    assert record.layers[-1].max_abs == pytest.approx(0.25, abs=1e-4)
    assert record.first_divergence == "fc"


def test_an_older_exporter_is_matched_by_the_names_of_nodes_and_without_these_by_value(tmp_path):
    path = tmp_path / "old.onnx"
    faults.export(NET, X, path, dynamo=False)
    record = ms.diff(NET, path, X)
    assert record.is_same
    assert record.matched_by == "the names of its nodes"
    model = onnx.load(path)
    for n, node in enumerate(model.graph.node):
        node.name = f"n{n}"
    onnx.save(model, path)
    record = ms.diff(NET, path, X)
    assert record.is_same
    assert record.matched_by.startswith("shape and value, in execution order")
    assert record.totals.same >= 6
    assert any(row.matched and row.matched.startswith("by shape and value") for row in record.layers)


@pytest.mark.parametrize(("fault", "kind", "layer"), [
    (faults.one_weight, "weights", "conv3"),
    (faults.one_folded_weight, "weights", "conv2"),
    (faults.half_weights, "cast", "conv3"),
    (faults.half, "cast", "conv3"),
    (faults.epsilon, "epsilon", "norm"),
    (faults.turned, "axis_order", None),
    (faults.no_activation, "missing_node", "act#1"),
    (faults.swapped_classes, "class_order", "fc"),
    (faults.swapped_channels, "channel_order", None),
    (faults.other_mean, "preprocessing", None),
    (faults.other_range, "input_range", None),
])  # fmt: skip
def test_a_planted_fault_is_named_with_its_layer(planted, fault, kind, layer):
    before = copy.deepcopy(NET.state_dict())
    record = planted(fault)
    assert [(cause.kind, cause.layer) for cause in record.causes][:1] == [(kind, layer)]
    assert all(torch.equal(value, before[name]) for name, value in NET.state_dict().items())


class Folded(nn.Module):
    """Norms behind a convolution, a depthwise and a transposed one."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.deep, self.bn_deep = nn.Conv2d(6, 6, 3, groups=6, bias=False), nn.BatchNorm2d(6)
        self.up, self.bn_up = nn.ConvTranspose2d(6, 5, 2, stride=2, bias=False), nn.BatchNorm2d(5)

    def forward(self, x):
        x = F.gelu(self.bn(self.conv(x)))
        return F.gelu(self.bn_up(self.up(F.gelu(self.bn_deep(self.deep(x))))))


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """Return the model, and the file it was exported to."""
    torch.manual_seed(5)
    net = Folded().eval()
    for norm in (net.bn, net.bn_deep, net.bn_up):
        norm.running_mean.normal_(0, 0.3)
        norm.running_var.uniform_(0.3, 2)
        nn.init.normal_(norm.bias)
    file = tmp_path_factory.mktemp("folded") / "folded.onnx"
    faults.export(net, X, None, dynamo=True).save(file)
    return net, file


def noise(tensor):
    tensor += 0.2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))


def of_one_channel(tensor):
    noise(tensor[2])


def larger(tensor):
    tensor[1:3] *= 1.7


@pytest.mark.parametrize("change", [of_one_channel, larger])
@pytest.mark.parametrize(("tensor", "layer"), [
    ("conv.weight", "conv"),
    ("deep.weight", "deep"),
    ("up.weight", "up"),
    ("bn.running_var", "bn"),
    ("bn_deep.weight", "bn_deep"),
    ("bn_up.running_var", "bn_up"),
    ("bn.running_mean", "bn"),
    ("bn_deep.bias", "bn_deep"),
])  # fmt: skip
def test_a_changed_convolution_is_told_from_its_norm(folded, change, tensor, layer):
    net, file = folded
    other = copy.deepcopy(net)
    with torch.no_grad():
        change(other.state_dict()[tensor])
        other.bn.running_var.abs_(), other.bn_up.running_var.abs_()
    (cause, *_) = ms.diff(other, file, X).causes
    assert (cause.kind, cause.layer) == ("weights", layer)
    assert tensor in cause.message
    assert cause.hint == "export again from the weights of A"
    shape = {**dict(net.named_parameters()), **dict(net.named_buffers())}[tensor].shape
    assert f"of {shape.numel()} values" in cause.message


def test_nothing_is_to_be_exported_again_where_nothing_was_exported():
    other = copy.deepcopy(NET)
    with torch.no_grad():
        noise(other.conv2.weight)
    (cause, *_) = ms.diff(NET, other, X).causes
    assert (cause.kind, cause.layer) == ("weights", "conv2")
    assert "export" not in cause.hint


def test_a_weight_is_named_even_where_no_output_shows_it(planted):
    def change(model):
        changed = faults.values(model, "fc.weight")
        changed[0, 0] *= 1 + 2e-5
        faults.put(model, "fc.weight", changed)

    record = planted(change)
    assert record.first_divergence is None
    assert [(cause.kind, cause.layer) for cause in record.causes] == [("weights", "fc")]
    assert record.is_same  # within the tolerance, and told all the same


def test_a_head_with_another_number_of_classes_is_named(file):
    wider = copy.deepcopy(NET)
    wider.fc = nn.Linear(12, 7)
    record = ms.diff(wider, file, X)
    assert [row.status for row in record.layers if row.name == "fc"] == ["reshaped"]
    (cause,) = record.causes
    assert (cause.layer, cause.message) == (
        "fc",
        "fc.weight is 7x12 in A and 10x12 in B: a different number of classes",
    )


def test_objects_of_python(file, tmp_path):
    program = torch.export.export(NET, (X,))
    record = ms.diff(NET, program, X)
    assert record.is_same
    assert record.totals.same == len(record.layers)
    path = tmp_path / "net.pt2"
    torch.export.save(program, path)
    assert ms.diff(NET, path, X).totals == record.totals
    other = made()
    with torch.no_grad():
        other.conv3.weight[1, 2] += 0.5
    found = ms.diff(other, program, X)
    assert (found.first_divergence, found.causes[0].kind) == ("conv3", "weights")


def _in_train_mode(net):
    net.train()


def _with_another_weight(net):
    net.conv3.weight[1, 2] += 0.5


def _with_another_eps(net):
    net.bn2.eps = 0.1


def _with_another_activation(net):
    net.act = nn.ReLU()


@pytest.mark.parametrize(("change", "first", "causes"), [
    (_in_train_mode, "bn1", [("training_mode", None)]),
    (_with_another_weight, "conv3", [("weights", "conv3")]),
    (_with_another_eps, "bn2", [("epsilon", "bn2")]),
    (_with_another_activation, "act", None),
])  # fmt: skip
def test_what_a_program_changes_is_found_from_either_side(tmp_path, change, first, causes):
    other = made()
    with torch.no_grad():
        change(other)
    x = X.expand(2, -1, -1, -1) + torch.arange(2)[:, None, None, None]
    torch.export.save(torch.export.export(other, (x,)), tmp_path / "net.pt2")
    torch.export.save(torch.export.export(NET, (x,)), tmp_path / "a.pt2")
    for a in (NET, str(tmp_path / "a.pt2")):
        record = ms.diff(a, str(tmp_path / "net.pt2"), x)
        assert record.first_divergence == first
        if causes is not None and a is NET:
            assert [(cause.kind, cause.layer) for cause in record.causes] == causes


@pytest.mark.parametrize(("b", "keywords", "words"), [
    ("nowhere.onnx", {}, "no ONNX file"),
    ("net.onnx", {"b_dtype": "bfloat16"}, "an exported model"),
    ("net.onnx", {"b_mode": "train"}, "run as a whole"),
    ("cut.onnx", {}, "damaged or truncated"),
])  # fmt: skip
def test_what_cannot_be_compared_is_said(file, b, keywords, words):
    (file.parent / "cut.onnx").write_bytes(file.read_bytes()[:2000])
    with pytest.raises((CannotRunError, UsageError), match=words):
        ms.diff(NET, file.parent / b, X, **keywords)


def test_inputs_of_another_shape_and_other_models_are_said(file):
    with pytest.raises(CannotRunError, match="takes 1x3x16x16"):
        ms.diff(NET, file, torch.randn(1, 3, 24, 24))
    assert ms.diff(NET, file, torch.randn(3, 3, 16, 16)).is_same  # piece by piece
    other = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10)).eval()
    assert ms.diff(other, file, X).causes[0].kind == "other_model"
    assert ms.diff(NET, file).run.input.shape == ((1, 3, 16, 16),)  # noise, of the size that it states


def test_an_output_that_was_not_compared_is_neither_the_same_nor_different():
    from modelscope_cli.report.diff.table import answer

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    whole = ms.diff(model, copy.deepcopy(model), torch.randn(2, 4))
    rows = tuple(
        dataclasses.replace(row, status="same" if row.name else "not tested") for row in whole.layers
    )
    part = dataclasses.replace(whole, layers=rows, totals=count_up(rows))
    assert (part.outcome, part.is_same) == ("not tested", False)
    assert answer(part).startswith("Not tested: B has no value for the output of A")


def test_no_cause_is_named_for_what_is_alike(tmp_path):
    """A norm without statistics uses the batch in eval mode as well; a square weight may be stored transposed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 4, 1)
        )
        square = nn.Linear(8, 8).eval()
    other = copy.deepcopy(net.eval())
    with torch.no_grad():
        other[2].weight[0, 0] += 0.5
    for program in (torch.export.export(other, (X,)), tmp_path / "net.onnx"):
        if not isinstance(program, torch.export.ExportedProgram):
            faults.export(other, X, str(program), dynamo=False)
        causes = ms.diff(net, program, X).causes
        assert [(cause.kind, cause.layer) for cause in causes] == [("weights", "2")]
    x = torch.randn(2, 8)
    faults.export(square, x, None, dynamo=True).save(tmp_path / "square.onnx")
    model = onnx.load(tmp_path / "square.onnx")
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    weight = next(one for one in model.graph.initializer if one.name == gemm.input[1])
    weight.raw_data = np.ascontiguousarray(onnx.numpy_helper.to_array(weight).T).tobytes()
    next(one for one in gemm.attribute if one.name == "transB").i = 0
    onnx.save(model, tmp_path / "square.onnx")
    record = ms.diff(square, tmp_path / "square.onnx", x)
    assert record.is_same
    assert not record.causes
