"""What B may be instead of a model with the layers of A: an ONNX file, or a model with other names."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from modelscope_cli.hooks.forward_passes import OutputStream
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.models.onnx_net import OnnxNet
from modelscope_cli.records.diff import BY_WEIGHTS
from modelscope_cli.records.run import Arguments

_MOST_BYTES = 64 << 20  # of the values of one run of an ONNX file that are kept at once


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a graph; `modules` are those it was made in, outermost first, empty if unknown."""

    name: str
    operator: str
    modules: tuple[str, ...]
    inputs: tuple[str, ...]
    numbers: tuple[float, ...] = ()  # its arguments that are real numbers, such as the epsilon of a norm


class OnnxProgram:
    """The graph of an ONNX file, run by onnxruntime."""

    def __init__(self, net: OnnxNet) -> None:
        self.net, self.is_quantised = net, net.model.is_quantised
        nodes = [node for node in net.model.nodes if node.op_type != "Constant"]
        # Values in execution order; `outputs` are the names of some
        self.values = tuple(
            Value(
                name,
                node.op_type,
                tuple(scope for scope in node.scopes[:-1] if scope),
                (*node.inputs, *node.captured),
                tuple(one for one in node.attributes.values() if isinstance(one, float)),
            )
            for node in nodes
            for name in node.outputs
            if name
        )
        self.outputs = tuple(one.name for one in net.model.outputs)
        # How layers are matched, for the record
        self.rule = "the scopes in the file" if net.model.has_scopes else "the names of its nodes"
        self._nbytes: dict[str, int] = {}

    def run(self, args: Arguments, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        for group in self._groups(names, sum(tensor.nbytes for _, tensor in tensors_in(args))):
            computed = self.net.values_of(args, group)
            for name in group:
                if name in computed:
                    self._nbytes[name] = computed[name].nbytes
                    yield name, computed.pop(name)

    def _groups(self, names: Sequence[str], input_bytes: int) -> Iterator[list[str]]:
        """Split values so that those of one run fit in memory; at first by the shapes that the file states."""
        group: list[str] = []
        nbytes = 0
        for name in names:
            stated = self.net.model.values.get(name)
            sizes = stated.sizes if stated is not None else None
            guess = 4 * input_bytes if sizes is None else 4 * math.prod(sizes)
            size = self._nbytes.get(name, guess)
            if group and nbytes + size > _MOST_BYTES:
                yield group
                group, nbytes = [], 0
            group.append(name)
            nbytes += size
        if group:
            yield group


class LayersInOrder:
    """The innermost layers of a model that names them otherwise than A, in the order in which they first run.

    Args:
        twins: the layers of B that hold the same values as one of A, by the name of that.
    """

    rule, is_quantised = BY_WEIGHTS, False

    def __init__(self, module: nn.Module, seed: int, twins: Mapping[str, str]) -> None:
        self.module, self.twins, self._seed = module, twins, seed
        self.values, self.outputs = tuple[Value, ...](), tuple[str, ...]()

    def run(self, args: Arguments, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Run the model; the first pass yields all values, since nothing is known of them before."""
        wanted, is_first = set(names), not self.outputs
        stream = OutputStream(self.module, seed=self._seed, blocks={""})
        with (
            HookSession(self.module, [stream]) as session,
            closing(stream.follow(lambda: session.run(args))) as outputs,
        ):
            for one in outputs:
                call = one.call
                name = ".".join(filter(None, (call.label if call.name else "output", one.path)))
                if is_first and call.name:
                    self.values += (Value(name, call.type, (call.name,), ()),)
                elif is_first:
                    self.outputs += (name,)
                if is_first or name in wanted:
                    yield name, one.tensor


# What runs instead of layers.
Program: TypeAlias = OnnxProgram | LayersInOrder


def program_of(module: nn.Module) -> Program | None:
    """Return a module as a graph of values; None for one with layers."""
    return OnnxProgram(module) if isinstance(module, OnnxNet) else None
