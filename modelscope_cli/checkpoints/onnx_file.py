"""Read an ONNX model as data: its nodes, values and tensors. Nothing of it is run. Standard library.

Protocol buffers are read field by field from a mapped file, so that the values of tensors are not: an initialiser
is a `TensorEntry`, a place in the file or in one of its files of external data, whatever its size.
The format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import ast
import math
import mmap
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from modelscope_cli.checkpoints.entries import (
    BITS,
    Contents,
    Shape,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    checked_sizes,
)
from modelscope_cli.checkpoints.file_type import damaged, guess, is_onnx, read_head, remedy
from modelscope_cli.checkpoints.protobuf import Message, Messages, ProtobufReader, Span, last
from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import plain

FORMAT = "ONNX"
# Torch's names of the values of `TensorProto.DataType`; those of 4 and 2 bits share bytes, which torch has not.
_DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string"},
    **{9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64"},
    **{15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2"},
    **{20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu"},
    **{25: "uint2", 26: "int2"},
}
_PACKED_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}
_VARINTS = (5, 7, 11)  # fields of a TensorProto: int32_data, int64_data, uint64_data
# Operators that runtimes bring along; any other set is custom.
STANDARD_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "com.microsoft",
)
_MAX_DEPTH = 24  # of graphs inside the nodes of graphs
_MAX_VARINTS = 1 << 24  # values written as one varint each, which exporters do for small tensors only
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """A named value of a graph; a dimension is a number, a name or None, the whole shape None if not stated."""

    name: str
    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None

    @property
    def sizes(self) -> Shape | None:
        """The shape if every dimension is a number."""
        sizes = tuple(size for size in self.shape or () if isinstance(size, int))
        return sizes if self.shape is not None and len(sizes) == len(self.shape) else None


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation of the main graph."""

    name: str  # unique among the nodes: its own, else its operator and its place
    op_type: str
    domain: str
    # inputs, outputs: names of values; empty for an optional one left out
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    # Numbers, strings, lists of these, and `TensorEntry`; without subgraphs
    attributes: dict[str, Any] = field(default_factory=dict)
    captured: tuple[str, ...] = ()  # values from around its subgraphs that these use
    # The modules it was exported from, the outermost first and the last its own, then its name in torch's
    # program; by the parts of its name where the exporter did not write them; empty where that has none
    scopes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()  # the classes of these, if written

    @property
    def operator(self) -> str:
        """Its operator as `domain:name`."""
        return f"{self.domain}:{self.op_type}"

    @property
    def module(self) -> str:
        """The name of the torch module it was exported from; empty if unknown, or if that is the model itself."""
        return self.scopes[-2] if len(self.scopes) > 1 else ""


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An ONNX file, without the values of its tensors."""

    path: Path
    ir_version: int
    producer: str
    opsets: dict[str, int]  # version by domain; the standard operators have the domain ""
    metadata: dict[str, str]
    inputs: tuple[OnnxValue, ...]  # without those that only name an initialiser
    outputs: tuple[OnnxValue, ...]
    nodes: tuple[OnnxNode, ...]
    initialisers: tuple[TensorEntry, ...]  # named tensors of the main graph
    values: dict[str, OnnxValue]  # types and shapes that the file states, by name
    functions: frozenset[str]  # `domain:name` of the functions it brings along
    # `domain:name` of every operator used anywhere, those of functions and subgraphs included
    operators: frozenset[str]
    external: tuple[Path, ...]  # the files next to it that hold values

    @property
    def has_scopes(self) -> bool:
        """Whether the exporter wrote the torch modules that nodes come from."""
        return any(node.classes for node in self.nodes)

    @property
    def custom_operators(self) -> tuple[str, ...]:
        """The operators that no runtime has by itself, as `domain:name`."""
        return tuple(
            sorted(
                one
                for one in self.operators - self.functions
                if one.rpartition(":")[0] not in STANDARD_DOMAINS and not one.startswith("org.pytorch.aten:")
            )
        )

    @property
    def is_quantised(self) -> bool:
        """Whether it computes with quantised numbers, by its operators."""
        words = ("uantizeLinear", "QLinear", "Integer", "MatMulNBits")
        return any(word in one for one in self.operators for word in words)

    def contents(self) -> Contents:
        """Return the initialisers as those of a checkpoint."""
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        metadata = {"opset": opsets, "producer": self.producer, "ir_version": str(self.ir_version)}
        metadata |= {key: value for key, value in self.metadata.items() if key not in metadata}
        beside = {"graph": f"{len(self.nodes)} nodes"}
        note = "its numbers are quantised: see the operators that use them" if self.is_quantised else None
        files = (self.path, *self.external)
        return Contents(self.path, FORMAT, self.initialisers, beside, metadata, note=note, files=files)


def is_onnx_file(path: Path) -> bool:
    """Tell whether a file is named like an ONNX model."""
    return path.suffix.lower() == ".onnx"


def read_onnx(path: Path) -> OnnxModel:
    head = read_head(path, "ONNX file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).model()
    except (ValueError, OverflowError, RecursionError) as error:
        if not is_onnx(head):
            hint = remedy(path, head) if "lfs" in guess(head) else f"head -c 300 {shlex.quote(str(path))}"
            raise CannotRunError(f"'{path}' is not an ONNX file: {guess(head)}", hint) from error
        raise damaged(path, error, "ONNX file") from error


# The messages of the format, as far as they are read, with `name:kind:number` of their fields. Sequences, maps and
# optional values have neither type nor shape.
_FIELDS = {
    "model": "ir_version:int:1 producer:text:2 producer:text:3 graph:graph:7 opset:opset:8 "
    "metadata:pair:14 training:training:20 function:function:25",
    "graph": "node:node:1 tensor:tensor:5 input:value:11 output:value:12 value:value:13 sparse:sparse:15",
    "node": "input:text:1 output:text:2 name:text:3 op_type:text:4 attribute:attribute:5 "
    "domain:text:7 metadata:pair:9",
    "attribute": "name:text:1 one:float:2 one:int:3 one:text:4 one:tensor:5 graph:graph:6 several:float:7 "
    "several:int:8 several:text:9 several:tensor:10 graph:graph:11 sparse:sparse:22 "
    "sparse:sparse:23",
    "tensor": "dims:int:1 type:int:2 name:text:8 external:pair:13 location:int:14 values:raw:4 "
    "values:raw:5 values:raw:7 values:raw:9 values:raw:10 values:raw:11",
    "function": "name:text:1 node:node:7 domain:text:10 attribute:attribute:11",
    "value": "name:text:1 type:type:2",
    "type": "tensor:tensor_type:1",
    "tensor_type": "type:int:1 shape:shape:2",
    "shape": "dim:dim:1",
    "dim": "size:int:1 size:text:2",
    "opset": "domain:text:1 version:int:2",
    "pair": "key:text:1 value:text:2",
    "sparse": "values:tensor:1 indices:tensor:2",
    "training": "graph:graph:1 graph:graph:2",
}
_MESSAGES: Messages = {
    message: {int(number): (name, kind) for name, kind, number in (one.split(":") for one in fields.split())}
    for message, fields in _FIELDS.items()
}


class _Reader(ProtobufReader):
    """Reads the messages of one file; spans are positions in it."""

    messages = _MESSAGES

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        super().__init__(data)
        self._path = path
        self._operators: set[str] = set()
        self._external: dict[Path, None] = {}

    def model(self) -> OnnxModel:
        """Read the `ModelProto` that the file is."""
        message = self.message("model", (0, len(self.data)), 0)
        graphs, functions = message["graph"], {}
        for function in message["function"]:
            name = f"{last(function['domain'])}:{last(function['name'])}"
            functions[name] = {node.operator for node in function["node"]}
        if not graphs or not message["ir_version"] or not message["opset"]:
            raise ValueError("no graph or no opset where a model has both")
        _refuse_recursion(functions)
        # Several graphs are one, by the rules of the format.
        graph = {key: [one for each in graphs for one in each[key]] for key in graphs[0]}
        tensors = tuple(graph["tensor"])
        names = {one.name for one in tensors}
        stated: list[OnnxValue] = graph["value"] + graph["input"] + graph["output"]
        return OnnxModel(
            path=self._path,
            ir_version=message["ir_version"][-1],
            producer=" ".join(message["producer"]).strip(),
            opsets={last(one["domain"]): last(one["version"], 0) for one in message["opset"]},
            metadata=dict(message["metadata"]),
            inputs=tuple(one for one in graph["input"] if one.name not in names),
            outputs=tuple(graph["output"]),
            nodes=_distinct(graph["node"]),
            initialisers=tensors,
            values={one.name: one for one in stated},
            functions=frozenset(functions),
            operators=frozenset(self._operators),
            external=tuple(self._external),
        )

    def made(self, kind: str, span: Span, depth: int) -> Any:
        if kind == "graph":
            depth += 1
            if depth > _MAX_DEPTH:
                raise UnsupportedError(f"graphs nested in one another more than {_MAX_DEPTH} deep")
        message = self.message(kind, span, depth)
        match kind:
            case "node":
                return self._node(message)
            case "tensor":
                return self._tensor(message)
            case "value":
                return _value(message)
            case "pair":
                return last(message["key"]), last(message["value"])
            case "attribute":
                held = message["graph"] or message["one"][-1:] or [message["several"]]
                return last(message["name"]), message["graph"] or held[0]
            case "graph" if message["sparse"]:
                parts = [part for one in message["sparse"] for part in one["values"][:1]]
                message["tensor"] += [replace(part, storage=None, special="sparse", held=0) for part in parts]
        return message

    def _node(self, message: Message) -> OnnxNode:
        attributes, metadata = dict(message["attribute"]), dict(message["metadata"])
        graphs = [graph for one in attributes.values() for graph in _graphs_in(one)]
        name = last(message["name"])
        node = OnnxNode(
            name=name,
            op_type=last(message["op_type"]),
            domain=last(message["domain"]),
            inputs=tuple(message["input"]),
            outputs=tuple(message["output"]),
            attributes={key: one for key, one in attributes.items() if not _graphs_in(one)},
            captured=tuple(sorted(set().union(*map(_captured, graphs)))),
            scopes=_names_in(metadata.get(_SCOPES, "")) or _path_in(name),
            classes=_names_in(metadata.get(_CLASSES, "")),
        )
        self._operators.add(node.operator)
        return node

    def _tensor(self, message: Message) -> TensorEntry:
        name, kind = last(message["name"]), last(message["type"], 0)
        shape, dtype = checked_shape(message["dims"]), _DTYPES.get(kind)
        if dtype is None:
            raise UnsupportedError(f"the type {kind} of '{plain(name)}', which this program does not know")
        if dtype == "string":
            return TensorEntry(name, shape, dtype, None, special="text", held=0)
        bits = _PACKED_BITS.get(dtype) or BITS[dtype]
        nbytes = (math.prod(shape) * bits + 7) // 8
        if last(message["location"], 0) == 1:
            storage = self._outside(name, dict(message["external"]), nbytes)
        else:
            storage = self._inside(name, message["values"], nbytes, max(1, bits // 8))
        special = f"of {bits} bits, several in a byte" if dtype in _PACKED_BITS else None
        return TensorEntry(name, shape, dtype, storage, special=special, held=nbytes if special else None)

    def _inside(self, name: str, values: list[tuple[int, Any]], nbytes: int, width: int) -> Storage:
        """Return the place of values in the file, or the values themselves where they are not in one piece."""
        spans = [value for number, value in values if isinstance(value, tuple) and number not in _VARINTS]
        if len(spans) == 1 == len(values):
            storage = Storage(self._path, name, spans[0][0], spans[0][1] - spans[0][0])
        else:
            data = bytearray()
            for number, value in values:
                if number in _VARINTS:
                    numbers = [value] if isinstance(value, int) else self.varints(value, _MAX_VARINTS)
                    data += b"".join((one % (1 << 8 * width)).to_bytes(width, "little") for one in numbers)
                elif isinstance(value, tuple):
                    data += self.data[slice(*value)]
                elif isinstance(value, bytes):
                    data += value
                if len(data) > nbytes:
                    break
            storage = Storage(self._path, name, 0, len(data), data=bytes(data))
        if storage.nbytes != nbytes:
            raise ValueError(f"{storage.nbytes} bytes for '{plain(name)}', whose shape needs {nbytes}")
        return storage

    def _outside(self, name: str, external: dict[str, str], nbytes: int) -> Storage:
        key, location = plain(name), external.get("location", "")
        file = _within_folder(self._path, location)
        try:
            begin, length = checked_sizes([int(external.get(one) or 0) for one in ("offset", "length")])
        except ValueError as error:
            raise ValueError(f"invalid offset of external data '{key}' in '{plain(location)}'") from error
        if "length" in external and length != nbytes:
            raise ValueError(f"{length} bytes of external data for '{key}', whose shape needs {nbytes}")
        if begin + nbytes > (n_file := file.stat().st_size):
            message = f"external data '{plain(location)}' of '{self._path}' is cut short: "
            message += f"'{key}' ends at byte {begin + nbytes:,} of {n_file:,}"
            raise CannotRunError(message, f"ls -l {shlex.quote(str(file))}")
        self._external[file] = None
        return Storage(file, name, begin, nbytes)


def _value(message: Message) -> OnnxValue:
    types = [one for held in message["type"] for one in held["tensor"]]
    dtype = _DTYPES.get(last(types[-1]["type"], 0)) if types else None
    shapes = types[-1]["shape"] if types else []
    sizes = [last(dim["size"], None) for dim in shapes[-1]["dim"]] if shapes else []
    shape = tuple(None if size == "" or (isinstance(size, int) and size < 0) else size for size in sizes)
    return OnnxValue(last(message["name"]), dtype, shape if shapes else None)


def _graphs_in(attribute: Any) -> list[Message]:
    return [one for one in attribute if isinstance(one, dict)] if isinstance(attribute, list) else []


def _captured(graph: Message) -> set[str]:
    """Return the names of values that a graph inside a node uses and does not define."""
    defined = {one.name for one in graph["tensor"] + graph["input"]}
    defined |= {name for node in graph["node"] for name in node.outputs}
    used = {name for node in graph["node"] for name in (*node.inputs, *node.captured)}
    return (used | {one.name for one in graph["output"]}) - defined - {""}


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
            message, f"cp -rL {shlex.quote(str(path.parent))} copy   has the files themselves"
        )
    if not file.is_file():
        raise CannotRunError(f"{shown} is missing", f"ls {shlex.quote(str(path.parent))}")
    return file


def _refuse_recursion(functions: dict[str, set[str]]) -> None:
    """Refuse functions that call themselves, which no runtime could put in place of their calls."""
    done: set[str] = set()
    for start, first in functions.items():
        waiting: list[tuple[str, Iterator[str]]] = [(start, iter(first))] if start not in done else []
        path = {start}
        while waiting:
            name, calls = waiting[-1]
            called = next((one for one in calls if one in functions and one not in done), None)
            if called is None:
                done.add(name)
                path.discard(name)
                waiting.pop()
            elif called in path:
                raise UnsupportedError(f"the function '{plain(called)}', which calls itself")
            else:
                path.add(called)
                waiting.append((called, iter(functions[called])))


def _names_in(text: str) -> tuple[str, ...]:
    """Return the names in the text of a Python list: `['', 'layer1', 'relu']`."""
    try:
        names = ast.literal_eval(text) if text.startswith("[") and len(text) < 1 << 14 else ()
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def _path_in(name: str) -> tuple[str, ...]:
    """Return the modules in a name such as `/layer1/layer1.0/conv1/Conv`, as older exporters write it.

    A part that begins with the part before it and a dot is the child of a container, named in full.
    """
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
