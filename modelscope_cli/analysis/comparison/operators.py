"""The operators of two exported models of one format, compared in order; and the weights among their tensors."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.moved import FAR
from modelscope_cli.analysis.comparison.variants import apart
from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.checkpoints.onnx_file import OnnxNode
from modelscope_cli.checkpoints.reading import read_onnx
from modelscope_cli.checkpoints.tensors import read_values
from modelscope_cli.checkpoints.zip_directory import read_directory, read_entry
from modelscope_cli.records.naming import some

_BY_AXES = "Reduce", "Squeeze", "Unsqueeze"  # of ONNX
_WITH_GRAPHS = "If", "Loop", "Scan", "SequenceMap"
_PROGRAM = re.compile(r"(?:[^/]+/)?models/[^/]+\.json")
_CONSTANTS = re.compile(r"(?:[^/]+/)?data/constants/[^/]+_constants_config\.json")
_MOST_BYTES = 500_000_000
# Of torch.export: what changes no value, and what changes none in eval mode
_WITHOUT_EFFECT = {"cudnn_enabled", "device", "layout", "pin_memory", "memory_format", "non_blocking"}
_IN_TRAINING = {"momentum", "p"}
_COPIES = {"alias", "clone", "contiguous", "detach", "detach_", "lift_fresh_copy"}


@dataclass(frozen=True, slots=True)
class _Operator:
    type: str
    traits: Mapping[str, str]  # attributes, and where the inputs come from, in words
    layer: str = field(default="", compare=False)


@dataclass(slots=True)
class _Graph:
    """Operators in order; checksums of constants and the dialect are those of torch.export."""

    operators: list[_Operator] = field(default_factory=list)
    outputs: str = ""
    constants: dict[str, int] = field(default_factory=dict)
    dialect: list[str] = field(default_factory=list)


def compare_operators(paths: Sequence[Path]) -> tuple[int, str | None]:
    """Return how many operators two exported models have, and the first that differ, with what differs of them.

    0 and None for other files, for two formats, if one of two programs alone was decomposed, and for graphs with
    functions or subgraphs, which are not looked into.
    """
    read = {".onnx": _of_onnx, ".pt2": _of_program}.get(paths[0].suffix.lower())
    if read is None or len({path.suffix.lower() for path in paths}) > 1:
        return 0, None
    a, b = map(read, paths)
    if a is None or b is None or a.dialect != b.dialect:
        return 0, None
    n = max(len(a.operators), len(b.operators))
    pairs = zip_longest(a.operators, b.operators, fillvalue=_Operator("missing", {}))
    differing = [(place, *pair) for place, pair in enumerate(pairs, 1) if pair[0] != pair[1]]
    for place, one, other in differing[:1]:
        layer = f" (in {one.layer})" * bool(one.layer and one.layer == other.layer)
        ours, theirs = one.type, other.type
        if ours == theirs:
            ours, theirs = f"{ours}{_beyond(one, other)}", f"{theirs}{_beyond(other, one)}"
        return n, f"operator {place} of {n}{layer} is {ours} in A and {theirs} in B"
    if a.outputs != b.outputs:
        return n, f"the output is {a.outputs} in A and {b.outputs} in B"
    others = [name for name, checksum in a.constants.items() if checksum not in b.constants.values()]
    return n, f"a constant of the graph differs: {some(others)}" if others else None


def _beyond(one: _Operator, other: _Operator) -> str:
    keys = sorted(key for key in {*one.traits, *other.traits} if one.traits.get(key) != other.traits.get(key))
    texts = [f"{key} {one.traits.get(key, 'default')}" for key in keys]
    return f" ({', '.join(texts)})"


def _of_onnx(path: Path) -> _Graph | None:
    """Read an ONNX file; weights are left out, as they are compared by value."""
    model = read_onnx(path)
    if model.functions or any(node.op_type in _WITH_GRAPHS for node in model.nodes):
        return None
    graph = _Graph()
    values: dict[str, Any] = {one.name: one for one in model.initialisers}  # and where others come from
    values |= {one.name: f"input {n}" for n, one in enumerate(model.inputs, 1)}
    for node in model.nodes:
        inputs = {f"input {n}": values.get(name, "") for n, name in enumerate(node.inputs, 1)}
        if node.op_type == "Constant":
            values[node.outputs[0]] = next(iter(node.attributes.values()), "")
        elif node.op_type == "Identity" or (node.op_type == "Dropout" and len(node.inputs) < 3):
            values[node.outputs[0]] = inputs["input 1"]
        else:
            if node.op_type.startswith(_BY_AXES) and "input 2" in inputs:  # an attribute of older versions
                inputs["axes"] = inputs.pop("input 2")
            given = _given(node, model.opsets.get(node.domain, 1)) | inputs
            traits = {key: text for key, one in given.items() if (text := _in_words(one))}
            graph.operators.append(_Operator(node.op_type, traits, node.module))
            values |= dict.fromkeys(node.outputs, f"operator {len(graph.operators)}")
    graph.outputs = " and ".join(_in_words(values.get(one.name)) or "a constant" for one in model.outputs)
    return graph


def _given(node: OnnxNode, opset: int) -> dict[str, Any]:
    """Return the attributes that are not what the operator does without them, or what its weight tells."""
    from modelscope_cli.checkpoints.onnx_protos import default_attributes  # with onnx

    usual = default_attributes(node, opset)
    if node.op_type.startswith("Conv"):
        usual["kernel_shape"] = node.attributes.get("kernel_shape")
    alike = {"strides": {1}, "dilations": {1}, "pads": {0}}
    given = {key: one for key, one in node.attributes.items() if one != usual.get(key)}
    return {key: one for key, one in given.items() if key not in alike or {*one} != alike[key]}


def _in_words(value: Any) -> str:
    if isinstance(value, TensorEntry):
        is_few = value.special is None and (value.numel == 1 or (value.numel <= 8 and "int" in value.dtype))
        return _value(read_values(value).tolist(), {}) if is_few else ""
    return _value(value, {})


def _of_program(path: Path) -> _Graph | None:
    """Read a torch.export program without loading it: its graph is JSON.

    Copies and dropout in eval mode are left out, as they change no value.
    """
    with path.open("rb") as file:
        entries = read_directory(file)
        found = [[one for one in entries if pattern.fullmatch(one)] for pattern in (_PROGRAM, _CONSTANTS)]
        if list(map(len, found)) != [1, 1]:
            return None
        data, config = (read_entry(file, entries[name], _MOST_BYTES) for (name,) in found)
    try:
        program, constants = json.loads(data), json.loads(config)["config"]
        if b'"as_graph"' in data or any(one["use_pickle"] for one in constants.values()):
            return None
        module, folder = program["graph_module"], found[1][0].rpartition("/")[0]
        graph = _of_module(module["graph"], module["signature"])
        graph.constants = {key: entries[f"{folder}/{one['path_name']}"].crc for key, one in constants.items()}
        graph.dialect = program["verifiers"]
        return graph
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError):
        return None  # of another version of torch


def _of_module(written: Mapping[str, Any], signature: Mapping[str, Any]) -> _Graph:
    graph, places, inputs = _Graph(), dict[str, str](), list[str]()
    for spec in signature["input_specs"]:
        places |= dict.fromkeys(_names(spec), "")  # of weights, which are compared by value
        inputs += _names(spec.get("user_input"))
    places |= {name: f"input {n}" for n, name in enumerate(inputs, 1)}
    for node in written["nodes"]:
        *_, operator, overload = node["target"].split(".")
        kind = operator if node["target"].startswith("torch.ops.") else overload
        given = {one["name"]: one["arg"] for one in node["inputs"]}
        traits = _defaults(node["target"]) | {key: _value(one, places) for key, one in given.items()}
        if kind.startswith(("_assert", "sym_constrain")):
            continue
        in_eval = "False" in (traits.get("training"), traits.get("train"))
        names = _names(node["outputs"])
        first = next((name for one in given.values() for name in _names(one)), None)
        if first is not None and (kind in _COPIES or (in_eval and "dropout" in kind)):
            places.update(dict.fromkeys(names, places[first]))
            continue
        ignored = _WITHOUT_EFFECT | (_IN_TRAINING if in_eval else set())
        if traits.get("stride") == "[]":  # of a pooling
            traits["stride"] = traits["kernel_size"]
        place = f"operator {len(graph.operators) + 1}"
        places |= {name: place + f" output {n}" * (n > 1) for n, name in enumerate(names, 1)}
        if kind.endswith("_") and not kind.endswith("__") and first is not None:
            places[first] = place  # in place: what reads the input from here on reads this
        stack = node["metadata"].get("nn_module_stack", "").split(";")[-1].split(",")
        layer = stack[1] if len(stack) > 1 else ""
        traits = {x: y for x, y in traits.items() if x not in ignored}
        graph.operators.append(_Operator(kind.removesuffix("_"), traits, layer))
    graph.outputs = " and ".join(_value(one, places) for one in written["outputs"])
    return graph


def _names(value: Any) -> list[str]:
    """Return the names of the values that a part of the graph mentions."""
    if isinstance(value, list):
        return [name for one in value for name in _names(one)]
    if not isinstance(value, Mapping):
        return []
    own = value.get("name", value.get("as_name"))
    return [own] if own is not None else [name for one in value.values() for name in _names(one)]


def _value(value: Any, places: Mapping[str, str]) -> str:
    """Return an argument in words: a number, or where it comes from."""
    if isinstance(value, list):
        return f"[{', '.join(_value(one, places) for one in value)}]"
    if isinstance(value, Mapping):
        if "as_none" in value:
            return "None"
        name = value.get("name", value.get("as_name"))
        return places[name] if name is not None else ", ".join(_value(one, places) for one in value.values())
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _defaults(target: str) -> dict[str, str]:
    """Return what an operator takes where its arguments are left out, as some exports do."""
    operator: Any = torch
    for part in target.split(".")[1:]:
        operator = getattr(operator, part, None)
    schema = getattr(operator, "_schema", None)
    with_default = [one for one in schema.arguments if one.has_default_value()] if schema else []
    return {one.name: _value(one.default_value, {}) for one in with_default}


def weights_alone(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Leave out counters of batches and constants of the graph; name changed matrices that B transposed as in A."""
    ours = {name: one for name, one in a.items() if name in b or not name.endswith("num_batches_tracked")}
    theirs = {name: one for name, one in b.items() if name in a or (one.ndim and one.dtype != torch.int64)}
    for name in [x for x, one in ours.items() if x not in b and one.ndim == 2]:
        gaps = {y: apart(one.T, ours[name]) for y, one in theirs.items() if y not in a and one.ndim == 2}
        if gaps and 0 < gaps[nearest := min(gaps, key=gaps.__getitem__)] < FAR:
            theirs[name] = theirs.pop(nearest).T
    return ours, theirs
