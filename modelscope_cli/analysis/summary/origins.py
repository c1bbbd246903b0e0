"""Which node of the graph the values of a tensor come from, views and in-place writes included."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

from torch import Tensor, nn, strided
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from modelscope_cli.hooks.layers import tensors_in

Node = tuple[str, int]
"""`("call", order)`, `("operation", n)`, `("input", n)`, or one of those below."""
Nodes = frozenset[Node]
OUTPUT: Node = ("output", 0)
UNKNOWN: Node = ("unknown", 0)  # of a tensor that nobody was seen to make
NOTHING: Nodes = frozenset()


@dataclass(frozen=True, slots=True)
class _Extent:
    """The bytes of a storage that a tensor reaches; `is_dense`: every one of them is its own."""

    start: int
    stop: int
    is_dense: bool

    def meets(self, other: "_Extent") -> bool:
        return self.start < other.stop and other.start < self.stop

    def covers(self, other: "_Extent") -> bool:
        return self.is_dense and self.start <= other.start and other.stop <= self.stop


@dataclass(slots=True)
class _Storage:
    """What is known of a storage."""

    nodes: Nodes
    writes: list[tuple[_Extent, Nodes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    """Where a tensor came from when it was made, and how often its storage had been written to by then."""

    tensor: "ReferenceType[Tensor]"
    nodes: Nodes
    n_writes: int


class Origins:
    """Remembers tensors by themselves and by the storage that views share. Nothing is kept alive."""

    def __init__(self, model: nn.Module) -> None:
        self._known: dict[int, _Known] = {}
        self._storages: dict[
            StorageWeakRef, _Storage
        ] = {}  # keeps their addresses, so that no other gets them
        for tensor in _own_tensors(model):
            self.put(tensor, NOTHING)

    def of(self, tensor: Tensor) -> Nodes:
        """Return the nodes that made the values a tensor holds now; none for constants."""
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
        """Say where a tensor that was just made comes from."""
        storage = self._storage_of(tensor)
        if storage is None and _has_storage(tensor):
            storage = self._storages[StorageWeakRef(tensor.untyped_storage())] = _Storage(nodes)
        self._known[id(tensor)] = _Known(ref(tensor), nodes, len(storage.writes) if storage else 0)

    def share(self, view: Tensor, base: Tensor) -> bool:
        """Say that a tensor shows some bytes of another one, if it does: what others wrote to is told apart."""
        storage, known = self._storage_of(view), self._known.get(id(base))
        if storage is None or storage is not self._storage_of(base) or known is None:
            return False
        self._known[id(view)] = _Known(ref(view), known.nodes, known.n_writes)
        return True

    def write(self, tensor: Tensor, nodes: Nodes) -> None:
        """Say who has just written to a tensor in place: every other one that shares its bytes sees it."""
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
    except (RuntimeError, NotImplementedError):  # a class of somebody's own, which may have none
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
    """Give what a model holds before it is run: parameters, buffers, and tensors that are plain attributes."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        for name, value in vars(module).items():
            is_registered = name in ("_parameters", "_buffers", "_modules")
            if isinstance(value, Tensor | list | tuple | dict) and not is_registered:
                yield from (tensor for _, tensor in tensors_in(value))
