"""Interpret a pickle symbolically and report each step to `PickleEvents`. Standard library.

Imports are kept as names and calls as names with arguments. Nothing is imported or called, nothing recurses, and
the work is bounded by the length of the pickle, so hostile files are harmless.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from modelscope_cli.checkpoints.entries import UnsupportedError
from modelscope_cli.checkpoints.opcodes import OpcodeReader, python3_name


class PickleEvents(Protocol):
    """Callbacks for what Python would do; `position` is the opcode's offset in the file."""

    def named(self, found: "Global", position: int) -> None:
        """A function, class or module is imported."""

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        """`callee` is called with `args`; with BUILD they are its state."""

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        """Items are added to a target."""

    def hashed(self, keys: list[Any], position: int) -> None:
        """Keys of a dict or items of a set are hashed, and compared."""

    def referred(self, id: Any, position: int) -> None:
        """A persistent ID is loaded."""

    def strange(self, what: str, position: int) -> None:
        """Something that no pickle writer produces."""


class IgnoreEvents:
    """Ignores all events."""

    def named(self, *_: Any) -> None: ...

    called = altered = hashed = referred = strange = named


@dataclass(frozen=True, slots=True)
class Global:
    """The full name of a function or class, `collections.OrderedDict`, and which part is the module."""

    name: str
    module: str = field(default="", compare=False)


@dataclass(eq=False, repr=False, slots=True)
class Opaque:
    """The result of `name(*args)` with the state and items set afterwards.

    Its string is only the name, as its content may be nested without end.
    """

    name: str
    args: Any = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Persistent:
    """A persistent ID, which refers to something outside the pickle, such as torch's storages."""

    id: Any


__all__ = ["Global", "Opaque", "Persistent", "PickleEvents", "PickleMachine"]

# Opcodes allowed for any pickle, and further ones per byte; torch needs one for three bytes.
_MIN_OPERATIONS = 1_000_000
_OPERATIONS_PER_BYTE = 0.5
_MAX_KEY_LENGTH = 1 << 16
_MAX_GLOBAL_LENGTH = 250
_MAX_MEMO = 1 << 24
_HIGHEST_PROTOCOL = 5
COMPUTED = "computed when it is loaded, so it is unknown"
EXTENSION = "copyreg.extension_"


class PickleMachine:
    """Reads consecutive pickles from a file."""

    def __init__(
        self, file: IO[bytes] | bytes, call: Callable[[str, Any], Any], watch: PickleEvents | None = None
    ) -> None:
        """Take `call(name, args)`, which describes a result, None if unknown; `watch` gets the events."""
        self._file = io.BytesIO(file) if isinstance(file, bytes) else file
        self._call = call
        self._watch: PickleEvents = watch or IgnoreEvents()
        self._n_counted = 0
        self.names: dict[str, None] = {}  # every imported function and class, in order
        self.references: list[Persistent] = []  # every persistent ID, in order
        self.operations: set[int] = set()  # the opcodes used in the last pickle

    def read(self) -> Any:
        """Return the description of the next pickle."""
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}
        self._protocol = 0
        self.operations = set()
        self._decoder = decoder = OpcodeReader(self._file)
        try:
            while True:
                code, argument = decoder.read()
                self.operations.add(code)
                if decoder.is_framed_badly:
                    decoder.is_framed_badly = False
                    self._strange("an operation across the end of its frame")
                if code == _STOP:
                    return self._stack.pop()
                self._n_counted += 1
                if self._n_counted > _MIN_OPERATIONS:
                    self._count(0)
                _OPERATIONS[code](self, argument)
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"an inconsistent pickle ({type(error).__name__})") from error

    @property
    def position(self) -> int:
        """Offset of the next opcode or pickle in the file."""
        return self._decoder.position

    def _count(self, n: int) -> None:
        self._n_counted += n
        if self._n_counted > _MIN_OPERATIONS + _OPERATIONS_PER_BYTE * self._decoder.n_read:
            raise UnsupportedError(f"a pickle of more than {_MIN_OPERATIONS:,} operations in few bytes")

    def _strange(self, what: str) -> None:
        self._watch.strange(what, self._decoder.start)

    def _marked(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _proto(self, protocol: int) -> None:
        if protocol > _HIGHEST_PROTOCOL:
            raise ValueError(f"a pickle of protocol {protocol}")
        self._protocol = protocol

    def _put(self, index: int) -> None:
        if index > _MAX_MEMO:
            self._strange("a memo beyond the length of the pickle")
        self._memo[index] = self._stack[-1]

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

    def _dup(self, _: Any) -> None:
        self._strange("an operation that no pickler writes, DUP")
        self._stack.append(self._stack[-1])

    def _tuple(self, _: Any) -> None:
        items = self._marked()
        self._stack.append(tuple(items))

    def _tuple_of(self, n: int) -> None:
        items = self._stack[-n:]
        if len(items) < n:
            raise IndexError
        self._stack[-n:] = [tuple(items)]

    def _dict(self, _: Any) -> None:
        items = self._marked()
        self._stack.append({})
        self._set(items)

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            if any(item is target for item in items):
                self._strange("a list put into itself")
            target.extend(items)
            return
        self._watch.altered("APPENDS", target, items, self._decoder.start)
        if isinstance(target, Opaque):
            target.items.update(enumerate(items, len(target.items)))

    def _additems(self, _: Any) -> None:
        items = self._marked()
        self._watch_keys(items)
        self._extend(items)

    def _frozenset(self, _: Any) -> None:
        items = self._marked()
        self._watch_keys(items)
        self._stack.append(items)

    def _watch_keys(self, keys: list[Any]) -> None:
        if compound_keys := [key for key in keys if isinstance(key, Opaque | tuple)]:
            self._watch.hashed(compound_keys, self._decoder.start)

    def _setitem(self, _: Any) -> None:
        items = self._stack[-2:]
        del self._stack[-2:]
        self._set(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            self._watch.altered("SETITEMS", target, items, self._decoder.start)
            if not isinstance(target, Opaque):  # a list or a storage: Python may continue
                return
            target = target.items
        self._watch_keys(items[::2])
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_hashable(key)] = value

    def _global(self, names: tuple[str, str]) -> None:
        module, name = python3_name(*names) if self._protocol < 3 else names
        if len(module) + len(name) > _MAX_GLOBAL_LENGTH:
            self._strange("a name that is too long")
            module, name = module[:_MAX_GLOBAL_LENGTH], name[:_MAX_GLOBAL_LENGTH]
        imported = Global(f"{module}.{name}", module)
        self.names[imported.name] = None
        self._watch.named(imported, self._decoder.start)
        self._stack.append(imported)

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if isinstance(name, str) and isinstance(module, str):
            self._global((module, name))
        else:
            self.names[COMPUTED] = None
            self._strange(f"a name that is {COMPUTED}")
            self._stack.append(Opaque(COMPUTED))

    def _extension(self, code: int) -> None:
        self._strange("a name replaced by a copyreg number")
        self._global(("copyreg", f"{EXTENSION.rpartition('.')[2]}{code}"))

    def _obj(self, _: Any) -> None:
        function, *args = self._marked()
        self._stack += [function, tuple(args)]
        self._call_it("OBJ")

    def _inst(self, names: tuple[str, str]) -> None:
        args = self._marked()
        self._global(names)
        self._stack.append(tuple(args))
        self._call_it("INST")

    def _call_it(self, how: str, keywords: Any = None) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        self._watch.called(how, function, (args, keywords) if keywords else args, self._decoder.start)
        result = None
        if isinstance(function, Global):
            name = function.name
            if isinstance(args, tuple):
                # Functions that make a dict iterate over their argument on each call.
                self._count(sum(len(arg) for arg in args[:1] if isinstance(arg, list | dict)))
                result = self._call(name, args)
        else:
            is_made = isinstance(function, Opaque)  # of which alone the string is short
            name = f"{function}".removesuffix("()") + "()" if is_made else type(function).__name__
        # A string returned by a call may be another one.
        self._stack.append(Opaque(name, args) if result is None or isinstance(result, str) else result)

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        self._watch.called("BUILD", target, state, self._decoder.start)
        if isinstance(target, Opaque):
            target.state = state if target.state is None else [target.state, state]

    def _persid(self, id: Any) -> None:
        self._watch.referred(id, self._decoder.start)
        self.references.append(Persistent(id))
        # torch before 1.6 stores a class with its source like this.
        is_class = isinstance(id, tuple) and id[:1] == ("module",) and len(id) > 1
        self._stack.append(id[1] if is_class else self.references[-1])

    def _buffer(self, _: Any) -> None:
        self._strange("a buffer from outside the pickle")
        self._stack.append(Opaque("a buffer from outside the pickle"))


def _hashable(key: Any) -> Any:
    """Return a key that is quick to hash, compare and print; tuples could recurse to any depth."""
    return key if isinstance(key, Global | Opaque) or _is_plain(key) else Opaque(type(key).__name__)


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= 64
    if isinstance(value, str):
        return len(value) <= _MAX_KEY_LENGTH
    return isinstance(value, float) or value is None


def _constant(value: Any) -> Callable[[PickleMachine, Any], None]:
    return lambda machine, _: machine._stack.append(value)


def _new(kind: type) -> Callable[[PickleMachine, Any], None]:
    return lambda machine, _: machine._stack.append(kind())


def _call(how: str) -> Callable[[PickleMachine, Any], None]:
    return lambda machine, _: machine._call_it(how)


def _tuple_of(n: int) -> Callable[[PickleMachine, Any], None]:
    return lambda machine, _: machine._tuple_of(n)


_STOP = pickle.STOP[0]
_BY_CODE: dict[bytes, Callable[[PickleMachine, Any], object]] = {
    **dict.fromkeys((pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2), PickleMachine._push),
    **dict.fromkeys(
        (pickle.LONG, pickle.LONG1, pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT), PickleMachine._push
    ),
    **dict.fromkeys((pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING), PickleMachine._push),
    **dict.fromkeys((pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE), PickleMachine._push),
    **dict.fromkeys((pickle.BINUNICODE8, pickle.BINBYTES8, pickle.BYTEARRAY8), PickleMachine._push),
    **dict.fromkeys((pickle.BINBYTES, pickle.SHORT_BINBYTES), PickleMachine._push),
    **{pickle.NONE: _constant(None), pickle.NEWTRUE: _constant(True), pickle.NEWFALSE: _constant(False)},
    **{pickle.EMPTY_TUPLE: _constant(()), pickle.TUPLE: PickleMachine._tuple},
    **{pickle.TUPLE1: _tuple_of(1), pickle.TUPLE2: _tuple_of(2), pickle.TUPLE3: _tuple_of(3)},
    **{pickle.EMPTY_LIST: _new(list), pickle.EMPTY_SET: _new(list)},
    **{pickle.LIST: lambda machine, _: machine._push(machine._marked())},
    **{pickle.FROZENSET: PickleMachine._frozenset},
    **{pickle.EMPTY_DICT: _new(dict), pickle.DICT: PickleMachine._dict},
    **dict.fromkeys((pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT), PickleMachine._put),
    **dict.fromkeys(
        (pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
        lambda machine, index: machine._stack.append(machine._memo[index]),
    ),
    **{
        pickle.MEMOIZE: PickleMachine._memoize,
        pickle.MARK: PickleMachine._mark,
        pickle.DUP: PickleMachine._dup,
    },
    **{pickle.POP: PickleMachine._pop, pickle.POP_MARK: lambda machine, _: machine._marked()},
    **{
        pickle.APPEND: lambda machine, _: machine._extend([machine._stack.pop()]),
        pickle.APPENDS: lambda machine, _: machine._extend(machine._marked()),
        pickle.ADDITEMS: PickleMachine._additems,
    },
    **{pickle.SETITEM: PickleMachine._setitem},
    **{pickle.SETITEMS: lambda machine, _: machine._set(machine._marked())},
    **{pickle.GLOBAL: PickleMachine._global, pickle.STACK_GLOBAL: PickleMachine._stack_global},
    **dict.fromkeys((pickle.EXT1, pickle.EXT2, pickle.EXT4), PickleMachine._extension),
    **{pickle.REDUCE: _call("REDUCE"), pickle.NEWOBJ: _call("NEWOBJ"), pickle.BUILD: PickleMachine._build},
    **{
        pickle.NEWOBJ_EX: lambda machine, _: machine._call_it("NEWOBJ_EX", machine._stack.pop()),
        pickle.OBJ: PickleMachine._obj,
        pickle.INST: PickleMachine._inst,
    },
    **{pickle.PERSID: PickleMachine._persid},
    **{pickle.BINPERSID: lambda machine, _: machine._persid(machine._stack.pop())},
    **{pickle.PROTO: PickleMachine._proto, pickle.NEXT_BUFFER: PickleMachine._buffer},
    **dict.fromkeys((pickle.FRAME, pickle.READONLY_BUFFER), lambda machine, _: None),
}
_OPERATIONS = {code[0]: operation for code, operation in _BY_CODE.items()}
