"""The operators of two ONNX files, compared in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.checkpoints.reading import read_onnx
from modelscope_cli.checkpoints.tensors import read_values

_WITH_GRAPHS = "If", "Loop", "Scan", "SequenceMap"


@dataclass(frozen=True, slots=True)
class _Operator:
    type: str
    traits: Mapping[str, str]  # attributes, and where the inputs come from, in words
    layer: str = field(default="", compare=False)


def compare_operators(paths: Sequence[Path]) -> tuple[int, str | None]:
    """Return how many operators two ONNX files have, and the first that differ, with what differs of them.

    0 and None for other files, and for graphs with functions or subgraphs, which are not looked into.
    """
    if any(path.suffix.lower() != ".onnx" for path in paths):
        return 0, None
    a, b = map(_of_onnx, paths)
    if a is None or b is None:
        return 0, None
    (operators, output), (b_operators, b_output) = a, b
    n = max(len(operators), len(b_operators))
    pairs = zip_longest(operators, b_operators, fillvalue=_Operator("missing", {}))
    differing = [(place, *pair) for place, pair in enumerate(pairs, 1) if pair[0] != pair[1]]
    for place, one, other in differing[:1]:
        layer = f" (in {one.layer})" * bool(one.layer and one.layer == other.layer)
        ours, theirs = one.type, other.type
        if ours == theirs:
            ours, theirs = f"{ours}{_beyond(one, other)}", f"{theirs}{_beyond(other, one)}"
        return n, f"operator {place} of {n}{layer} is {ours} in A and {theirs} in B"
    return n, f"the output is {output} in A and {b_output} in B" if output != b_output else None


def _beyond(one: _Operator, other: _Operator) -> str:
    texts = [f"{key} {text}" for key, text in sorted(one.traits.items()) if other.traits.get(key) != text]
    return f" ({', '.join(texts)})"


def _of_onnx(path: Path) -> tuple[list[_Operator], str] | None:
    """Return the operators of an ONNX file without weights, which are compared by value, and what it returns."""
    model = read_onnx(path)
    if model.functions or any(node.op_type in _WITH_GRAPHS for node in model.nodes):
        return None
    made = {one.outputs[0]: one.attributes.get("value") for one in model.nodes if one.op_type == "Constant"}
    held = {one.name: one for one in model.initialisers} | made
    nodes = [one for one in model.nodes if one.op_type != "Constant"]
    places = {name: f"operator {n}" for n, node in enumerate(nodes, 1) for name in node.outputs}
    places |= {one.name: f"input {n}" for n, one in enumerate(model.inputs, 1)}
    operators = []
    for node in nodes:
        inputs = {f"input {n}": held.get(name, places.get(name, "")) for n, name in enumerate(node.inputs, 1)}
        traits = {key: text for key, one in (node.attributes | inputs).items() if (text := _in_words(one))}
        operators.append(_Operator(node.op_type, traits, node.module))
    return operators, " and ".join(places.get(one.name, "a constant") for one in model.outputs)


def _in_words(value: Any) -> str:
    if isinstance(value, TensorEntry):
        is_few = value.special is None and (value.numel == 1 or (value.numel <= 8 and "int" in value.dtype))
        return _in_words(read_values(value).tolist()) if is_few else ""
    if isinstance(value, list):
        return f"[{', '.join(map(_in_words, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
