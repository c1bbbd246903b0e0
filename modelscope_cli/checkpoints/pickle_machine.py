"""A pickle machine that builds descriptions. Standard library.

It goes through the operations of a pickle as Python would, but where Python imports a function it keeps the name,
and where Python calls it, it keeps what would have been called with what. Nothing is imported, nothing is called,
nothing recurses, and the number of operations and of bytes is bounded, so a hostile file can do no more than lie.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, cast

MAX_BYTES = 32 << 20
# Some 15,000 tensors; each operation makes at most one small object.
MAX_OPERATIONS = 600_000
_MAX_KEY_LENGTH = 1 << 16
_MAX_GLOBAL_LENGTH = 250
_MAX_MEMO = 1 << 24


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a function or class: `collections.OrderedDict`."""

    name: str


@dataclass(eq=False, repr=False, slots=True)
class Opaque:
    """What `name` would have made of `args`, and what it would have been given afterwards.

    It is written as its name: what is in it may be nested without end.
    """

    name: str
    args: Any = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Persistent:
    """A reference to something outside the pickle; torch keeps its storages so."""

    id: Any


class _Bounded:
    """The reading side of a file that gives no more than `MAX_BYTES`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_BYTES

    def read(self, n: int) -> bytes:
        if n > self._left:
            raise ValueError(f"a pickle of more than {MAX_BYTES} bytes")
        data = self._file.read(n)
        self._left -= len(data)
        return data

    def readline(self) -> bytes:
        data = self._file.readline(self._left)
        self._left -= len(data)
        return data


class Machine:
    """Reads pickles one after the other out of a file.

    Attributes:
        names: every function and class that was named, in order.
        references: everything outside the pickle that it refers to, in order.
    """

    def __init__(self, file: IO[bytes] | bytes, call: Callable[[str, Any], Any]) -> None:
        """Take `call(name, args)`, which describes what a function would return; None where it does not know."""
        self._file = io.BytesIO(file) if isinstance(file, bytes) else file
        self._call = call
        self._n_operations = 0
        self.names: dict[str, None] = {}
        self.references: list[Persistent] = []

    def read(self) -> Any:
        """Return the description of the next pickle.

        Raises:
            ValueError: not a pickle, or a damaged one, or one too large.
        """
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under each mark
        self._memo: dict[int, Any] = {}
        try:
            for operation, argument, _ in pickletools.genops(cast("IO[bytes]", _Bounded(self._file))):
                self._count(1)
                self._do(operation.name, argument)
            return self._stack.pop()
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"a pickle that contradicts itself ({type(error).__name__})") from error

    def _count(self, n: int) -> None:
        self._n_operations += n
        if self._n_operations > MAX_OPERATIONS:
            raise ValueError(f"a pickle of more than {MAX_OPERATIONS} operations")

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack.append(tuple([stack.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            if argument > _MAX_MEMO:
                raise ValueError("a pickle that counts beyond its own size")
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        else:
            getattr(self, f"_{name.lower()}")(argument)

    def _marked(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _nothing(self, _: Any) -> None:
        pass

    _proto = _frame = _stop = _nothing

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _pop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._marked()

    def _pop_mark(self, _: Any) -> None:
        self._marked()

    def _dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _tuple(self, _: Any) -> None:
        items = self._marked()
        self._stack.append(tuple(items))

    def _list(self, _: Any) -> None:
        items = self._marked()
        self._stack.append(items)

    _frozenset = _list

    def _dict(self, _: Any) -> None:
        items = self._marked()
        self._stack.append({})
        self._put(items)

    def _append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._marked())

    _additems = _appends

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Opaque):
            target.items.update(enumerate(items, len(target.items)))
        else:
            target.extend(items)

    def _setitem(self, _: Any) -> None:
        items = self._stack[-2:]
        del self._stack[-2:]
        self._put(items)

    def _setitems(self, _: Any) -> None:
        self._put(self._marked())

    def _put(self, items: list[Any]) -> None:
        target = self._stack[-1]
        target = target.items if isinstance(target, Opaque) else target
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_hashable(key)] = value

    def _global(self, argument: str) -> None:
        name = argument.replace(" ", ".", 1)
        self.names[name] = None
        self._stack.append(Global(name))

    def _stack_global(self, _: Any) -> None:
        attribute, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(attribute, str) and isinstance(module, str)):
            raise TypeError("a global without a name")
        if len(attribute) + len(module) > _MAX_GLOBAL_LENGTH:
            raise ValueError(f"a global whose name has more than {_MAX_GLOBAL_LENGTH} characters")
        self._global(f"{module} {attribute}")

    def _reduce(self, _: Any) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        name = function.name if isinstance(function, Global | Opaque) else type(function).__name__
        made = None
        if isinstance(function, Global) and isinstance(args, tuple):
            # What makes a dict goes through all it is given, each time.
            self._count(sum(len(arg) for arg in args[:1] if isinstance(arg, list | dict)))
            made = self._call(name, args)
        self._stack.append(Opaque(name, args) if made is None else made)

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        self._stack.pop()  # keyword arguments
        self._reduce(None)

    def _obj(self, _: Any) -> None:
        function, *args = self._marked()
        self._stack += [function, tuple(args)]
        self._reduce(None)

    def _inst(self, argument: str) -> None:
        args = self._marked()
        self._global(argument)
        self._stack.append(tuple(args))
        self._reduce(None)

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Opaque):
            self._stack[-1].state = state

    def _binpersid(self, _: Any) -> None:
        self._persid(self._stack.pop())

    def _persid(self, argument: Any) -> None:
        self.references.append(Persistent(argument))
        self._stack.append(self.references[-1])

    def _ext1(self, argument: int) -> None:
        self._global(f"copyreg extension_{argument}")

    _ext2 = _ext4 = _ext1


_VALUES = frozenset(
    operation.name
    for operation in pickletools.opcodes
    if operation.arg is not None
    and operation.stack_after
    and operation.stack_after[0].name in ("int", "bool", "float", "str", "bytes", "bytearray", "int_or_bool")
    and "GET" not in operation.name
) | {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _hashable(key: Any) -> Any:
    """Keep a key that is quick to hash, compare and print; a tuple would recurse as deep as the file says."""
    return key if isinstance(key, Global | Opaque) or _is_plain(key) else Opaque(type(key).__name__)


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= 64
    if isinstance(value, str):
        return len(value) <= _MAX_KEY_LENGTH
    return isinstance(value, float) or value is None
