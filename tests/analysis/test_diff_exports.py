"""`diff` of a model and its export, where layers are shared, unstable, folded or fixed to one batch."""

import copy

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.comparison.variants import of_input
from modelscope_cli.errors import UsageError
from modelscope_cli.report.diff.table import answer

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


@pytest.mark.parametrize("way", ["old", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_a_layer_of_several_names_and_calls_is_compared_call_by_call(way, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Shared().eval()

    def exported(module):
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


class Odd(nn.Module):
    def __init__(self, unstable):
        super().__init__()
        self.fc, self.odd, self.norm = nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)
        self.head = nn.Linear(64, 5)
        self.unstable, self.is_b = unstable, False

    def forward(self, x):
        return self.head(self.norm(self.odd(self.unstable(self.fc(x), is_b=self.is_b))))


@pytest.mark.parametrize("unstable", [near_constant, recurrence])
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
    assert causes == [("norm", "epsilon", "norm"), ("head", "weights", "head"), ("fc", "weights", "fc")]


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


def test_channels_last_and_another_range_are_told_apart():
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    last = x.permute(0, 2, 3, 1)
    assert of_input(x, last, x).kind == "axis_order"
    cause = of_input(x, 255 * last, x)
    assert cause.kind == "input_range"
    assert "255 times those of A" in cause.message


@pytest.mark.parametrize("way", ["pt2", "folded", "attribute"])
@pytest.mark.parametrize(("ours", "theirs"), [(1e-3, 1e-5), (1e-5, 1e-3), (1e-2, 1e-6)])
def test_another_epsilon_is_found_in_both_directions(ours, theirs, way, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, eps=ours), nn.ReLU()).eval()
    model[1].running_var.copy_(torch.tensor([0.002, 0.02, 0.2, 1.0]))
    other, file = copy.deepcopy(model), tmp_path / ("net.pt2" if way == "pt2" else "net.onnx")
    other[1].eps = theirs
    if way == "pt2":
        torch.export.save(torch.export.export(other, (X,)), file)
    else:
        kept = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
        faults.export(other, X, file, dynamo=False, **(kept if way == "attribute" else {}))
    (cause,) = ms.diff(model, file, X).causes
    assert (cause.kind, cause.layer) == ("epsilon", "1")
    assert f"eps of batch_norm is {theirs:g} in B and {ours:g} in A" in cause.message


class Normalised(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.conv = norm, nn.Conv2d(3, 4, 3)

    def forward(self, x):
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in self.norm)
        return self.conv((x - mean) / std)


NONE, HALF = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET, NAMED = (
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mean 0.485 0.456 0.406 and std 0.229 0.224 0.225",
)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (IMAGENET, NONE, f"A normalises its input inside the model with {NAMED}, and B does not"),
        (NONE, IMAGENET, f"B normalises its input inside the model with {NAMED}, and A does not"),
        (
            IMAGENET,
            HALF,
            f"A normalises its input inside the model with {NAMED}, and B with mean 0.5 0.5 0.5 and",
        ),
    ],
)
def test_a_normalisation_inside_one_model_is_told_of_that_one(ours, theirs, said, tmp_path):
    model, other = Normalised(ours).eval(), Normalised(theirs).eval()
    other.load_state_dict(model.state_dict())
    torch.export.save(torch.export.export(other, (X,)), tmp_path / "net.pt2")
    (cause,) = ms.diff(model, tmp_path / "net.pt2", X).causes
    assert cause.kind == "preprocessing"
    assert said in cause.message


def test_a_padding_of_its_own_does_not_keep_a_norm_from_being_folded_into_a_convolution(tmp_path):
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False)
    model = nn.Sequential(conv, nn.BatchNorm2d(4), nn.MaxPool2d(3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    model[1].running_var.uniform_(0.1, 2)
    other = copy.deepcopy(model)
    for change in (lambda: None, lambda: setattr(other[2], "ceil_mode", True)):
        change()
        faults.export(other, X, tmp_path / "net.onnx", dynamo=True)
        record = ms.diff(model, tmp_path / "net.onnx", X)
        assert record.is_same is not other[2].ceil_mode
        assert all("ceil_mode of max_pool2d is True in B" in one.message for one in record.causes)
        assert bool(record.causes) is other[2].ceil_mode


class Resized(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.bn, self.b, self.size = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), size

    def forward(self, x):
        x = self.bn(self.a(x)).relu()
        return self.b(nn.functional.interpolate(x, self.size) if self.size else x)


def test_a_bias_of_another_layer_is_not_compared_with_that_of_a_folded_one(tmp_path):
    model, other = twins(Resized(20), Resized(None))
    faults.export(other, X, tmp_path / "net.onnx", dynamo=False)
    assert [
        one.message for one in ms.diff(model, tmp_path / "net.onnx", X).causes if one.kind == "weights"
    ] == []


class Ended(nn.Module):
    """A classifier that ends with a function of its logits."""

    def __init__(self, end=lambda x: x, padding_mode="zeros"):
        super().__init__()
        self.conv, self.fc, self.end = (
            nn.Conv2d(3, 4, 3, padding=1, padding_mode=padding_mode),
            nn.Linear(4, 5),
            end,
        )

    def forward(self, x):
        return self.end(3 * self.fc(self.conv(x).relu().mean((2, 3))))


def twins(ours, theirs):
    torch.manual_seed(3)
    model, other = ours.eval(), theirs.eval()
    other.load_state_dict(model.state_dict())
    return model, other


@pytest.mark.parametrize(("end", "name"), [
    (lambda x: x.softmax(1), "softmax"), (lambda x: x.log_softmax(1), "log_softmax"), (torch.sigmoid, "sigmoid"),
    (lambda x: x.argmax(1), "argmax"), (nn.Softmax(-1), "softmax"), (lambda x: (1.01 * x).softmax(1), None),
    (lambda x: x / 2, None), (lambda x: 0.2 + 1e-9 * x, None),
])  # fmt: skip
def test_a_function_at_one_end_alone_is_named_where_it_gives_the_others_output(end, name, tmp_path):
    model, other = twins(Ended(), Ended(end))
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    sides = [("B", model, other), ("A", other, model)]
    for longer, a, b in sides if name != "argmax" else sides[:1]:
        causes = ms.diff(a, b, images).causes
        said = [f"{longer} ends with {name} and {'AB'[longer == 'A']} does not"] if name else []
        assert [one.message.partition(":")[0] for one in causes if one.kind == "ending"] == said
    faults.export(other, images, tmp_path / "net.onnx", dynamo=False)
    assert [one.kind for one in ms.diff(model, tmp_path / "net.onnx", images).causes] == ["ending"] * bool(
        name
    )
    assert ms.diff(other, tmp_path / "net.onnx", images).is_same


def test_an_operation_after_the_last_layer_that_b_lacks_is_told():
    model, other = twins(Ended(lambda x: x / 2), Ended(lambda x: x / 3))
    other.forward = lambda x: other.fc(other.conv(x).relu().mean((2, 3)))
    (cause,) = ms.diff(model, other, X).causes
    assert (cause.kind, cause.layer) == ("missing_node", None)
    assert cause.message.startswith("an operation after fc is missing from B")


@pytest.mark.parametrize("modes", [("zeros", "reflect"), ("replicate", "zeros"), ("zeros", "circular")])
def test_another_padding_mode_is_named(modes):
    (cause,) = ms.diff(*twins(*(Ended(padding_mode=mode) for mode in modes)), X).causes
    assert (cause.kind, cause.layer) == ("padding", "conv")
    assert max(modes, key=len) in cause.message


def test_a_layer_that_a_program_lacks_is_named(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 3)
    ).eval()
    other = copy.deepcopy(model)
    other[1] = nn.Identity()
    torch.export.save(torch.export.export(other, (X,)), tmp_path / "net.pt2")
    (cause,) = ms.diff(model, tmp_path / "net.pt2", X).causes
    assert (cause.kind, cause.layer) == ("missing_node", "1")


class Tokens(nn.Module):
    """A layer that returns several tensors, of which `read` takes some."""

    def __init__(self, layer, read):
        super().__init__()
        self.conv, self.layer, self.read, self.fc = nn.Conv2d(3, 8, 3, 2), layer, read, nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.read(self.layer, self.conv(x).flatten(2).transpose(1, 2)).mean(1))


READS = {
    "attention": (nn.MultiheadAttention(8, 2, batch_first=True), lambda layer, t: layer(t, t, t)[0]),
    "both": (nn.MultiheadAttention(8, 2, batch_first=True), lambda layer, t: layer(t, t, t)[1] @ layer(t, t, t)[0]),
    "maps": (nn.MultiheadAttention(8, 2, batch_first=True), lambda layer, t: layer(t, t, t)[1] @ t),
    "gru": (nn.GRU(8, 8, batch_first=True), lambda layer, t: layer(t)[0]),
    "state": (nn.LSTM(8, 8, batch_first=True), lambda layer, t: layer(t)[1][0].transpose(0, 1)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # of an LSTM, by torch.export
@pytest.mark.parametrize("case", READS)
def test_what_an_exporter_leaves_out_is_not_a_difference(case, tmp_path):
    a = Tokens(*copy.deepcopy(READS[case])).eval()
    torch.export.save(torch.export.export(a, (X,)), tmp_path / "b.pt2")
    record = ms.diff(a, tmp_path / "b.pt2", X)
    assert (record.is_same, record.totals.added, record.totals.removed) == (True, 0, 0)
    with torch.no_grad():
        a.fc.bias[1] += 1
    record = ms.diff(a, tmp_path / "b.pt2", X)
    assert (record.is_same, record.first_divergence) == (False, "fc")


class NormAndRelu(nn.BatchNorm2d):
    """A norm that holds its activation, as those of timm do."""

    def __init__(self, n):
        super().__init__(n)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(super().forward(x))


@pytest.mark.parametrize("has_names", [True, False])
def test_another_epsilon_in_a_norm_that_holds_layers_is_told(has_names, tmp_path):
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), NormAndRelu(8), nn.Conv2d(8, 8, 3)).eval()
    model[1].running_var.uniform_(0.1, 2)
    other, file = copy.deepcopy(model), tmp_path / "net.onnx"
    other[1].eps = 0.1
    faults.export(other, X, file, dynamo=False)
    graph = onnx.load(file)
    for n, node in enumerate(graph.graph.node if not has_names else ()):
        node.name = f"node_{n}"
    onnx.save(graph, file)
    record = ms.diff(model, file, X)
    matched = {row.name: row.matched for row in record.layers}
    assert (matched["0"], matched["1"]) == ("folded into 1", "with 0 folded in")
    assert [(one.layer, "eps" in one.message) for one in record.causes] == [("1", True)]


def _with(change):
    """Return a convolution, its activation and a pooling, changed in one place."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten()]
    change(parts)
    return nn.Sequential(*parts).eval()


TWO_FILES = {
    "none": (lambda parts: None, "The same weights and"),
    "an attribute": (
        lambda parts: parts.__setitem__(3, nn.MaxPool2d(3, 2, ceil_mode=True)),
        "(ceil_mode 1) in B",
    ),
    "another activation": (lambda parts: parts.__setitem__(2, nn.Hardtanh()), "is Relu in A and Clip in B"),
    "one more at the end": (lambda parts: parts.append(nn.Softmax(1)), "is missing in A and Softmax in B"),
}


@pytest.mark.parametrize("way", ["dynamo", "torchscript"])
@pytest.mark.parametrize("change", TWO_FILES)
def test_two_files_are_compared_operator_by_operator(change, way, tmp_path):
    changed, said = TWO_FILES[change]
    for name, one in (("a", lambda parts: None), ("b", changed)):
        faults.export(_with(one), X, tmp_path / f"{name}.onnx", dynamo=way == "dynamo")
    record = ms.diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert said in answer(record)
    assert record.is_same == (change == "none")


class Program(nn.Module):
    def __init__(self, head, eps=1e-5, mean=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.drop, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4, eps),
            nn.Dropout(0.3),
            head,
        )
        self.register_buffer("mean", torch.full((1,), mean), persistent=False)

    def forward(self, x):
        y = self.bn(self.conv(x - self.mean))
        return self.head(self.drop(y)) + y


PROGRAMS = {
    "again": (Program(nn.ReLU()), None),
    "what changes no value": (Program(nn.Sequential(nn.Dropout(0.1), nn.ReLU())), None),
    "epsilon": (
        Program(nn.ReLU(), eps=1e-3),
        "operator 3 of 5 (in bn) is batch_norm (eps 1e-05) in A and batch_norm (eps 0.001) in B",
    ),
    "activation": (Program(nn.GELU()), "operator 4 of 5 (in head) is relu in A and gelu in B"),
    "written over": (
        Program(nn.ReLU(inplace=True)),
        "operator 5 of 5 is add (other operator 3) in A and add (other operator 4) in B",
    ),
    "constant": (Program(nn.ReLU(), mean=0.4), "a constant of the graph differs: mean"),
}


@pytest.mark.parametrize("change", PROGRAMS)
def test_two_programs_are_compared_operator_by_operator(change, tmp_path):
    files = tmp_path / "a.pt2", tmp_path / "b.pt2"
    module, said = PROGRAMS[change]
    for file, one in zip(files, (Program(nn.ReLU()), module), strict=True):
        torch.export.save(torch.export.export(one.eval(), (X,)), file)
    record = ms.diff(*files)
    assert (record.is_same, record.operators) == (said is None, 5)
    assert (said or "The same weights and 5 operators") in answer(record)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_where_no_graph_is_compared_the_answer_says_that_only_weights_were(tmp_path):
    module = _with(lambda parts: None)
    module.register_buffer("offset", torch.ones(3))  # TorchScript keeps it beside the layers
    program = torch.export.export(module, (X,))
    torch.export.save(program, tmp_path / "a.pt2")
    torch.export.save(program.run_decompositions(), tmp_path / "b.pt2")
    torch.jit.trace(module, X).save(tmp_path / "c.pt")
    torch.save(module.state_dict(), tmp_path / "d.pt")
    for name in ("b.pt2", "c.pt", "d.pt"):
        text = answer(ms.diff(tmp_path / "a.pt2", tmp_path / name))
        assert "Equal weights, and nothing else was compared: 8 same" in text
        assert "the epsilon of norms, strides, activations" in text


def test_images_get_the_one_size_that_an_export_takes(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    torch.export.save(torch.export.export(module, (X,)), tmp_path / "fixed.pt2")
    sides = ({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    any_size = torch.export.export(module, (X,), dynamic_shapes=sides)
    torch.export.save(any_size, tmp_path / "any.pt2")
    Image.new("RGB", (20, 30)).save(tmp_path / "x.png")
    for name, size in (("fixed.pt2", 16), ("any.pt2", 224)):
        record = ms.diff(module, tmp_path / name, tmp_path / "x.png")
        assert record.is_same
        assert record.run.input.shape == ((1, 3, size, size),)


def test_dicts_of_weights_are_compared():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    assert ms.diff(a.state_dict(), {"state_dict": a.state_dict()}).is_same
    assert not ms.diff(a.state_dict(), b.state_dict()).is_same
    assert ms.diff(a, a.state_dict()).is_same
    for given in ((a.state_dict(),), (a, a.state_dict(), torch.ones(1, 2))):
        with pytest.raises(UsageError, match="dict of weights"):
            ms.diff(*given)
