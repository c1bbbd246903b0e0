"""Read an ONNX model with the package `onnx`, which is imported only here.

The format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import ast
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import helper, numpy_helper

from modelscope_cli.checkpoints.entries import (
    BITS,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    checked_sizes,
)
from modelscope_cli.checkpoints.file_type import damaged, guess, is_onnx, read_head, remedy
from modelscope_cli.checkpoints.onnx_file import OnnxModel, OnnxNode, OnnxValue
from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import plain

# Bits of the dtypes whose elements share bytes, which torch does not have.
_PACKED_BITS = {
    **{"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2},
    **{"float6_e2m3fn": 6, "float6_e3m2fn": 6},
}
_MAX_BYTES = 1 << 31  # of a protocol buffer
_LARGE = 4096  # bytes of values that are kept apart from the graph; shapes and scales are far smaller
_DETACHABLE = {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8"}
_MAX_DEPTH = 24  # of modules in the name of a node
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


def read_model(path: Path) -> OnnxModel:
    """Read an ONNX file; external data stay where they are."""
    head = read_head(path, "ONNX file")
    try:
        if path.stat().st_size >= _MAX_BYTES:
            raise UnsupportedError(
                "it has 2 GiB or more, which the format does not allow; save the values in external data files"
            )
        return _model(path, onnx.load(path, "protobuf", load_external_data=False))
    except (DecodeError, ValueError, TypeError) as error:
        if not is_onnx(head):
            hint = remedy(path, head) if "lfs" in guess(head) else f"head -c 300 {shlex.quote(str(path))}"
            raise CannotRunError(f"'{path}' is not an ONNX file: {guess(head)}", hint) from error
        raise damaged(path, error, "ONNX file") from error


def for_runtime(
    model: OnnxModel, outputs: Sequence[str]
) -> tuple[bytes, dict[str, np.ndarray[Any, np.dtype[Any]]]]:
    """Return the skeleton of a model with these values of its graph as further outputs, and its detached values."""
    changed = onnx.ModelProto.FromString(model.skeleton)
    changed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    arrays = {}
    for entry in model.detached:
        data: Any = entry.storage and entry.storage.data
        arrays[entry.name] = np.frombuffer(data, entry.dtype).reshape(entry.shape)
    return changed.SerializeToString(), arrays


def _model(path: Path, model: onnx.ModelProto) -> OnnxModel:
    if not model.HasField("graph") or not model.ir_version or not model.opset_import:
        raise ValueError("it lacks a graph or an opset")
    messages = [*_messages(model)]
    nodes = [one for one in messages if isinstance(one, onnx.NodeProto)]
    # The runtime reads all of them, so each is checked, those in branches and functions included.
    external = [
        _external_storage(path, one)
        for one in messages
        if isinstance(one, onnx.TensorProto) and _is_external(one)
    ]
    functions = {
        f"{one.domain}:{one.name}": {f"{node.domain}:{node.op_type}" for node in one.node}
        for one in model.functions
    }
    try:
        TopologicalSorter(functions).prepare()
    except CycleError as error:  # older runtimes crash
        raise UnsupportedError(f"the function '{plain(error.args[1][0])}', which calls itself") from error
    graph = model.graph
    entries = [_entry(path, one) for one in graph.initializer]
    detached = tuple(
        entry for entry, one in zip(entries, graph.initializer, strict=True) if _detach(entry, one)
    )
    values = (_entry(path, one.values) for one in graph.sparse_initializer)
    sparse = (replace(one, storage=None, special="sparse", held=0) for one in values)
    initialisers = (*entries, *sparse)
    names = {one.name for one in initialisers}
    return OnnxModel(
        path=path,
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        opsets={one.domain: one.version for one in model.opset_import},
        metadata=_pairs(model.metadata_props),
        inputs=tuple(_value(one) for one in graph.input if one.name not in names),
        outputs=tuple(map(_value, graph.output)),
        nodes=_distinct([_node(path, one) for one in graph.node]),
        initialisers=initialisers,
        values={one.name: _value(one) for one in (*graph.value_info, *graph.input, *graph.output)},
        functions=frozenset(functions),
        operators=frozenset(f"{one.domain}:{one.op_type}" for one in nodes),
        external=tuple(dict.fromkeys(one.file for one in external)),
        detached=detached,
        skeleton=model.SerializeToString(),
    )


def _detach(entry: TensorEntry, tensor: onnx.TensorProto) -> bool:
    """Remove large plain values from the message, which are in memory once then; tell whether it had such."""
    is_large = entry.dtype in _DETACHABLE and entry.nbytes >= _LARGE and tensor.HasField("raw_data")
    if is_large and not _is_external(tensor):
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="detached")
        return True
    return False


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and all inside it, except inside tensors, whose values would be copied."""
    yield message
    if isinstance(message, onnx.TensorProto):
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _messages(inner)


def _pairs(entries: Sequence[onnx.StringStringEntryProto]) -> dict[str, str]:
    return {one.key: one.value for one in entries}


def _node(path: Path, node: onnx.NodeProto) -> OnnxNode:
    metadata = _pairs(node.metadata_props)
    graphs = _graphs_in(node)
    return OnnxNode(
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={one.name: _attribute(path, one) for one in node.attribute},
        captured=tuple(sorted(set().union(*map(_captured, graphs)))),
        scopes=_names_in(metadata.get(_SCOPES, "")) or _path_in(node.name),
        classes=_names_in(metadata.get(_CLASSES, "")),
    )


def _attribute(path: Path, attribute: onnx.AttributeProto) -> Any:
    """Return a number, text, a list of these, or a `TensorEntry`; other messages as they are."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, list):
        return [one.decode(errors="replace") if isinstance(one, bytes) else one for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return _entry(path, value) if isinstance(value, onnx.TensorProto) else value


def default_attributes(node: OnnxNode, opset: int) -> dict[str, Any]:
    """Return the attributes that an operator of onnx has where the file leaves them out."""
    try:
        known = onnx.defs.get_schema(node.op_type, opset, node.domain).attributes
    except onnx.defs.SchemaError:  # of another domain
        return {}
    usual = {name: one.default_value for name, one in known.items() if one.default_value.name}
    return {name: _attribute(Path(), one) for name, one in usual.items()}


def _graphs_in(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [
        graph for one in node.attribute for graph in (*([one.g] if one.HasField("g") else []), *one.graphs)
    ]


def _captured(graph: onnx.GraphProto) -> set[str]:
    """Return the names of values that a graph inside a node uses and does not define."""
    defined = {one.name for one in (*graph.initializer, *graph.input)}
    defined |= {one.values.name for one in graph.sparse_initializer}
    used = {one.name for one in graph.output}
    for node in graph.node:
        defined |= set(node.output)
        used |= set(node.input).union(*map(_captured, _graphs_in(node)))
    return used - defined - {""}


def _value(value: onnx.ValueInfoProto) -> OnnxValue:
    """Describe a value; sequences, maps and optional values have neither dtype nor shape."""
    if not value.type.HasField("tensor_type"):
        return OnnxValue(value.name)
    tensor = value.type.tensor_type
    sizes = (
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim
    )
    shape = tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)
    return OnnxValue(value.name, _dtype(tensor.elem_type), shape if tensor.HasField("shape") else None)


def _dtype(number: int) -> str | None:
    """Return torch's name of a value of `TensorProto.DataType`, which is NumPy's for all but text."""
    if number == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(helper.tensor_dtype_to_np_dtype(number).name)
    except KeyError:
        return None


def _entry(path: Path, tensor: onnx.TensorProto) -> TensorEntry:
    """Describe a tensor; its values are in the file, so they are copied from the message, or beside it."""
    name, shape, dtype = tensor.name, checked_shape(list(tensor.dims)), _dtype(tensor.data_type)
    if dtype == "string":
        return TensorEntry(name, shape, dtype, None, special="text", held=0)
    if dtype is None or dtype not in BITS:
        raise UnsupportedError(
            f"the type {tensor.data_type} of '{plain(name)}', which this program does not know"
        )
    special = f"of {_PACKED_BITS[dtype]} bits, several in a byte" if dtype in _PACKED_BITS else None
    nbytes = _nbytes(tensor)
    if _is_external(tensor):
        storage = _external_storage(path, tensor)
    else:
        is_raw = tensor.HasField("raw_data")
        data = bytearray(tensor.raw_data if is_raw else numpy_helper.to_array(tensor).tobytes())
        if len(data) != nbytes and (is_raw or not special):
            raise ValueError(f"{len(data)} bytes for '{plain(name)}', whose shape needs {nbytes}")
        storage = Storage(path, name, 0, nbytes, data=data)
    return TensorEntry(name, shape, dtype, storage, special=special, held=nbytes if special else None)


def _nbytes(tensor: onnx.TensorProto) -> int:
    dtype = _dtype(tensor.data_type) or ""
    bits = _PACKED_BITS.get(dtype) or BITS.get(dtype, 0)
    return (math.prod(checked_shape(list(tensor.dims))) * bits + 7) // 8


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _external_storage(path: Path, tensor: onnx.TensorProto) -> Storage:
    """Locate external data, which `onnx` would read at once, and refuse those outside the model's folder."""
    places, nbytes = _pairs(tensor.external_data), _nbytes(tensor)
    key, location = plain(tensor.name), places.get("location", "")
    file = _within_folder(path, location)
    try:
        begin, length = checked_sizes([int(places.get(one) or 0) for one in ("offset", "length")])
    except ValueError as error:
        raise ValueError(f"invalid offset of external data '{key}' in '{plain(location)}'") from error
    if "length" in places and length != nbytes:
        raise ValueError(f"{length} bytes of external data for '{key}', whose shape needs {nbytes}")
    if begin + nbytes > (n_file := file.stat().st_size):
        message = f"external data '{plain(location)}' of '{path}' is truncated: "
        message += f"'{key}' ends at byte {begin + nbytes:,} of {n_file:,}"
        raise CannotRunError(message, f"ls -l {shlex.quote(str(file))}")
    return Storage(file, tensor.name, begin, nbytes)


def _within_folder(path: Path, location: str) -> Path:
    """Return a file of external data; one outside the model's folder is refused, also if a link leads there."""
    file = path.parent / location
    names = (PurePosixPath(location), PureWindowsPath(location))
    is_outside = any(name.is_absolute() or name.anchor or ".." in name.parts for name in names)
    shown = f"external data '{plain(location)[:200]}' of '{path}'"
    if not location or "\0" in location or is_outside:
        message = f"{shown} is outside its folder, and is not read"
        raise CannotRunError(message, "ask its author for a single file: onnx.save without external data")
    if not file.resolve().is_relative_to(path.parent.resolve()):
        message = f"{shown} is a link that leads out of its folder, and is not read"
        raise CannotRunError(
            message, f"cp -rL {shlex.quote(str(path.parent))} copy   copies the files themselves"
        )
    if not file.is_file():
        raise CannotRunError(f"{shown} is missing", f"ls {shlex.quote(str(path.parent))}")
    return file


def _names_in(text: str) -> tuple[str, ...]:
    """Return the names in the text of a Python list: `['', 'layer1', 'relu']`."""
    try:
        names = ast.literal_eval(text) if text.startswith("[") and len(text) < 1 << 14 else ()
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def _path_in(name: str) -> tuple[str, ...]:
    """Return the modules in a name such as `/layer1/layer1.0/conv1/Conv`, as older exporters write it.
    A part that begins with the part before it and a dot is the child of a container, named in full."""
    parts = name.strip("/").split("/")
    if not 1 < len(parts) <= _MAX_DEPTH:
        return ()
    scopes = [""]
    before = ""
    for part in parts[:-1]:
        parent, is_full = scopes[-1], bool(before) and part.startswith(f"{before}.")
        parent = parent.removesuffix(before).removesuffix(".") if is_full else parent
        scopes.append(f"{parent}.{part}" if parent else part)
        before = part
    return (*scopes, parts[-1])


def _distinct(nodes: list[OnnxNode]) -> tuple[OnnxNode, ...]:
    """Return the nodes with names of their own: files may leave them out, or repeat them."""
    names: set[str] = set()
    distinct = []
    for at, node in enumerate(nodes):
        name = node.name or f"{node.op_type}_{at}"
        name = f"{name}_{at}" if name in names else name
        names.add(name)
        distinct.append(node if name == node.name else replace(node, name=name))
    return tuple(distinct)
