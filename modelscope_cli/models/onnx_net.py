"""An ONNX file as a module: onnxruntime computes, and each node is a layer that hooks can look at.

The graph runs as a whole. The values that hooks want are further outputs of that run, and each is handed through
the `OnnxLayer` of its node, so that everything that observes layers of torch observes these.
"""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.checkpoints.onnx_file import OnnxModel, OnnxNode, OnnxValue
from modelscope_cli.checkpoints.reading import INSTALL_ONNX, read_onnx
from modelscope_cli.checkpoints.tensors import each_with_file, read_values
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.plain_text import in_one_line, plain
from modelscope_cli.records.run import Shape, invocation

_MAX_PARTS = 24
_READABLE = re.compile(r"tensor\((float16|float|double|bool|u?int(8|16|32|64))\)")  # by NumPy
_UNSAFE = re.compile(r"[^\w-]+")
RESIZE = "give an input of the sizes it was exported with, or export it with dynamic_shapes"
_UPGRADE = "pip install --upgrade onnxruntime"


def open_session(model: OnnxModel, outputs: Sequence[str] = ()) -> Any:
    """Return an `onnxruntime.InferenceSession` on the CPU that can return further values of the graph.

    Args:
        outputs: names of values that are not outputs of the graph; with any, the runtime fuses fewer operators.
    """
    if find_spec("onnxruntime") is None:
        raise UsageError(f"running '{model.path}' needs onnxruntime, which is not installed", INSTALL_ONNX)
    import onnxruntime

    from modelscope_cli.checkpoints.onnx_protos import for_runtime  # with onnx

    if model.custom_operators:
        named = ", ".join(plain(one.replace(":", ".")) for one in model.custom_operators[:3])
        message = f"'{model.path}' uses operators that onnxruntime does not have: {named}"
        raise CannotRunError(message, _only_read(model))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as well
    options.intra_op_num_threads = torch.get_num_threads()
    options.enable_cpu_mem_arena = False  # it grows by doubling
    folder = str(model.path.parent.resolve())
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    source, arrays = for_runtime(model, outputs)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]  # not copied
    try:
        options.add_external_initializers(list(arrays), values)
        return onnxruntime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )  # a fallback prints to the standard output
    except Exception as error:  # the runtime raises a class of its own for each kind of refusal
        message = f"onnxruntime {onnxruntime.__version__} does not take '{model.path}': {_reason(error)}"
        opset = f"its opset is {model.opsets.get('', 'not stated')}"
        is_new = re.search(r"(?i)opset|IR version", str(error))
        raise CannotRunError(f"{message} ({opset})", _UPGRADE if is_new else _only_read(model)) from error


def _only_read(model: OnnxModel) -> str:
    return f"modelscope weights {shlex.quote(str(model.path))}   reads it without running it"


def _reason(error: Exception) -> str:
    """Return what the runtime says, without its error code and the place in its own source."""
    text = re.sub(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : |Non-zero status code returned while ",
        "",
        in_one_line(error, 800),
    )
    return plain(re.sub(r"/\S+/onnxruntime/core/\S+:\d+ .*?\) (?=[A-Z]|.*? was false)", "", text))[:300]


class OnnxLayer(nn.Module):
    """A node of a graph, or a part with several; its parameters are the initialisers that the node uses."""

    def forward(self, *inputs: Tensor, compute: Callable[[], Any]) -> Any:
        return compute()


@dataclass(slots=True)
class _Call:
    """A call of a layer in the run."""

    name: str
    node: OnnxNode
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxNet(nn.Module):
    """An ONNX file as a module in eval mode; its outputs have no gradient, and cannot be changed by hooks.

    Layers have the names of the torch modules that nodes were exported from, where the file has them: a module with
    one node is a layer of this name, one with several is a part with a layer for each node. Parts are not called. A
    batch that the file does not take is run piece by piece.
    """

    def __init__(self, model: OnnxModel, *, has_values: bool = True) -> None:
        super().__init__()
        self.model = model
        self._entries = {one.name: one for one in model.initialisers}
        for node in model.nodes:
            if node.op_type == "Constant" and isinstance(value := node.attributes.get("value"), TensorEntry):
                self._entries[node.outputs[0]] = value
        nodes = [node for node in model.nodes if node.op_type != "Constant"]
        self._names = _layer_names(nodes)
        self._calls = []
        for node in nodes:
            inputs = (name for name in (*node.inputs, *node.captured) if name and name not in self._entries)
            outputs = tuple(filter(None, node.outputs))
            self._calls.append(_Call(self._names[node.name], node, tuple(inputs), outputs))
        self._add_layers(nodes)
        self._add_parameters(nodes, has_values)
        self._session: tuple[tuple[str, ...], Any] | None = None
        self.eval()

    @property
    def input_shape(self) -> Shape | None:
        """Of one input without the batch, where the file has one input of fixed size."""
        sizes = [one.shape for one in self.model.inputs]
        rest = sizes[0][1:] if len(sizes) == 1 and sizes[0] else ()
        return tuple(rest) if rest and all(isinstance(size, int) and size for size in rest) else None  # type: ignore[arg-type]

    @property
    def notes(self) -> tuple[str, ...]:
        """How the file was read, one line each."""
        opset = self.model.opsets.get("", "?")
        notes = [f"onnx: opset {opset}, {len(self.model.nodes)} nodes, run by onnxruntime on the cpu"]
        if self.model.is_quantised:
            notes.append("onnx: quantised; weights are integers, and their scales are not applied to them")
        if not self.model.has_scopes:
            notes.append("onnx: the file has no module names; layers are named after nodes")
        return tuple(notes)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """Return the output of the graph; several as a dict by name."""
        is_watched = bool(self._forward_hooks) or any(module._forward_hooks for module in self.modules())
        wanted = tuple(name for call in self._calls for name in call.outputs) if is_watched else ()
        feeds = self._feeds(args, kwargs)
        values = self._compute(feeds, wanted)
        if is_watched:
            values |= {name: torch.from_numpy(array) for name, array in feeds.items()}
            shapes = {name: tuple(value.shape) for name, value in values.items()}
            shapes |= {name: entry.shape for name, entry in self._entries.items()}
            for call in self._calls:
                self._call_layer(call, values, shapes)
        outputs = {one.name: values[one.name] for one in self.model.outputs}
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def values_of(self, args: Any, names: Sequence[str]) -> dict[str, Tensor]:
        """Run the graph and return the values of these names, outputs or not."""
        feeds = self._feeds((), args) if isinstance(args, dict) else self._feeds(args, {})
        return self._compute(feeds, names)

    def close(self) -> None:
        """Free the memory of the runtime; another run opens it again."""
        self._session = None

    def is_stored_and_nonzero(self, name: str) -> bool:
        """Tell whether a value is stored in the file and not zero."""
        entries = [self._entries[name]] if name in self._entries else []
        return any(bool(read_values(entry, file).any()) for entry, file in each_with_file(entries))

    def _call_layer(self, call: _Call, values: dict[str, Tensor], shapes: dict[str, Shape]) -> None:
        """Call a layer with the values it had in the run; refuse a hook that changed what it returns."""
        outputs = [values[name] for name in call.outputs if name in values]
        given = outputs[0] if len(outputs) == 1 else tuple(outputs)
        versions = [tensor._version for tensor in outputs]

        def compute() -> Any:
            macs = count_macs(call.node, shapes)
            if macs:  # seen by torch's counter of FLOPs, where one is open
                torch.mm(torch.empty(1, macs, device="meta"), torch.empty(macs, 1, device="meta"))
            return given

        inputs = [values[name] for name in call.inputs if name in values]
        returned = self._layers[call.name](*inputs, compute=compute)
        if returned is not given or versions != [tensor._version for tensor in outputs]:
            message = (
                f"layer '{call.name}' of '{self.model.path}' cannot be changed: onnxruntime runs the graph"
            )
            raise CannotRunError(message, "give the PyTorch model it was made from, as FILE.py:NAME")

    # The run

    def _feeds(self, args: Sequence[Tensor], kwargs: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
        known = {one.name: one for one in self.model.inputs}
        if args and isinstance(args[0], list):  # images of a detector, which its export takes as one tensor
            args = [torch.stack(args[0])] if len({one.shape for one in args[0]}) == 1 else args[0]
        given = {**dict(zip(known, args, strict=False)), **kwargs}
        if len(args) > len(known) or set(given) != set(known):
            listed = ", ".join(f"{name}={_text(value)}" for name, value in known.items())
            message = f"'{self.model.path}' takes " + (f"the inputs {listed}" if listed else "no inputs")
            hint = "--input NAME=SPEC for each   or --input-shape of the one it takes"
            raise CannotRunError(f"{message}; others were given", hint if known else _only_read(self.model))
        return {name: self._feed(value, given[name].detach().cpu()) for name, value in known.items()}

    def _feed(self, value: OnnxValue, tensor: Tensor) -> "np.ndarray[Any, Any]":
        """Return an input in the dtype that the file takes; refuse another shape before the runtime does."""
        dtype = getattr(torch, value.dtype, None) if value.dtype else tensor.dtype
        if dtype is None:
            message = f"'{self.model.path}' takes {_text(value)} as '{value.name}', which torch does not have"
            raise CannotRunError(message, _only_read(self.model))
        wanted = value.shape if value.shape is not None else tuple(tensor.shape)
        pairs = list(zip(wanted, tensor.shape, strict=False))[1:]
        if len(wanted) != tensor.ndim or any(isinstance(size, int) and size != n for size, n in pairs):
            typed = ",".join(str(size) if isinstance(size, int) else "1" for size in wanted)
            message = f"'{self.model.path}' takes {_text(value)} as '{value.name}', but was given "
            message += "x".join(map(str, tensor.shape)) or "one number"
            line = " ".join(invocation().argv)
            is_of_images = len(wanted) == 4 and line and "--input-shape" not in line
            size = f"--size {','.join(typed.split(',')[2:])} or " if is_of_images else ""
            raise CannotRunError(message, f"{size}--input-shape {typed}")
        return tensor.to(dtype).contiguous().numpy()

    def _compute(self, feeds: dict[str, Any], wanted: Sequence[str]) -> dict[str, Tensor]:
        """Run the graph, in pieces where it has a batch of its own, and return the values by name."""
        names = tuple(dict.fromkeys((*(one.name for one in self.model.outputs), *wanted)))
        session = self._open(tuple(name for name in names if name in wanted))
        types = {one.name: one.type for one in session.get_outputs() if not _READABLE.fullmatch(one.type)}
        for one in self.model.outputs:
            if one.name in types:
                message = f"output '{one.name}' of '{self.model.path}' is a {types[one.name]}"
                raise CannotRunError(f"{message}, which NumPy cannot hold", _only_read(self.model))
        names = tuple(name for name in names if name not in types)
        pieces = [
            dict(zip(names, self._run(session, names, piece), strict=True)) for piece in self._pieces(feeds)
        ]
        whole = {name: [piece[name] for piece in pieces] for name in names}
        return {name: _joined(values) for name, values in whole.items()}

    def _open(self, wanted: tuple[str, ...]) -> Any:
        if self._session is None or self._session[0] != wanted:
            outputs = {one.name for one in self.model.outputs}
            self._session = None  # its memory, before the next one takes its own
            self._session = wanted, open_session(self.model, [name for name in wanted if name not in outputs])
        return self._session[1]

    def _run(self, session: Any, names: Sequence[str], feeds: dict[str, Any]) -> list[Any]:
        try:
            return list(session.run(list(names), feeds))
        except Exception as error:  # the runtime raises a class of its own for each kind of failure
            message = f"onnxruntime cannot run '{self.model.path}': {_reason(error)}"
            is_size = self.input_shape is None and re.search(r"(?i)shape|dimension|broadcast", message)
            raise CannotRunError(message, RESIZE if is_size else _only_read(self.model)) from error

    def _pieces(self, feeds: dict[str, Any]) -> Iterator[dict[str, Any]]:
        stated = {one.shape[0] for one in self.model.inputs if one.shape}
        size = next(iter(stated)) if len(stated) == 1 else None
        batches = {len(array) for array in feeds.values() if array.ndim}
        n_images = next(iter(batches)) if len(batches) == 1 else None
        if not isinstance(size, int) or not size or n_images in (None, size):
            yield feeds
            return
        if n_images % size:
            message = f"'{self.model.path}' takes {size} images at a time, but {n_images} were given"
            raise CannotRunError(message, f"--batch {size}")
        for at in range(0, n_images, size):
            yield {name: array[at : at + size] for name, array in feeds.items()}

    # The layers

    def _add_layers(self, nodes: Sequence[OnnxNode]) -> None:
        types = {self._names[node.name]: node.op_type for node in nodes}
        self._layers: dict[str, OnnxLayer] = {}
        for name in types:
            parts = name.split(".")
            parent: nn.Module = self
            for n, part in enumerate(parts, 1):
                path = ".".join(parts[:n])
                if path not in self._layers:
                    kind = _UNSAFE.sub("_", types.get(path, "")) or "Part"
                    self._layers[path] = type(kind, (OnnxLayer,), {})()
                    parent.add_module(part, self._layers[path])
                parent = self._layers[path]

    def _add_parameters(self, nodes: Sequence[OnnxNode], has_values: bool) -> None:
        """Give each initialiser to the layers that use it: a parameter where it is a weight, else a buffer."""
        users: dict[str, list[tuple[OnnxNode, int]]] = defaultdict(list)
        for node in nodes:
            for at, name in enumerate(node.inputs):
                if name in self._entries:
                    users[name].append((node, at))
        entries = [entry for name, entry in self._entries.items() if name in users and entry.special is None]
        names = {id(self._entries[name]): name for name in users}
        for entry, file in each_with_file(entries):
            if not has_values:
                values = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device="meta")
            else:
                mapped = _mapped(entry)
                values = read_values(entry, file) if mapped is None else mapped
            name = names[id(entry)]
            is_weight = any(_is_weight(node, at, entry) for node, at in users[name])
            held = nn.Parameter(values, requires_grad=False) if is_weight else values
            for node, _ in users[name]:
                layer = self._layers[self._names[node.name]]
                own = _UNSAFE.sub("_", name.rpartition(".")[2].rpartition("/")[2]) or "value"
                while hasattr(layer, own):
                    own += "_"
                if isinstance(held, nn.Parameter):
                    layer.register_parameter(own, held)
                else:
                    layer.register_buffer(own, held)


def _mapped(entry: TensorEntry) -> Tensor | None:
    """Return large, plain and aligned values without copying them, those in a file mapped from it; else None."""
    storage = entry.storage
    if storage is None or storage.nbytes < 1 << 20 or storage.position % 16:
        return None
    data: Any = storage.data
    if data is None:
        data = np.memmap(storage.file, np.uint8, "c", storage.position, (storage.nbytes,))
    return torch.frombuffer(data, dtype=getattr(torch, entry.dtype)).reshape(entry.shape)


def load_onnx(path: Path, *, has_values: bool = True) -> OnnxNet:
    """Return the module of an ONNX file; without values, parameters are on meta, and the runtime has its own."""
    return OnnxNet(read_onnx(path), has_values=has_values)


def count_macs(node: OnnxNode, shapes: Mapping[str, Shape]) -> int:
    """Return the multiplications and additions of a node, as torch counts them; 0 for one that is not counted."""
    first, second, *_ = (*(shapes.get(name) for name in node.inputs), None, None)
    out = shapes.get(node.outputs[0]) if node.outputs else None
    if first is None or out is None:
        return 0
    n_out = math.prod(out)
    match node.op_type:
        case "Conv" | "ConvInteger" | "FusedConv" if second is not None:
            return n_out * math.prod(second[1:])
        case "QLinearConv" if (weight := shapes.get(node.inputs[3])) is not None:
            return n_out * math.prod(weight[1:])
        case "ConvTranspose" if second is not None:
            return math.prod(first) * math.prod(second[1:])
        case "Gemm" | "QGemm" if len(first) == 2:
            return n_out * first[0 if node.attributes.get("transA") else 1]
        case "MatMul" | "MatMulInteger" | "QLinearMatMul" | "FusedMatMul" if first:
            return n_out * first[-1]
        case "MatMulNBits":
            return n_out * int(node.attributes.get("K", 0))
        case "Einsum":
            return _einsum_macs(str(node.attributes.get("equation", "")), first, second)
    return 0


def _einsum_macs(equation: str, first: Shape, second: Shape | None) -> int:
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    shapes = [shape for shape in (first, second) if shape is not None]
    if len(terms) != 2 or [len(term) for term in terms] != [len(shape) for shape in shapes]:
        return 0
    return math.prod(dict(zip("".join(terms), (*first, *(second or ())), strict=True)).values())


def _layer_names(nodes: Sequence[OnnxNode]) -> dict[str, str]:
    """Return the layer of each node: the module it comes from if that has no other node, else one inside it.

    Nodes of one kind in the same module, each with a name of its own in torch's program, are calls of this layer.
    """
    inside: dict[str, list[OnnxNode]] = defaultdict(list)
    parts: set[str] = set()
    for node in nodes:
        path = _path(node)
        inside[path].append(node)
        parts |= {path[:at] for at, letter in enumerate(path) if letter == "."}
    names: dict[str, str] = {}
    taken = {*inside, *parts}
    for path, some in inside.items():
        is_one = len({node.op_type for node in some}) == 1 and len(
            {node.scopes[-1:] for node in some}
        ) == len(some)
        for node in some:
            if path and path not in parts and is_one:
                names[node.name] = path
                continue
            own = _UNSAFE.sub("_", node.name.rpartition("/")[2].removeprefix("node_")) or node.op_type
            own = own + "_" if hasattr(nn.Module, own) else own
            name = start = f"{path}.{own}" if path else own
            n = 1
            while name in taken:
                n += 1
                name = f"{start}_{n}"
            taken.add(name)
            names[node.name] = name
    return names


def _path(node: OnnxNode) -> str:
    """Return the module of a node as a name that a torch module may have."""
    parts = [_UNSAFE.sub("_", part) for part in node.module.split(".") if part]
    return ".".join(part + "_" if hasattr(nn.Module, part) else part for part in parts[:_MAX_PARTS])


# Inputs that are settings of an operation and not weights, by position; scale and zero point of quantised numbers.
_SETTINGS = {
    **{"BatchNormalization": (3, 4), "Resize": (1, 2, 3), "Upsample": (1,), "Clip": (1, 2), "Pad": (1, 2)},
    **{"QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "Slice": (1, 2, 3, 4), "Reshape": (1,)},
    **{"QLinearConv": (1, 2, 4, 5, 6, 7), "QLinearMatMul": (1, 2, 4, 5, 6, 7), "ConvInteger": (2, 3)},
    **{"MatMulInteger": (2, 3), "Gather": (1,), "Expand": (1,), "Pow": (1,), "ConstantOfShape": (0,)},
}
_WEIGHTS = ("float32", "float16", "bfloat16", "float64", "int8", "uint8")


def _is_weight(node: OnnxNode, at: int, entry: TensorEntry) -> bool:
    is_bias = entry.dtype == "int32" and node.op_type in ("DequantizeLinear", "QLinearConv")
    return (
        (entry.dtype in _WEIGHTS or is_bias)
        and bool(entry.shape)
        and at not in _SETTINGS.get(node.op_type, ())
    )


def _joined(pieces: Sequence[Any]) -> Tensor:
    """Return the values of all pieces of a batch as one tensor; one that no piece changes is returned once."""
    tensors = [torch.from_numpy(np.asarray(piece)) for piece in pieces]
    is_batch = len(tensors) > 1 and tensors[0].ndim and len({one.shape[1:] for one in tensors}) == 1
    return torch.cat(tensors) if is_batch else tensors[0]


def _text(value: OnnxValue) -> str:
    sizes = (
        "?"
        if value.shape is None
        else "x".join(str(size) if isinstance(size, int) else "?" for size in value.shape)
    )
    return f"{sizes or 'scalar'} {value.dtype or ''}".strip()
