"""What an ONNX model holds: its nodes, values and tensors, as data. Standard library."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import Contents, Shape, TensorEntry

FORMAT = "ONNX"
# Operators that runtimes bring along; any other set is custom.
STANDARD_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "com.microsoft",
)


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
    def normalises_by_batch(self) -> bool:
        return self.op_type == "BatchNormalization" and self.attributes.get("training_mode") == 1

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
    detached: tuple[TensorEntry, ...]  # the large initialisers of the file itself
    skeleton: bytes = field(repr=False)  # the file without the values of these

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
