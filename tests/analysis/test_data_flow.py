"""Whose output goes where: against torch.fx's graphs of torchvision's models, and models worked out by hand."""

import gc
import operator
from dataclasses import replace
from itertools import pairwise
from weakref import ref

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torchvision import models

from modelscope_cli.analysis.summary.shapes import measure_shapes
from modelscope_cli.models.architecture import on_meta
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.summary import Operation

NAMES = (
    *("resnet18", "densenet121", "googlenet", "mobilenet_v3_small", "shufflenet_v2_x0_5", "convnext_tiny"),
    *("swin_t", "vit_b_32", "deeplabv3_mobilenet_v3_large"),
)


def seen_by_us(structure):
    """Return the innermost calls and the edges between them and the joints; all else is contracted."""
    flow = structure.flow
    labels = {0: "output"} | {-1 - n: f"input {n}" for n in range(len(flow.inputs))}
    labels |= {row.order: (row.name, row.call) for row in structure.layers if row.order}
    joints = [one.number for one in flow.operations if one.is_joint]
    labels |= {number: f"joint {n}" for n, number in enumerate(joints)}
    steps = {one.number for one in flow.operations if not one.is_joint}
    into = {}
    for source, target in flow.edges:
        into.setdefault(target, []).append(source)

    def roots(number):
        if number not in steps:
            return {number}
        return set().union(*(roots(source) for source in into.get(number, ())))

    edges = {
        (labels[root], labels[target])
        for target in into
        if target not in steps
        for source in into[target]
        for root in roots(source)
    }
    return {labels[n] for n in range(1, len(flow.around) + 1) if n not in flow.around}, edges


class Tracer(fx.Tracer):
    def __init__(self, leaves):
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, module, name):
        return name in self.leaves


SIZES = {"size", "dim", "numel"}


def seen_by_fx(model, leaves):
    """Return the same of what torch.fx traces, in which a size is a constant."""
    graph = Tracer({name for name, _ in leaves}).trace(model)
    calls, edges, n_joints, n_inputs = {}, set(), 0, 0
    origin = {}
    for node in graph.nodes:
        sources = set().union(*(origin[one] for one in node.all_input_nodes))
        if node.op == "placeholder":
            origin[node] = {f"input {n_inputs}"}
            n_inputs += 1
        elif node.op == "call_module":
            label = node.target, calls.get(node.target, 0)
            calls[node.target] = label[1] + 1
            edges |= {(source, label) for source in sources}
            origin[node] = {label}
        elif node.op == "output":
            edges |= {(source, "output") for source in sources}
        elif node.op == "get_attr" or node.target in SIZES or (node.target is getattr):
            origin[node] = set()
        elif len(sources) > 1 and node.target is not operator.getitem:
            label = f"joint {n_joints}"
            n_joints += 1
            edges |= {(source, label) for source in sources}
            origin[node] = {label}
        else:
            origin[node] = sources
    return {(name, n) for name, count in calls.items() for n in range(count)}, edges


@pytest.mark.parametrize("name", NAMES)
def test_edges_are_those_of_torch_fx(name):
    options = {"init_weights": False} if name == "googlenet" else {}
    options |= {"weights_backbone": None} if name.startswith("deeplab") else {}
    with on_meta():
        model = models.get_model(name, **options).eval().to("meta")
    structure = measure_shapes(model, (torch.empty(1, 3, 224, 224, device="meta"),), with_flow=True)
    calls, edges = seen_by_us(structure)
    known_calls, known_edges = seen_by_fx(model, calls)
    assert calls == known_calls
    assert edges == known_edges, (edges - known_edges, known_edges - edges)
    assert (structure.flow.unfollowed, structure.flow.left) == ((), ())


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.scale, self.shift = nn.Parameter(torch.ones(4)), torch.ones(4)


class InPlaceAdd(Layers):
    def forward(self, x):
        y = self.relu(self.a(x))
        y += x
        return self.relu(y)


class OverwrittenBehindOnesBack(Layers):
    def forward(self, x):
        y = self.a(x)
        z = self.relu(y)
        return self.b(z) + y  # what the ReLU has written


class GivenBackAsItWas(Layers):
    def forward(self, x):
        y = self.a(x)
        return self.b(self.drop(y)) + y


class HalfOfIt(Layers):
    def forward(self, x):
        y, z = self.a(x).chunk(2, 1)
        return torch.cat([self.relu(y), z], 1)


class WrittenThroughAView(Layers):
    def forward(self, x):
        y = self.a(x)
        y[:, :2].mul_(self.b(x)[:, :2])
        return self.drop(y)


class TheOtherHalf(Layers):
    def forward(self, x):
        y = self.a(x)[0]
        y[:2].copy_(self.b(x)[0, :2])
        return self.drop(y[2:])


class FilledIn(Layers):
    def forward(self, x):
        y = torch.zeros(2, 4)
        y[:, :2] = self.a(x)[:, :2]
        return self.drop(y)


class Twice(Layers):
    def forward(self, x):
        return self.a(self.relu(self.a(x)))


class Dropped(Layers):
    def forward(self, x):
        self.b(x)
        return self.a(x)


class ByNumPy(Layers):
    def forward(self, x):
        return self.b(torch.from_numpy(self.a(x).numpy()))


class ByPython(Layers):
    def forward(self, x):
        return self.a(x) * self.b(x).sum().item()


class Detached(Layers):
    def forward(self, x):
        y = self.a(x)
        y.data.mul_(2)
        return self.b(y.data)


class AroundABox(Layers):
    def forward(self, x):
        y = self.inner(x)
        return self.a(y) + y


class WithConstants(Layers):
    def forward(self, x):
        return self.a(x * self.scale + self.shift)


class Inference(Layers):
    @torch.inference_mode()
    def forward(self, x):
        y = self.b(self.relu(self.a(x)))
        y += x
        return y


class ByHand(Layers):
    def forward(self, x):
        q, k = self.a(x), self.b(x)
        return (q @ k.transpose(-1, -2)).softmax(-1) @ x


class NoLayer(nn.Module):
    def forward(self, x):
        return F.relu(x) + x


class TwoOfEach(Layers):
    def forward(self, x, y):
        return {"first": self.a(x), "others": (self.b(y),)}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.attention = nn.LSTM(4, 4), nn.MultiheadAttention(4, 2)

    def forward(self, x):
        y, (h, _) = self.lstm(x)
        return self.attention(y, x, x)[0], h


def chain(*words):
    return set(pairwise(words))


# `a+` is a joint of that name, `a` in parentheses a function of one flow, `x` the input.
BY_HAND = {
    InPlaceAdd: chain("x", "a", "relu", "add+", "relu#1", "output") | {("x", "add+")},
    OverwrittenBehindOnesBack: chain("x", "a", "relu", "b", "add+", "output") | {("relu", "add+")},
    GivenBackAsItWas: chain("x", "a", "drop", "b", "add+", "output") | {("a", "add+")},
    HalfOfIt: chain("x", "a", "(chunk)", "relu", "cat+", "output") | {("(chunk)", "cat+")},
    WrittenThroughAView: chain("x", "a", "mul+", "drop", "output")
    | chain("x", "b", "mul+")
    | {("a", "drop")},
    TheOtherHalf: chain("x", "a", "drop", "output") | {("x", "b")},
    FilledIn: chain("x", "a", "(write)", "drop", "output"),
    Twice: chain("x", "a", "relu", "a#1", "output"),
    Dropped: chain("x", "a", "output") | {("x", "b")},
    ByNumPy: chain("x", "a") | chain("?", "b", "output"),
    ByPython: chain("x", "a", "(mul)", "output") | chain("x", "b", "(sum)"),
    Detached: chain("x", "a", "(mul)", "b", "output"),
    AroundABox: chain("x", "inner.0", "inner.1", "a", "add+", "output") | {("inner.1", "add+")},
    WithConstants: chain("x", "(mul add)", "a", "output"),
    Inference: chain("x", "a", "relu", "b", "add+", "output") | {("x", "add+")},
    ByHand: chain("x", "a", "matmul softmax+", "matmul+", "output")
    | chain("x", "b", "(transpose)", "matmul softmax+")
    | {("x", "matmul+")},
    NoLayer: chain("x", "NoLayer", "output"),
    TwoOfEach: chain("x", "a", "output") | chain("x 1", "b", "output"),
    Recurrent: chain("x", "lstm", "attention", "output") | {("lstm", "output"), ("x", "attention")},
}


def in_words(structure):
    flow = structure.flow
    words = {0: "output"} | {-1 - n: f"x {n}" if n else "x" for n in range(len(flow.inputs))}
    words |= {row.order: label_of(row) for row in structure.layers if row.order}
    words |= {
        one.number: " ".join(one.names) + "+" if one.is_joint else f"({' '.join(one.names)})"
        for one in flow.operations
    }
    unknown = {("?", words[number]) for number in flow.unfollowed}
    return {(words[source], words[target]) for source, target in flow.edges} | unknown


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_edges_worked_out_by_hand(kind):
    inputs = [torch.rand(2, 4) for _ in range(1 + (kind is TwoOfEach))]
    structure = measure_shapes(kind().eval(), tuple(inputs), with_flow=True)
    assert structure.error is None
    assert in_words(structure) == BY_HAND[kind]


def test_where_values_left_torch_is_said():
    flows = [measure_shapes(kind(), (torch.rand(2, 4),), with_flow=True).flow for kind in (ByNumPy, ByPython)]
    assert [flow.left for flow in flows] == [("numpy",), ("item",)]


def test_a_forward_that_raises_has_its_flow_up_to_there():
    class Raises(Layers):
        def forward(self, x):
            y = self.a(x)
            y = self.b(y) + y
            raise ValueError("half way")

    structure = measure_shapes(Raises(), (torch.rand(2, 4),), with_flow=True)
    assert structure.error is not None
    assert in_words(structure) == chain("x", "a", "b", "add+") | {("a", "add+")}


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_following_the_data_changes_no_result(kind):
    """Following it changes no value, no shape, no cost and no object that comes out."""
    model = kind().eval()
    inputs = [torch.rand(2, 4) for _ in range(1 + (kind is TwoOfEach))]
    plain, followed = (measure_shapes(model, tuple(inputs), with_flow=flag) for flag in (False, True))
    assert replace(followed, flow=None) == plain
    assert plain.flow is None


def test_operations_say_where_they_happened_and_what_they_gave():
    structure = measure_shapes(AroundABox(), (torch.rand(2, 4),), with_flow=True)
    (add,) = structure.flow.operations
    assert add == Operation(6, ("add",), 1, 5, is_joint=True, output_shapes=((2, 4),))
    assert structure.flow.around == (0, 1, 2, 2, 1)


def test_nothing_is_kept_alive():
    gone = []

    class Large(Layers):
        def forward(self, x):
            y = self.a(x)
            kept = ref(y)
            y = self.drop(self.b(y))
            gc.collect()
            gone.append(kept() is None)
            return y

    measure_shapes(Large(), (torch.rand(2, 4),), with_flow=True)
    assert gone == [True]


def test_one_tensor_may_be_two_inputs():
    x = torch.rand(2, 4)
    flow = measure_shapes(TwoOfEach().eval(), (x, x), with_flow=True).flow
    assert {source for source, _ in flow.edges if source < 0} == {-1, -2}
