"""Which call's output goes into which call, and through which functions, seen in one forward.

Every function of torch that a forward calls is seen, with the tensors that go in and come out. What a layer that
calls no other computes is that layer's own affair. In-place writes are told by torch's count of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.summary.functions import Functions, plain_name, tensors_among
from modelscope_cli.analysis.summary.origins import NOTHING, OUTPUT, UNKNOWN, Node, Nodes, Origins
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, Intervention
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.records.run import Shape
from modelscope_cli.records.summary import Flow, Operation

# They give what they are given: in another place, or a part of it, or for Python to look at.
_QUIET = frozenset(
    {
        "__get__",
        "__getitem__",
        "contiguous",
        "detach",
        "clone",
        "to",
        "type_as",
        "expand",
        "expand_as",
        "alias",
    }
    | {"copy_", "view_as", "__iter__", "unbind", "requires_grad_", "__deepcopy__", "size", "numel", "dim"}
)
_FILLING = frozenset({"copy_", "fill_", "zero_"})  # of what they write to nothing is left
_LEAVING = frozenset({"item", "numpy", "tolist", "__array__", "__float__", "__int__"})


@dataclass(slots=True)
class _Open:
    """A call that is running.

    Attributes:
        given: where the tensors came from that it was called with.
        before: these tensors, and how often each had been written to.
        operations: what it has computed itself.
    """

    call: Call
    given: Nodes
    before: list[tuple[Tensor, int]]
    operations: list[Node] = field(default_factory=list)

    @property
    def node(self) -> Node:
        return "call", self.call.order


@dataclass(slots=True)
class _Operation:
    """`root`: the call, joint or input whose flow it works on; of a joint itself."""

    names: list[str]
    inside: int
    after: int
    root: Node
    is_joint: bool
    shapes: tuple[Shape, ...] = ()


class FlowRecorder(Intervention):
    """Follows tensors from call to call. It is an observer and an intervention of one session, and `mode` is open
    while that runs: a layer that returns the very tensor it was given, as a dropout does, has to return another
    object with the same values, as nobody could tell the two from each other afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self.mode = Functions(self.see)
        self._origins = Origins(model)
        self._open: list[_Open] = []
        self._around: list[int] = []  # of every call, the order of the call it was made in
        self._operations: dict[Node, _Operation] = {}
        self._into: dict[Node, dict[Node, None]] = {}
        self._owner: dict[Node, Node] = {}  # of operations inside an innermost call, that call
        self._last: Node | None = None
        self._left: dict[str, None] = {}
        self._inputs: tuple[str, ...] = ()

    def change_inputs(
        self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = tensors_in((args, kwargs))
        if not call.depth:
            self._inputs = tuple(path.partition(".")[2] for path, _ in given)
            for _, tensor in given:
                same = frozenset(("input", n) for n, (_, other) in enumerate(given) if other is tensor)
                self._origins.put(tensor, same)
        del self._open[call.depth :]
        self._around.append(self._open[-1].call.order if self._open else 0)
        before = [(tensor, version_of(tensor)) for _, tensor in given]
        self._open.append(_Open(call, self._sources(tensor for _, tensor in given), before))
        self._last = None
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if torch.is_grad_enabled():  # what a backward pass goes through is left alone
            return output
        same = {id(tensor) for tensor, n in self._open[call.depth].before if version_of(tensor) == n}

        def another(path: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in same or tensor.is_nested:
                return tensor
            made = tensor.view_as(tensor)
            self._origins.put(made, self._origins.of(tensor))
            return made

        return map_tensors(output, another)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        opened = self._open[call.depth]
        made = [tensor for _, tensor in tensors_in(output)]
        if is_innermost:
            self._absorb(opened)
            self._connect(opened.given, opened.node)
            self._give([t for t, n in opened.before if version_of(t) != n], made, frozenset({opened.node}))
        if not call.depth:
            self._connect(self._sources(made), OUTPUT)
        del self._open[call.depth :]
        self._last = None

    def see(self, name: str, given: list[Tensor], written: list[Tensor], result: Any) -> None:
        """Look at a function that was called: what it was given, which of that it wrote to, and what it gave."""
        if not self._open:
            return
        made = [one for one in tensors_among(result) if not any(one is tensor for tensor in given)]
        if not made and not written:
            if name in _LEAVING and self._sources(given):
                self._left[name.strip("_")] = None
            return
        if name in _QUIET and given and not written:
            is_shared = [self._origins.share(one, given[0]) for one in made]
            if all(is_shared):
                return
        nodes = self._operate(name, self._sources(given[1:] if name in _FILLING else given))
        self._give(written, made, nodes)
        for node in nodes & {self._last}:
            assert node is not None
            shown = [one for one in made or written if not one.is_nested]
            self._operations[node].shapes = tuple(tuple(one.shape) for one in shown)

    def flow(self) -> Flow:
        """Return what was seen; of a forward that raised, up to the call that did."""
        for opened in self._open[-1:]:
            if opened.call.order not in self._around:
                self._absorb(opened)
                self._connect(opened.given, opened.node)
        numbers: dict[Node, int] = {OUTPUT: 0}
        numbers |= {("call", n): n for n in range(1, len(self._around) + 1)}
        numbers |= {("input", n): -1 - n for n in range(len(self._inputs))}
        numbers |= {node: len(self._around) + n for n, node in enumerate(self._operations, 1)}
        pairs = [(source, target) for target, sources in self._into.items() for source in sources]
        return Flow(
            inputs=self._inputs,
            around=tuple(self._around),
            operations=tuple(
                Operation(numbers[node], tuple(one.names), one.inside, one.after, one.is_joint, one.shapes)
                for node, one in self._operations.items()
            ),
            edges=tuple((numbers[a], numbers[b]) for a, b in pairs if a != UNKNOWN),
            unfollowed=tuple(numbers[b] for a, b in pairs if a == UNKNOWN),
            left=tuple(self._left),
        )

    def _operate(self, name: str, sources: Nodes) -> Nodes:
        """Return the node of what a function computes from these; of constants it makes constants."""
        roots = {self._root(source) for source in sources}
        if not sources or (len(roots) == 1 and name in _QUIET):
            return sources
        last = self._last
        if last in sources and len(roots) == 1 and sources <= {last, *self._into[last]}:  # one step more
            self._operations[last].names.append(plain_name(name))
            return frozenset({last})
        node = ("operation", len(self._operations) + len(self._owner))
        inside = self._open[-1]
        is_joint = len(roots) > 1
        root = node if is_joint else next(iter(roots))
        after = len(self._around)
        self._operations[node] = _Operation([plain_name(name)], inside.call.order, after, root, is_joint)
        self._connect(sources, node)
        inside.operations.append(node)
        self._last = node
        return frozenset({node})

    def _give(self, written: Iterable[Tensor], made: Iterable[Tensor], nodes: Nodes) -> None:
        changed = list(written)
        for tensor in changed:
            self._origins.write(tensor, nodes)
        for tensor in made:
            if not any(tensor is one for one in changed):
                self._origins.put(tensor, nodes)

    def _sources(self, tensors: Iterable[Tensor]) -> Nodes:
        found = NOTHING.union(*map(self._origins.of, tensors))
        return frozenset(self._owner.get(node, node) for node in found)

    def _root(self, node: Node) -> Node:
        return self._operations[node].root if node in self._operations else node

    def _connect(self, sources: Nodes, target: Node) -> None:
        into = self._into.setdefault(target, {})
        into.update(dict.fromkeys(sorted(sources - {target})))

    def _absorb(self, opened: _Open) -> None:
        """Make what an innermost call has computed a part of the call."""
        inner = set(opened.operations)
        for node in opened.operations:
            self._owner[node] = opened.node
            self._connect(frozenset(self._into.pop(node, {})) - inner, opened.node)
            del self._operations[node]
