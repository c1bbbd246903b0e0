"""`diff` of a model and its export, where layers are shared, unstable, folded or fixed to one batch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import modelscope_cli as ms

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
faults = pytest.importorskip("onnx_faults")
X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))


class Shared(nn.Module):
    """Layers with several names, called from several places, twice in a row, and by a layer of two calls."""

    def __init__(self):
        super().__init__()
        self.stem, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.GELU()
        self.pos = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), self.act)
        self.blocks = nn.ModuleList(nn.ModuleDict({"pos": self.pos, "fc": nn.Conv2d(4, 4, 1)}) for _ in "ab")
        self.alias, self.tail = self.pos, nn.Sequential(self.stem, self.act, self.act)

    def forward(self, x):
        y = self.act(self.stem(x))
        for block in self.blocks:
            y = block["fc"](block["pos"](y)) + y
        y = self.alias(self.pos(y)) + self.pos(y / 2)
        return self.tail(y[:, :3]).mean((2, 3))


@pytest.mark.parametrize("way", ["pt2", "old", "dynamo"])
def test_a_layer_of_several_names_and_calls_is_compared_call_by_call(way, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Shared().eval()

    def exported(module):
        if way == "pt2":
            return torch.export.export(module, (X,))
        faults.export(module, X, tmp_path / "shared.onnx", dynamo=way == "dynamo")
        return tmp_path / "shared.onnx"

    record = ms.diff(model, exported(model), X)
    assert (record.is_same, record.causes) == (True, ())
    unseen = {row.name for row in record.layers if row.status == "not tested"}
    assert unseen == (
        {"blocks.0.fc", "blocks.1.fc"} if way == "old" else set()
    )  # it leaves out who calls them
    assert len([row for row in record.layers if row.name == "pos.0"]) == 5
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.pos[0].weight[1, 2, 0, 0] += 0.5
    record = ms.diff(model, exported(other), X)
    assert (record.first_divergence, record.causes[0].kind, record.causes[0].layer) == (
        "pos.0",
        "weights",
        "pos.0",
    )


def test_what_rounding_does_to_an_unstable_model_is_not_a_divergence(tmp_path):
    """Two runtimes differ in the last digits, which this model makes a thousand times as large."""

    class Unstable(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.sin, self.head = nn.Linear(64, 64), Sin(), nn.Linear(64, 5)

        def forward(self, x):
            return self.head(self.sin(self.fc(x)))

    class Sin(nn.Module):
        def forward(self, x):
            return torch.sin(5000 * x)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = Unstable().eval(), torch.randn(4, 64)
    faults.export(model, x, tmp_path / "net.onnx", dynamo=False)
    file = onnx.load(tmp_path / "net.onnx")
    values = onnx.numpy_helper.to_array(faults.stored(file, "fc.weight"))
    faults.put(file, "fc.weight", np.nextafter(values, np.float32(1)))  # as if other kernels had rounded
    onnx.save(file, tmp_path / "net.onnx")
    record = ms.diff(model, tmp_path / "net.onnx", x)
    assert (record.is_same, record.causes) == (True, ())
    sin = next(row for row in record.layers if row.name == "sin")
    assert sin.rel_l2 > record.tolerance
    assert sin.rounding >= sin.rel_l2
    assert "A is unstable: rounding alone changes" in str(record)
    assert ms.diff(model, tmp_path / "net.onnx", x, tolerance=1e-4).first_divergence == "sin"
    faults.put(file, "fc.weight", values * np.float32(1.01))
    onnx.save(file, tmp_path / "net.onnx")
    record = ms.diff(model, tmp_path / "net.onnx", x)
    assert (record.first_divergence, record.causes[0].kind) == ("fc", "weights")


def near_constant(x, *, is_b):
    """Return a norm of values that all round near one: what is left of their digits is divided by its size."""
    y = (x + 3e4) / 3e4 if is_b else x / 3e4 + 1
    return nn.functional.normalize(y - y.mean(-1, keepdim=True), dim=-1) * 8


def recurrence(x, *, is_b):
    """Return the logistic map's 30th value, of which no digit is left."""
    x = x.sigmoid()
    for _ in range(30):
        x = 3.99 * (x - x * x) if is_b else 3.99 * x * (1 - x)
    return x - 0.5


def near_ties(x, *, is_b):
    """Return the values times one of several that are equal but for their last digits."""
    rounded = (torch.floor(x) + x * 2e-7) / 3 if is_b else torch.floor(x) / 3 + x * 2e-7 / 3
    return x * x.gather(-1, rounded.argmax(-1, keepdim=True))


class Odd(nn.Module):
    def __init__(self, unstable):
        super().__init__()
        self.fc, self.odd, self.norm = nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)
        self.head = nn.Linear(64, 5)
        self.unstable, self.is_b = unstable, False

    def forward(self, x):
        return self.head(self.norm(self.odd(self.unstable(self.fc(x), is_b=self.is_b))))


@pytest.mark.parametrize("unstable", [near_constant, recurrence, near_ties])
def test_a_fault_behind_an_unstable_layer_is_still_found(unstable, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = Odd(unstable).eval(), torch.randn(32, 64)

    def record(change=lambda other: None):
        other = copy.deepcopy(model)
        other.is_b = True  # the same but for rounding
        with torch.no_grad():
            change(other)
        faults.export(other, x, tmp_path / "net.onnx", dynamo=False)
        return ms.diff(model, tmp_path / "net.onnx", x)

    same = record()
    assert max(row.rel_l2 or 0 for row in same.layers) > same.tolerance
    assert (same.is_same, same.causes) == (True, ())
    found = [
        record(lambda other: setattr(other.norm, "eps", 0.1)),
        record(lambda other: other.head.weight[1, 2].mul_(1.2)),
        record(lambda other: other.fc.weight[3].add_(1e-2)),
    ]
    causes = [(one.first_divergence, one.causes[0].kind, one.causes[0].layer) for one in found]
    assert causes == [
        ("norm", "epsilon", "norm"),
        ("head", "weights", "head"),
        ("fc", "weights", "fc"),
    ]


def test_values_that_are_missing_are_not_rounding(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = Odd(near_constant).eval(), torch.randn(4, 64)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head.bias[2] = torch.nan
    faults.export(other, x, tmp_path / "net.onnx", dynamo=False)
    record = ms.diff(model, tmp_path / "net.onnx", x)
    assert record.first_divergence == "head"
    assert not record.is_same


def test_the_batch_of_the_export_that_became_a_constant_is_named(tmp_path):
    class Baked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 5)

        def forward(self, x):
            n_images = int(x.shape[0])
            return self.fc(self.conv(x).reshape(n_images, 4, -1).mean(-1))

    model = Baked().eval()
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}}
    faults.export(model, X, tmp_path / "net.onnx", dynamo=False, **names)
    assert ms.diff(model, tmp_path / "net.onnx", X).is_same
    record = ms.diff(model, tmp_path / "net.onnx", torch.randn(3, 3, 16, 16))
    assert [cause.kind for cause in record.causes] == ["dynamic_shapes"]


class Resized(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x):
        height = int(x.shape[2])
        x = nn.functional.interpolate(self.conv(x), size=(2 * height, 2 * height), mode="bilinear")
        return self.fc(x.abs().mean((2, 3)))


class Gated(Resized):
    """The first value of its own shape has one number for each channel, which any scale and shift would fit."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        height = int(x.shape[2])
        x = self.conv(nn.functional.interpolate(x, size=(height // 2, height // 2), mode="bilinear"))
        return self.fc((x * self.gate(x.mean((2, 3), keepdim=True))).abs().mean((2, 3)))


@pytest.mark.parametrize("kind", [Resized, Gated])
def test_the_image_size_of_the_export_that_became_a_constant_is_named(kind, tmp_path):
    model = kind().eval()
    sizes = {"input_names": ["x"], "dynamic_axes": {"x": {2: "height", 3: "width"}}}
    faults.export(model, torch.randn(1, 3, 32, 32), tmp_path / "net.onnx", dynamo=False, **sizes)
    assert ms.diff(model, tmp_path / "net.onnx", torch.randn(1, 3, 32, 32)).is_same
    (cause,) = ms.diff(model, tmp_path / "net.onnx", torch.randn(1, 3, 48, 48)).causes
    assert (cause.kind, "images of 32x32, but not for 48x48" in cause.message) == ("dynamic_shapes", True)


class OwnNorm(nn.Module):
    """A norm of a library, which adds its epsilon itself."""

    def __init__(self, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        return x * (x.var((1, 2, 3), keepdim=True) + self.eps).rsqrt() * self.weight


def test_the_epsilon_of_a_norm_that_is_not_of_torch_is_named(tmp_path):
    def built(eps):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), OwnNorm(eps), nn.Conv2d(4, 5, 3)).eval()

    faults.export(built(3.7e-4), X, tmp_path / "net.onnx")
    (cause,) = ms.diff(built(1e-5), tmp_path / "net.onnx", X).causes
    assert (cause.kind, cause.layer) == ("epsilon", "1")
    assert "0.00037 in B and 1e-05 in A" in cause.message


@pytest.mark.parametrize(("opset", "kind"), [(10, "opset"), (17, "resize_mode")])
def test_an_opset_without_half_pixels_is_named(opset, kind, tmp_path):
    model, path = Resized().eval(), tmp_path / "net.onnx"
    faults.export(model, X, path, dynamo=False, opset_version=opset)
    if opset > 10:
        file = onnx.load(path)
        resize = faults.node(file, "Resize")
        faults.attribute(resize, "coordinate_transformation_mode").s = b"asymmetric"
        onnx.save(file, path)
    (cause,) = ms.diff(model, path, X).causes
    assert (cause.kind, "'asymmetric' in B" in cause.message) == (kind, True)


@pytest.mark.parametrize(("opset", "kind"), [(11, "opset"), (17, "attribute")])
def test_a_softmax_over_other_axes_is_the_attribute_or_the_opset(opset, kind, tmp_path):
    class Soft(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.soft, self.fc = nn.Conv2d(3, 4, 1), nn.Softmax(1), nn.Conv2d(4, 5, 1)

        def forward(self, x):
            return self.fc(self.soft(self.conv(x)))

    model, path = Soft().eval(), tmp_path / "net.onnx"
    faults.export(model, X, path, dynamo=False, opset_version=17)
    file = onnx.load(path)
    if opset == 11:
        file.opset_import[0].version = 11  # whose softmax takes all axes that follow
    else:
        faults.attribute(faults.node(file, "Softmax"), "axis").i = 2
    onnx.save(file, path)
    (cause,) = ms.diff(model, path, X).causes
    assert (cause.kind, cause.layer) == (kind, "soft")


def test_a_layer_folded_into_a_norm_that_holds_its_activation_has_no_other_weights(tmp_path):
    """As in timm: the norm is not an innermost layer, and what is before the convolution has its scope.

    Both are compared as one, and what is wrong in them is found in the convolution, the norm or its activation.
    """

    class NormAct(nn.BatchNorm2d):
        def __init__(self, channels):
            super().__init__(channels)
            self.act = nn.SiLU()

        def forward(self, x):
            return self.act(super().forward(x))

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), NormAct(8)
            self.conv, self.bn2 = nn.Conv2d(4, 4, 1, bias=False), NormAct(4)

        def forward(self, x):
            x, y = self.bn1(self.stem(x)).split(4, dim=1)
            return torch.cat([self.bn2(self.conv(x)), y], 1)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Half().eval()
        for norm in (model.bn1, model.bn2):
            norm.running_var.uniform_(0.3, 2)
    faults.export(model, X, None, dynamo=True).save(tmp_path / "half.onnx")
    record = ms.diff(model, tmp_path / "half.onnx", X)
    assert (record.is_same, record.causes) == (True, ())
    assert faults.statuses(record)["bn2.act"] == faults.statuses(record)["bn2"] == "same"
    remarks = {row.name: row.matched for row in record.layers}
    assert (remarks["conv"], remarks["bn2"]) == ("folded into bn2", "with conv folded in")

    def weight(other):
        with torch.no_grad():
            other.conv.weight[1, 2] += 0.5

    def statistics(other):
        other.bn2.running_mean[1] += 1

    def activation(other):
        other.bn2.act = nn.Identity()

    def inplace(other):
        other.bn1.act = nn.Identity()

    model.bn1.act = nn.ReLU(inplace=True)
    for fault, found in (
        (weight, ("weights", "conv")),
        (statistics, ("weights", "bn2")),
        (activation, ("missing_node", "bn2.act")),
        (inplace, ("missing_node", "bn1.act")),
    ):
        other = copy.deepcopy(model)
        fault(other)
        faults.export(other, X, tmp_path / "fault.onnx", dynamo=False)
        (cause,) = ms.diff(model, tmp_path / "fault.onnx", X).causes
        assert (cause.kind, cause.layer) == found


def test_the_weight_of_a_norm_with_further_axes_is_found(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()).eval()
        nn.init.uniform_(model[1].weight, 0.5, 1.5)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[1].weight[3] += 0.5
    faults.export(other, X, None, dynamo=True).save(tmp_path / "net.onnx")
    (cause,) = ms.diff(model, tmp_path / "net.onnx", X).causes
    assert (cause.kind, cause.layer) == ("weights", "1")


def test_one_of_several_inputs_of_a_layer_is_traced_back_to_its_branch(tmp_path):
    class Sum(nn.Module):
        def forward(self, values):
            return sum(values)

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)
            self.sum = Sum()

        def forward(self, x):
            resize = nn.functional.interpolate
            return self.c(
                self.sum([resize(one(x), scale_factor=2.0, mode="bilinear") for one in (self.a, self.b)])
            )

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Branches().eval()
    faults.export(model, X, None, dynamo=True).save(tmp_path / "net.onnx")
    for which in range(2):
        file = onnx.load(tmp_path / "net.onnx")
        resize = [node for node in file.graph.node if node.op_type == "Resize"][which]
        faults.attribute(resize, "coordinate_transformation_mode").s = b"align_corners"
        onnx.save(file, tmp_path / "fault.onnx")
        record = ms.diff(model, tmp_path / "fault.onnx", X)
        (cause,) = record.causes
        assert (cause.kind, cause.layer, "ab"[which] in cause.message.split()) == ("resize_mode", "sum", True)


@pytest.mark.parametrize("dynamo", [True, False])
def test_the_folded_weights_of_an_older_training_are_found_though_no_value_is_near(dynamo, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, other = (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
            for _ in "ab"
        )
    made = faults.export(other, X, None if dynamo else tmp_path / "net.onnx", dynamo=dynamo)
    if dynamo:
        made.save(tmp_path / "net.onnx")
    cause = ms.diff(model, tmp_path / "net.onnx", X).causes[0]
    assert (cause.kind, cause.layer in ("0", "1")) == ("weights", True)


def test_a_weight_within_the_tolerance_is_named_where_an_unstable_layer_shows_it(tmp_path):
    class Sine(nn.Module):
        def forward(self, x):
            return torch.sin(300 * x)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), Sine(), nn.Linear(64, 5)).eval()
        x = torch.randn(32, 64)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight[5, 7] += 2e-4
    faults.export(other, x, tmp_path / "net.onnx", dynamo=False)
    record = ms.diff(model, tmp_path / "net.onnx", x)
    assert record.first_divergence == "2"
    assert [(cause.kind, cause.layer) for cause in record.causes] == [("weights", "0")]
