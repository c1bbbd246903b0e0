"""Exports for the tests of `diff`, and faults to plant in the file of the network of `test_diff_programs.py`."""

import io
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import onnx
import torch


def export(model, x, file, **options):
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        args = x if isinstance(x, tuple) else (x,)
        return torch.onnx.export(model, args, file, verbose=False, **options)


def statuses(record):
    return {row.label: row.status for row in record.layers}


def stored(model, name):
    return next(one for one in model.graph.initializer if one.name == name)


def put(model, name, values):
    stored(model, name).CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))


def values(model, name):
    return onnx.numpy_helper.to_array(stored(model, name)).copy()


def node(model, operator):
    return next(one for one in model.graph.node if one.op_type == operator)


def attribute(of, name):
    return next(one for one in of.attribute if one.name == name)


def before_first(model, *nodes):
    """Put nodes behind the input `x`; the last makes `new`."""
    name = model.graph.input[0].name
    for one in model.graph.node:
        for at, given in enumerate(one.input):
            if given == name:
                one.input[at] = "new"
    for one in reversed(nodes):
        model.graph.node.insert(0, one)


def one_weight(model):
    changed = values(model, "conv3.weight")
    changed[5, 3] += 0.5
    put(model, "conv3.weight", changed)


def one_folded_weight(model):
    changed = values(model, "conv2.weight")
    changed[2, 1, 1, 1] += 0.5
    put(model, "conv2.weight", changed)


def half_weights(model):
    put(model, "conv3.weight", values(model, "conv3.weight").astype(np.float16).astype(np.float32))


def epsilon(model):
    attribute(node(model, "LayerNormalization"), "epsilon").f = 1e-2


def turned(model):
    name = model.graph.input[0].name
    before_first(model, onnx.helper.make_node("Transpose", [name], ["new"], perm=[0, 1, 3, 2]))


def half(model):
    conv = next(one for one in model.graph.node if "conv3.weight" in one.input)
    name = conv.input[0]
    conv.input[0] = "back"
    at = list(model.graph.node).index(conv)
    model.graph.node.insert(at, onnx.helper.make_node("Cast", ["half"], ["back"], to=1))
    model.graph.node.insert(at, onnx.helper.make_node("Cast", [name], ["half"], to=10))


def swapped_classes(model):
    order = np.arange(10)
    order[[2, 7]] = [7, 2]
    for name, axis in (("fc.weight", 0), ("fc.bias", 0)):
        put(model, name, np.take(values(model, name), order, axis))


def swapped_channels(model):
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 1, 0]), "order"))
    gather = onnx.helper.make_node("Gather", [model.graph.input[0].name, "order"], ["new"], axis=1)
    before_first(model, gather)


def other_mean(model):
    for name, numbers in (("b_mean", [0.1, 0.2, -0.1]), ("b_std", [1.1, 0.9, 1.2])):
        array = np.array(numbers, np.float32).reshape(1, 3, 1, 1)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    less = onnx.helper.make_node("Sub", [model.graph.input[0].name, "b_mean"], ["less"])
    before_first(model, less, onnx.helper.make_node("Div", ["less", "b_std"], ["new"]))


def other_range(model):
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 / 255, np.float32), "by"))
    before_first(model, onnx.helper.make_node("Mul", [model.graph.input[0].name, "by"], ["new"]))


def no_activation(model):
    gone = [one for one in model.graph.node if one.op_type == "Gelu"][-1]
    for one in model.graph.node:
        for at, name in enumerate(one.input):
            if name == gone.output[0]:
                one.input[at] = gone.input[0]
    model.graph.node.remove(gone)
