"""The operators of two ONNX files, compared in order."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.checkpoints.onnx_file import OnnxModel
from modelscope_cli.checkpoints.reading import read_onnx
from modelscope_cli.checkpoints.tensors import read_values

_WITH_GRAPHS = "If", "Loop", "Scan", "SequenceMap"


def compare_operators(paths: Sequence[Path]) -> tuple[int, str | None]:
    """Return how many operators two ONNX files have, and the first that differ, with what differs of them.

    0 and None for other files, and for those with functions or subgraphs, which are not looked into.
    """
    if any(path.suffix.lower() != ".onnx" for path in paths):
        return 0, None
    models = [read_onnx(path) for path in paths]
    if any(one.functions or any(node.op_type in _WITH_GRAPHS for node in one.nodes) for one in models):
        return 0, None
    a, b = map(_operators, models)
    n = max(len(a), len(b))
    for place, (one, other) in enumerate(zip_longest(a, b, fillvalue=("missing",)), 1):
        if one != other:
            ours, theirs = one[0], other[0]
            if ours == theirs:
                ours += f" ({', '.join(text for text in one[1:] if text not in other)})"
                theirs += f" ({', '.join(text for text in other[1:] if text not in one)})"
            return n, f"operator {place} of {n} is {ours} in A and {theirs} in B"
    return n, None


def _operators(model: OnnxModel) -> list[tuple[str, ...]]:
    """Return the type of each operator, its attributes, and its inputs: a number, or where they come from.

    Weights are left out, as they are compared by value.
    """
    made = {one.outputs[0]: one.attributes.get("value") for one in model.nodes if one.op_type == "Constant"}
    held = {one.name: one for one in model.initialisers} | made
    nodes = [one for one in model.nodes if one.op_type != "Constant"]
    places = {name: f"operator {n}" for n, node in enumerate(nodes, 1) for name in node.outputs}
    places |= {one.name: f"input {n}" for n, one in enumerate(model.inputs, 1)}
    found = []
    for node in nodes:
        inputs = {f"input {n}": held.get(name, places.get(name, "")) for n, name in enumerate(node.inputs, 1)}
        texts = [
            f"{key} {text}" for key, one in (node.attributes | inputs).items() if (text := _in_words(one))
        ]
        found.append((node.op_type, *sorted(texts)))
    return found


def _in_words(value: Any) -> str:
    if isinstance(value, TensorEntry):
        is_few = value.special is None and (value.numel == 1 or (value.numel <= 8 and "int" in value.dtype))
        value = read_values(value).tolist() if is_few else ""
    return f"{value:.7g}" if isinstance(value, float) else str(value)
