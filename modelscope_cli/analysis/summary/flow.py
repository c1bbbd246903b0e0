"""Data flow between the calls of one forward, and the functions in between.

Every torch function that a forward calls is observed, with its input and output tensors. What an innermost layer
computes belongs to that layer. In-place writes are detected by torch's version counters.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn, strided
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import Call, Intervention
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.records.run import Args, CallInputs, Kwargs, Shape
from modelscope_cli.records.summary import Flow, Operation

See = Callable[[str, list[Tensor], list[Tensor], Any], None]


class Functions(TorchFunctionMode):
    """While open, calls `see(name, given, written, result)` after every function of torch that runs in this thread:
    with its input tensors, those of them that it wrote to in place, and its result."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func)).partition(".")[0]
        before = [(tensor, version_of(tensor)) for tensor in tensors_among((args, kwargs))]
        result = func(*args, **kwargs)
        written = [tensor for tensor, n in before if version_of(tensor) != n]
        if before and before[0][0].is_inference() and _writes(name, kwargs):  # these have no version counter
            written.append(before[0][0])
        self._see(name, [tensor for tensor, _ in before], written, result)
        return result


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a function writes to its first tensor, judged by its name."""
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name.startswith("__i") or name == "__setitem__" or kwargs.get("inplace") is True


def tensors_among(value: Any) -> list[Tensor]:
    """Return the tensors in the arguments or the result of a function: in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    several = value if isinstance(value, list | tuple) else ()
    return [tensor for one in several for tensor in tensors_among(one)]


def plain_name(name: str) -> str:
    """Return the common name of a function: `add` for `add_` and `__radd__`, `index` for `__getitem__`."""
    if name.startswith("__") and name.endswith("__"):
        word = name.strip("_")
        return _WORDS.get(word, word)
    return name.rstrip("_") or name


_WORDS = {
    **{f"{prefix}{word}": word for word in ("add", "sub", "mul", "matmul", "pow") for prefix in ("r", "i")},
    **{"truediv": "div", "rtruediv": "div", "itruediv": "div", "rdiv": "div", "idiv": "div"},
    **{"getitem": "index", "setitem": "write", "get": "view"},
}


Node = tuple[str, int]
"""`("call", order)`, `("operation", n)`, `("input", n)`, or one of those below."""
Nodes = frozenset[Node]
OUTPUT: Node = ("output", 0)
UNKNOWN: Node = ("unknown", 0)  # of a tensor of unobserved origin
NOTHING: Nodes = frozenset()


@dataclass(frozen=True, slots=True)
class _Extent:
    """The range of bytes of a tensor in its storage; `is_dense`: without gaps."""

    start: int
    stop: int
    is_dense: bool

    def meets(self, other: "_Extent") -> bool:
        return self.start < other.stop and other.start < self.stop

    def covers(self, other: "_Extent") -> bool:
        return self.is_dense and self.start <= other.start and other.stop <= self.stop


@dataclass(slots=True)
class _Storage:
    """The origin of a storage, and the writes to it."""

    nodes: Nodes
    writes: list[tuple[_Extent, Nodes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _KnownTensor:
    """The origin of a tensor, and the number of writes to its storage when it was created."""

    tensor: "ReferenceType[Tensor]"
    nodes: Nodes
    n_writes: int


class Origins:
    """The origins of tensors, by identity and by shared storage. Keeps no tensor alive."""

    def __init__(self, model: nn.Module) -> None:
        self._known: dict[int, _KnownTensor] = {}
        # Keeps their addresses, so that no other storage gets them
        self._storages: dict[StorageWeakRef, _Storage] = {}
        for tensor in _own_tensors(model):
            self.put(tensor, NOTHING)

    def of(self, tensor: Tensor) -> Nodes:
        """Return the nodes that computed the current values of a tensor; none for constants."""
        storage = self._storage_of(tensor)
        known = self._known.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            nodes, since = known.nodes, known.n_writes
        elif storage is not None:
            nodes, since = storage.nodes, 0
        else:
            return frozenset({UNKNOWN})
        writes = storage.writes[since:] if storage is not None else ()
        extent = _extent(tensor) if writes else None
        for written, makers in writes:
            if extent is None or written.covers(extent):
                nodes = makers
            elif written.meets(extent):
                nodes |= makers
        return nodes

    def put(self, tensor: Tensor, nodes: Nodes) -> None:
        """Record the origin of a new tensor."""
        storage = self._storage_of(tensor)
        if storage is None and _has_storage(tensor):
            storage = self._storages[StorageWeakRef(tensor.untyped_storage())] = _Storage(nodes)
        self._known[id(tensor)] = _KnownTensor(ref(tensor), nodes, len(storage.writes) if storage else 0)

    def share(self, view: Tensor, base: Tensor) -> bool:
        """Record a tensor as a view of another, if it is one, so that writes elsewhere are told apart."""
        storage, known = self._storage_of(view), self._known.get(id(base))
        if storage is None or storage is not self._storage_of(base) or known is None:
            return False
        self._known[id(view)] = _KnownTensor(ref(view), known.nodes, known.n_writes)
        return True

    def write(self, tensor: Tensor, nodes: Nodes) -> None:
        """Record an in-place write to a tensor, which every tensor that shares its bytes sees."""
        storage = self._storage_of(tensor)
        if storage is not None:
            storage.writes.append((_extent(tensor), nodes))
        self.put(tensor, nodes)

    def _storage_of(self, tensor: Tensor) -> _Storage | None:
        return self._storages.get(StorageWeakRef(tensor.untyped_storage())) if _has_storage(tensor) else None


def _has_storage(tensor: Tensor) -> bool:
    if is_lazy(tensor) or tensor.layout is not strided or tensor.is_nested:
        return False
    try:
        tensor.untyped_storage()
    except RuntimeError:  # a custom class of tensors may have none
        return False
    return True


def _extent(tensor: Tensor) -> _Extent:
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return _Extent(start, start, is_dense=True)
    reach = sum(
        int((length - 1) * stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return _Extent(start, start + (reach + 1) * size, is_dense=reach + 1 == tensor.numel())


def _own_tensors(model: nn.Module) -> Iterable[Tensor]:
    """Yield the tensors a model holds before a run: parameters, buffers, and tensors that are plain attributes."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        for name, value in vars(module).items():
            is_registered = name in ("_parameters", "_buffers", "_modules")
            if isinstance(value, Tensor | list | tuple | dict) and not is_registered:
                yield from (tensor for _, tensor in tensors_in(value))


# They return their input: moved, or a part of it, or for Python to inspect.
_QUIET = {
    *("__get__", "__getitem__", "contiguous", "detach", "clone", "to", "type_as", "expand"),
    *("expand_as", "alias", "copy_", "view_as", "__iter__", "unbind", "requires_grad_"),
    *("__deepcopy__", "size", "numel", "dim"),
}
_FILLING = frozenset({"copy_", "fill_", "zero_"})  # which overwrite all of their target
_LEAVING = frozenset({"item", "numpy", "tolist", "__array__", "__float__", "__int__"})


@dataclass(slots=True)
class _OpenCall:
    """A call that is running."""

    call: Call
    given: Nodes  # origins of its input tensors
    before: list[tuple[Tensor, int]]  # these tensors, with their version counters
    operations: list[Node] = field(default_factory=list)  # those computed directly in it

    @property
    def node(self) -> Node:
        return "call", self.call.order


@dataclass(slots=True)
class _Operation:
    """`root`: the call, joint or input whose flow it works on; a joint is its own."""

    names: list[str]
    inside: int
    after: int
    root: Node
    is_joint: bool
    shapes: tuple[Shape, ...] = ()


class FlowRecorder(Intervention):
    """Follows tensors from call to call, as observer and intervention of one session; open `mode` while it runs.

    A layer that returns its input tensor, as a dropout does, returns a view instead, to tell the two apart."""

    def __init__(self, model: nn.Module) -> None:
        self.mode = Functions(self.see)
        self._origins = Origins(model)
        self._open: list[_OpenCall] = []
        self._around: list[int] = []  # of every call, the order of its parent call
        self._operations: dict[Node, _Operation] = {}
        self._into: dict[Node, dict[Node, None]] = {}
        self._owner: dict[Node, Node] = {}  # of operations inside an innermost call, that call
        self._last: Node | None = None
        self._left: dict[str, None] = {}
        self._inputs: tuple[str, ...] = ()

    def change_inputs(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> CallInputs:
        tensors = tensors_in((args, kwargs))
        if not call.depth:
            self._inputs = tuple(path.partition(".")[2] for path, _ in tensors)
            for _, tensor in tensors:
                same = frozenset(("input", n) for n, (_, other) in enumerate(tensors) if other is tensor)
                self._origins.put(tensor, same)
        del self._open[call.depth :]
        self._around.append(self._open[-1].call.order if self._open else 0)
        before = [(tensor, version_of(tensor)) for _, tensor in tensors]
        self._open.append(_OpenCall(call, self._sources(tensor for _, tensor in tensors), before))
        self._last = None
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if torch.is_grad_enabled():  # do not change what a backward pass goes through
            return output
        same = {id(tensor) for tensor, n in self._open[call.depth].before if version_of(tensor) == n}

        def another(path: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in same or tensor.is_nested:
                return tensor
            view = tensor.view_as(tensor)
            self._origins.put(view, self._origins.of(tensor))
            return view

        return map_tensors(output, another)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        opened = self._open[call.depth]
        outputs = [tensor for _, tensor in tensors_in(output)]
        if is_innermost:
            self._absorb(opened)
            self._connect(opened.given, opened.node)
            self._give([t for t, n in opened.before if version_of(t) != n], outputs, frozenset({opened.node}))
        if not call.depth:
            self._connect(self._sources(outputs), OUTPUT)
        del self._open[call.depth :]
        self._last = None

    def see(self, name: str, given: list[Tensor], written: list[Tensor], result: Any) -> None:
        """Record a function call: its input tensors, those it wrote to, and its result."""
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
            dense = [one for one in made or written if not one.is_nested]
            self._operations[node].shapes = tuple(tuple(one.shape) for one in dense)

    def flow(self) -> Flow:
        """Return the recorded flow; of a forward that raised, up to that call."""
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
        """Return the node of a function of these sources; constants give constants."""
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
        nodes = NOTHING.union(*map(self._origins.of, tensors))
        return frozenset(self._owner.get(node, node) for node in nodes)

    def _root(self, node: Node) -> Node:
        return self._operations[node].root if node in self._operations else node

    def _connect(self, sources: Nodes, target: Node) -> None:
        into = self._into.setdefault(target, {})
        into.update(dict.fromkeys(sorted(sources - {target})))

    def _absorb(self, opened: _OpenCall) -> None:
        """Merge the operations of an innermost call into the call."""
        inner = set(opened.operations)
        for node in opened.operations:
            self._owner[node] = opened.node
            self._connect(frozenset(self._into.pop(node, {})) - inner, opened.node)
            del self._operations[node]
