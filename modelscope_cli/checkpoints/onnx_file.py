"""Read an ONNX model as data: its nodes, values and tensors. Nothing of it is run. Standard library.

Protocol buffers are read field by field from a mapped file, so that the values of tensors are not: an initialiser is
a `TensorEntry`, a place in the file or in one of its files of external data, whatever its size.
The format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import ast
import math
import mmap
import shlex
import struct
from collections.abc import Callable, Iterable, Iterator
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
from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import plain

FORMAT = "ONNX"
# Torch's names of the values of `TensorProto.DataType`; those of 4 and 2 bits share bytes, which torch does not have.
_DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string"},
    **{9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64"},
    **{15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2"},
    **{20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu"},
    **{25: "uint2", 26: "int2"},
}
_PACKED_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}
# Fields of a TensorProto that hold values: fixed-width numbers, and varints with the bytes of each number.
_FIXED = {4: 4, 10: 8}  # float_data, double_data
_VARINTS = {5: "int32", 7: "int64", 11: "uint64"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Operators that runtimes bring along; any other set of operators is somebody's own.
STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft")
_MAX_DEPTH = 24  # of graphs inside the nodes of graphs
_MAX_FIELDS = 20_000_000  # a minute; the largest models have a tenth
_MAX_VARINTS = 1 << 24  # values written as one varint each, which exporters do for small tensors only
_SCOPES = "pkg.torch.onnx.name_scopes"


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
    """One operation of the main graph.

    Attributes:
        name: unique among the nodes: its own, else its operator and its place.
        inputs, outputs: names of values; empty for an optional one left out.
        attributes: numbers, strings, lists of these, and `TensorEntry`; "a graph" for a subgraph.
        captured: values from around its subgraphs that these use.
        scopes: the modules it was exported from, the outermost first and the last its own, then its name in torch's
            program; by the parts of its name where the exporter did not write them; empty where that has none.
        classes: the classes of these, if written.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The name of the torch module it was exported from; empty if unknown, or if that is the model itself."""
        return self.scopes[-2] if len(self.scopes) > 1 else ""


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An ONNX file, without the values of its tensors.

    Attributes:
        opsets: version by domain; the standard operators have the domain "".
        inputs: without those that only name an initialiser.
        initialisers: named tensors of the main graph.
        values: types and shapes that the file states, by name.
        functions: `domain:name` of the functions it brings along.
        operators: `domain:name` of every operator used anywhere, those of functions and subgraphs included.
        external: the files beside it that hold values.
    """

    path: Path
    ir_version: int
    producer: str
    opsets: dict[str, int]
    metadata: dict[str, str]
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    nodes: tuple[OnnxNode, ...]
    initialisers: tuple[TensorEntry, ...]
    values: dict[str, OnnxValue]
    functions: frozenset[str]
    operators: frozenset[str]
    external: tuple[Path, ...]

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
        words = ("QuantizeLinear", "QLinear", "Integer", "MatMulNBits")
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
    """Read an ONNX file.

    Raises:
        CannotRunError: it is not one, is damaged, cut short or nested without end, or names external data outside its
            folder, that is missing or too small (exit 4).
    """
    head = read_head(path, "ONNX file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).model()
    except (ValueError, OverflowError, RecursionError) as error:
        if not is_onnx(head):
            hint = remedy(path, head) if "lfs" in guess(head) else f"head -c 300 {shlex.quote(str(path))}"
            raise CannotRunError(f"'{path}' is not an ONNX file: {guess(head)}", hint) from error
        raise damaged(path, error, "ONNX file") from error


@dataclass(slots=True)
class _Graph:
    """A graph while it is read; `names` are the values that it defines itself."""

    nodes: list[OnnxNode] = field(default_factory=list)
    initialisers: list[TensorEntry] = field(default_factory=list)
    inputs: list[OnnxValue] = field(default_factory=list)
    outputs: list[OnnxValue] = field(default_factory=list)
    values: dict[str, OnnxValue] = field(default_factory=dict)

    def captured(self) -> set[str]:
        """Return the names of values used here and defined outside."""
        defined = {one.name for one in (*self.initialisers, *self.inputs)}
        used: set[str] = {one.name for one in self.outputs}
        for node in self.nodes:
            used |= {*node.inputs, *node.captured}
            defined |= {*node.outputs}
        return used - defined - {""}


_Span = tuple[int, int]
_Field = tuple[int, int, Any]  # number, wire type, and a number or the span of its bytes


class _Reader:
    """Reads the messages of one file; spans are positions in it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data = path, data
        self._n_left = _MAX_FIELDS
        self._operators: set[str] = set()
        self._external: dict[Path, None] = {}

    def model(self) -> OnnxModel:
        """Read the `ModelProto` that the file is."""
        ir_version, producer = 0, ["", ""]
        opsets: dict[str, int] = {}
        metadata: dict[str, str] = {}
        functions: dict[str, set[str]] = {}
        graph: _Graph | None = None
        for number, _, value in self._fields((0, len(self._data))):
            if number == 1:
                ir_version = self._int(value)
            elif number in (2, 3):
                producer[number - 2] = self._text(value)
            elif number == 7:
                graph = self._graph(self._span(value), graph)  # several are one, by the rules of the format
            elif number == 8:
                domain, version = self._opset(self._span(value))
                opsets[domain] = version
            elif number == 14:
                self._pair(self._span(value), metadata)
            elif number == 20:  # training
                self._each(self._span(value), {1: self._graph, 2: self._graph})
            elif number == 25:
                self._function(self._span(value), functions)
        if graph is None or not ir_version:
            raise ValueError("no graph where a model has one")
        _refuse_recursion(functions)
        return OnnxModel(
            path=self._path,
            ir_version=ir_version,
            producer=" ".join(producer).strip(),
            opsets={"" if domain == "ai.onnx" else domain: version for domain, version in opsets.items()},
            metadata=metadata,
            inputs=_without(graph.inputs, graph.initialisers),
            outputs=tuple(graph.outputs),
            nodes=_distinct(graph.nodes),
            initialisers=tuple(graph.initialisers),
            values={**graph.values, **{one.name: one for one in (*graph.inputs, *graph.outputs)}},
            functions=frozenset(functions),
            operators=frozenset(self._operators),
            external=tuple(self._external),
        )

    # Messages of ONNX

    def _graph(self, span: _Span, graph: _Graph | None = None, depth: int = 0) -> _Graph:
        if depth > _MAX_DEPTH:
            raise UnsupportedError(f"graphs nested in one another more than {_MAX_DEPTH} deep")
        graph = graph or _Graph()
        for number, _, value in self._fields(span):
            if number == 1:
                graph.nodes.append(self._node(self._span(value), depth))
            elif number == 5:
                graph.initialisers.append(self._tensor(self._span(value)))
            elif number == 15:  # sparse: its values and their places
                parts = self._each(self._span(value), {1: self._tensor, 2: self._tensor})
                names = [part.name for part in parts[:1]]
                graph.initialisers += [TensorEntry(name, (), "string", None, special="sparse", held=0) for name in names]
            elif number in (11, 12):
                (graph.inputs if number == 11 else graph.outputs).append(self._value(self._span(value)))
            elif number == 13:
                stated = self._value(self._span(value))
                graph.values[stated.name] = stated
        return graph

    def _node(self, span: _Span, depth: int) -> OnnxNode:
        inputs, outputs, texts = [], [], {3: "", 4: "", 7: ""}
        attributes: dict[str, Any] = {}
        metadata: dict[str, str] = {}
        graphs: list[_Graph] = []
        for number, _, value in self._fields(span):
            if number in (1, 2):
                (inputs if number == 1 else outputs).append(self._text(value))
            elif number in texts:
                texts[number] = self._text(value)
            elif number == 5:
                name, held = self._attribute(self._span(value), depth, graphs)
                attributes[name] = held
            elif number == 9:
                self._pair(self._span(value), metadata)
        name, op_type, domain = texts[3], texts[4], texts[7]
        self._operators.add(f"{domain}:{op_type}")
        return OnnxNode(
            name=name,
            op_type=op_type,
            domain=domain,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes=attributes,
            captured=tuple(sorted(set().union(*(graph.captured() for graph in graphs)))),
            scopes=_names_in(metadata.get(_SCOPES, "")) or _path_in(name),
            classes=_names_in(metadata.get("pkg.torch.onnx.class_hierarchy", "")),
        )

    def _attribute(self, span: _Span, depth: int, graphs: list[_Graph]) -> tuple[str, Any]:
        name, one, several = "", None, []
        for number, wire, value in self._fields(span):
            if number == 1:
                name = self._text(value)
            elif number == 2:
                one = self._float(value)
            elif number == 3:
                one = self._int(value)
            elif number == 4:
                one = self._text(value)
            elif number in (5, 10):
                one = self._tensor(self._span(value))
            elif number in (6, 11):
                graphs.append(self._graph(self._span(value), depth=depth + 1))
                one = "a graph"
            elif number == 7:
                several += self._packed(value, wire, 4, self._float)
            elif number == 8:
                several += self._packed(value, wire, 0, self._int)
            elif number == 9:
                several.append(self._text(value))
            elif number in (22, 23):  # sparse tensors
                self._each(self._span(value), {1: self._tensor, 2: self._tensor})
        return name, one if one is not None else several

    def _function(self, span: _Span, functions: dict[str, set[str]]) -> None:
        texts = {1: "", 10: ""}
        outer, self._operators = self._operators, set()
        for number, wire, value in self._fields(span):
            if number in texts and wire == _BYTES:
                texts[number] = self._text(value)
            elif number == 7:
                self._node(self._span(value), 0)
            elif number == 11:  # attributes with a default
                self._attribute(self._span(value), 0, [])
        functions[f"{texts[10]}:{texts[1]}"] = self._operators
        self._operators = outer | self._operators

    def _value(self, span: _Span) -> OnnxValue:
        name, dtype, shape = "", None, None
        for number, _, value in self._fields(span):
            if number == 1:
                name = self._text(value)
            elif number == 2:
                for kind, _, inner in self._fields(self._span(value)):
                    if kind == 1:  # a tensor; sequences, maps and optional values have neither
                        dtype, shape = self._tensor_type(self._span(inner))
        return OnnxValue(name, dtype, shape)

    def _tensor_type(self, span: _Span) -> tuple[str | None, tuple[int | str | None, ...] | None]:
        dtype, shape = None, None
        for number, _, value in self._fields(span):
            if number == 1:
                dtype = _DTYPES.get(self._int(value))
            elif number == 2:
                shape = tuple(
                    self._dimension(self._span(inner))
                    for kind, _, inner in self._fields(self._span(value))
                    if kind == 1
                )
        return dtype, shape

    def _dimension(self, span: _Span) -> int | str | None:
        size: int | str | None = None
        for number, _, value in self._fields(span):
            if number == 1 and self._int(value) >= 0:
                size = self._int(value)
            elif number == 2:
                size = self._text(value) or None
        return size

    def _tensor(self, span: _Span) -> TensorEntry:
        dims: list[int] = []
        name, kind, is_external = "", 0, False
        external: dict[str, str] = {}
        values: list[tuple[int, int, Any]] = []
        for number, wire, value in self._fields(span):
            if number == 1:
                dims += self._packed(value, wire, 0, self._int)
            elif number == 2:
                kind = self._int(value)
            elif number == 8:
                name = self._text(value)
            elif number == 13:
                self._pair(self._span(value), external)
            elif number == 14:
                is_external = self._int(value) == 1
            elif number == 9 or number in _FIXED or number in _VARINTS:
                values.append((number, wire, value))
        shape = checked_shape(dims)
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise UnsupportedError(f"the type {kind} of '{plain(name)}', which this program does not know")
        numel = math.prod(shape)
        if dtype == "string":
            return TensorEntry(name, shape, dtype, None, special="text", held=0)
        bits = _PACKED_BITS.get(dtype) or BITS[dtype]
        nbytes = (numel * bits + 7) // 8
        special = f"of {bits} bits, several in a byte" if dtype in _PACKED_BITS else None
        if is_external:
            storage = self._outside(name, external, nbytes)
        else:
            storage = self._inside(name, values, dtype, numel, nbytes)
        return TensorEntry(name, shape, dtype, storage, special=special, held=nbytes if special else None)

    def _inside(self, name: str, values: list[_Field], dtype: str, numel: int, nbytes: int) -> Storage:
        key = plain(name)
        spans = [value for number, wire, value in values if wire == _BYTES and (number == 9 or number in _FIXED)]
        is_plain = len(spans) == 1 == len(values)
        if not numel and not values:
            return Storage(self._path, name, 0, 0, data=b"")
        if is_plain:
            start, end = spans[0]
            if end - start != nbytes:
                raise ValueError(f"{end - start} bytes for '{key}', whose shape needs {nbytes}")
            return Storage(self._path, name, start, nbytes)
        data = bytearray()
        for number, wire, value in values:
            if number in _VARINTS:
                numbers = self._packed(value, wire, 0, self._int, _MAX_VARINTS)
                width = max(1, nbytes // numel if numel else 1)
                if dtype in ("complex64", "complex128"):
                    raise ValueError(f"integers as the values of '{key}'")
                data += b"".join((one & (1 << 8 * width) - 1).to_bytes(width, "little") for one in numbers)
            elif wire == _BYTES:
                data += self._data[slice(*value)]
            else:
                data += value
            if len(data) > nbytes:
                break
        if len(data) != nbytes:
            raise ValueError(f"{len(data)} bytes or more for '{key}', whose shape needs {nbytes}")
        return Storage(self._path, name, 0, nbytes, data=bytes(data))

    def _outside(self, name: str, external: dict[str, str], nbytes: int) -> Storage:
        key, location = plain(name), external.get("location", "")
        file = _within_folder(self._path, location)
        try:
            begin, length = checked_sizes([int(external.get(one) or 0) for one in ("offset", "length")])
        except ValueError as error:
            raise ValueError(f"external data of '{key}' at no place in '{plain(location)}'") from error
        if "length" in external and length != nbytes:
            raise ValueError(f"{length} bytes of external data for '{key}', whose shape needs {nbytes}")
        n_file = file.stat().st_size
        if begin + nbytes > n_file:
            raise CannotRunError(
                f"external data '{plain(location)}' of '{self._path}' is cut short: "
                f"'{key}' ends at byte {begin + nbytes:,} of {n_file:,}",
                f"ls -l {shlex.quote(str(file))}",
            )
        self._external[file] = None
        return Storage(file, name, begin, nbytes)

    def _opset(self, span: _Span) -> tuple[str, int]:
        domain, version = "", 0
        for number, _, value in self._fields(span):
            if number == 1:
                domain = self._text(value)
            elif number == 2:
                version = self._int(value)
        return domain, version

    def _pair(self, span: _Span, into: dict[str, str]) -> None:
        texts = {1: "", 2: ""}
        for number, _, value in self._fields(span):
            if number in texts:
                texts[number] = self._text(value)
        into[texts[1]] = texts[2]

    # The wire format: https://protobuf.dev/programming-guides/encoding

    def _each(self, span: _Span, readers: dict[int, Callable[[_Span], Any]]) -> list[Any]:
        return [
            readers[number](self._span(value)) for number, _, value in self._fields(span) if number in readers
        ]

    def _fields(self, span: _Span) -> Iterator[_Field]:
        """Yield the fields of a message: its number, wire type, and a number, bytes or the span of its bytes."""
        at, end = span
        while at < end:
            self._n_left -= 1
            if self._n_left < 0:
                raise UnsupportedError(f"a graph of more than {_MAX_FIELDS:,} entries")
            tag, at = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if not number:
                raise ValueError("bytes that are not those of a protocol buffer")
            if wire == _VARINT:
                value, at = self._varint(at, end)
                yield number, wire, value
                continue
            if wire == _BYTES:
                size, at = self._varint(at, end)
            elif wire in (_FIXED32, _FIXED64):
                size = 4 if wire == _FIXED32 else 8
            else:
                raise ValueError("bytes that are not those of a protocol buffer")
            if size > end - at:
                raise ValueError(f"{size:,} bytes announced where {end - at:,} are left")
            yield number, wire, (at, at + size) if wire == _BYTES else self._data[at : at + size]
            at += size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
        raise ValueError("a number that does not end")

    def _packed(
        self, value: Any, wire: int, width: int, read: Callable[[Any], Any], most: int = _MAX_FIELDS
    ) -> list[Any]:
        """Return a repeated number: one by itself, or a run of them."""
        if wire != _BYTES:
            return [read(value)]
        at, end = value
        if width:
            if (end - at) % width:
                raise ValueError("numbers that are cut short")
            return [read(self._data[n : n + width]) for n in range(at, end, width)]
        numbers = []
        while at < end:
            one, at = self._varint(at, end)
            numbers.append(read(one))
            if len(numbers) > most:
                raise UnsupportedError(f"more than {most:,} numbers of variable length")
        return numbers

    def _span(self, value: Any) -> _Span:
        if not isinstance(value, tuple):
            raise ValueError("a number where a message should be")
        return value

    def _int(self, value: Any) -> int:
        if not isinstance(value, int):
            raise ValueError("something else where a number should be")
        return value - (1 << 64) if value >= 1 << 63 else value

    def _float(self, value: Any) -> float:
        if not isinstance(value, bytes) or len(value) != 4:
            raise ValueError("something else where a number should be")
        return float(struct.unpack("<f", value)[0])

    def _text(self, value: Any) -> str:
        start, end = self._span(value)
        return self._data[start:end].decode("utf-8", errors="replace")


def _within_folder(path: Path, location: str) -> Path:
    """Return a file of external data; one outside the model's folder is refused, also if a link leads there."""
    file = path.parent / location
    names = (PurePosixPath(location), PureWindowsPath(location))
    is_outside = any(name.is_absolute() or name.anchor or ".." in name.parts for name in names)
    shown = f"external data '{plain(location)[:200]}' of '{path}'"
    if not location or "\0" in location or is_outside:
        message = f"{shown} is outside its folder, and is not read"
        raise CannotRunError(message, "onnx.load and onnx.save by its maker put all values into one file")
    if not file.resolve().is_relative_to(path.parent.resolve()):
        message = f"{shown} is a link that leads out of its folder, and is not read"
        raise CannotRunError(message, f"cp -rL {shlex.quote(str(path.parent))} copy   puts the files themselves there")
    if not file.is_file():
        raise CannotRunError(f"{shown} is missing", f"ls {shlex.quote(str(path.parent))}")
    return file


def _refuse_recursion(functions: dict[str, set[str]]) -> None:
    """Refuse functions that call themselves, which no runtime could put in place of their calls."""
    done: set[str] = set()
    for start in functions:
        waiting: list[tuple[str, Iterator[str]]] = [(start, iter(functions[start]))] if start not in done else []
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


def _without(values: Iterable[OnnxValue], initialisers: Iterable[TensorEntry]) -> tuple[OnnxValue, ...]:
    names = {one.name for one in initialisers}
    return tuple(one for one in values if one.name not in names)


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
