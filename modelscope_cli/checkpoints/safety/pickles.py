"""Scan every pickle in a run of bytes as pickle, and by torch's weights_only rules.

These rules: `torch/_weights_only_unpickler.py`, class `Unpickler`; every rule of `WeightsOnlyRules` is one `raise`
there. Standard library.
"""

import pickle
import pickletools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import IO, Any

from modelscope_cli.checkpoints.opcodes import MAX_BYTES, python3_name
from modelscope_cli.checkpoints.pickle_machine import (
    EXTENSION,
    Global,
    IgnoreEvents,
    Opaque,
    PickleEvents,
    PickleMachine,
)
from modelscope_cli.checkpoints.safety.call_rules import HARMFUL, resolved
from modelscope_cli.checkpoints.safety.containers import NOT_JUDGED
from modelscope_cli.checkpoints.safety.known_names import BLOCKED, WEIGHTS_ONLY
from modelscope_cli.checkpoints.safety.pickle_auditor import Nested, PickleAuditor
from modelscope_cli.checkpoints.safety.rank import is_class_like, rank
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import DANGEROUS, Suspect, WeightsOnly

_NAMES = {ord(operation.code): operation.name for operation in pickletools.opcodes}
_TAKEN = frozenset(
    code[0]
    for code in (
        *(pickle.GLOBAL, pickle.NEWOBJ, pickle.REDUCE, pickle.BUILD, pickle.APPEND, pickle.APPENDS),
        *(pickle.SETITEM, pickle.SETITEMS, pickle.MARK, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2),
        *(pickle.TUPLE3, pickle.NONE, pickle.NEWFALSE, pickle.NEWTRUE, pickle.EMPTY_TUPLE, pickle.EMPTY_LIST),
        *(pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.BININT, pickle.BININT1, pickle.BININT2),
        *(pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINSTRING, pickle.BINPERSID, pickle.BINGET),
        *(pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT, pickle.LONG1, pickle.PROTO, pickle.STOP),
    )
)
_MAPPINGS = ("collections.OrderedDict", "collections.Counter")
_SMALL_CLASSES = ("functools.partial", "collections.defaultdict", "collections.deque", "array.array")
_TENSOR, _PARAMETER = "torch.Tensor", "torch.nn.parameter.Parameter"
_DTYPES = {
    **{
        "f2": "Float16",
        "f4": "Float32",
        "f8": "Float64",
        "b1": "Bool",
        "c8": "Complex64",
        "c16": "Complex128",
    },
    **{"i1": "Int8", "i2": "Int16", "i4": "Int32", "i8": "Int64", "O8": "Object", "V": "Void", "U": "Str"},
    **{"u1": "UInt8", "u2": "UInt16", "u4": "UInt32", "u8": "UInt64", "S": "Bytes", "O": "Object"},
    **{"M8": "DateTime64", "m8": "TimeDelta64"},
}


class WeightsOnlyRules(IgnoreEvents):
    """Records what torch would refuse in a pickle."""

    def __init__(self) -> None:
        self.needed: dict[str, None] = {}  # names that are not allowed by default, in order
        self.reason: str | None = None  # the first refusal that allowing names would not avoid

    def verdict(self) -> WeightsOnly:
        """Return what torch would do, after all of its pickles were read."""
        if self.reason is not None:
            return WeightsOnly("no", (), self.reason)
        return WeightsOnly("with names", tuple(self.needed)) if self.needed else WeightsOnly("yes")

    def finished(
        self, operations: set[int], error: ValueError | None, suspects: Iterable[Suspect] = ()
    ) -> None:
        """Take the opcodes of a pickle, its error, and the suspects, which must not be allowed."""
        run = [suspect for suspect in suspects if suspect.is_call or suspect.rank == DANGEROUS]
        if self.needed and run:
            self.refuse(f"'{run[0].name}', which {run[0].reason}")
        refused = sorted(_NAMES[code] for code in operations - _TAKEN)
        if refused:
            self.refuse(f"the pickle operation {refused[0]}, which weights_only does not accept")
        if error is not None:
            self.refuse(f"a damaged pickle: {error}")

    def refuse(self, reason: str) -> None:
        """Record the first reason."""
        self.reason = self.reason or reason

    def named(self, found: Global, position: int) -> None:
        module, name = python3_name(found.module, found.name[len(found.module) + 1 :])
        if module in BLOCKED:
            self.refuse(f"'{module}.{name}': weights_only rejects all of '{module}'")
        elif rank(Global(f"{module}.{name}", module)).rank == DANGEROUS:
            self.refuse(f"'{module}.{name}', which should not be allowed")
        elif f"{module}.{name}" in HARMFUL - WEIGHTS_ONLY:
            self.refuse(f"'{module}.{name}', which calls or loads whatever a file hands to it")
        elif f"{module}.{name}" not in WEIGHTS_ONLY:
            self.needed[f"{module}.{name}"] = None

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        if how == "BUILD":
            self._built(callee)
        elif not isinstance(callee, Global):
            self.refuse("a call of an object that is not a named function")
        elif how == "REDUCE" and _is_value(callee.name):
            self.refuse(f"a call of '{callee.name}', which is not a function")

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        kind = _type_of(target)
        if how != "SETITEMS" or kind not in _MAPPINGS:
            self.refuse(f"items put into '{_word(target)}', neither a list nor a dict")

    def referred(self, id: Any, position: int) -> None:
        if not (isinstance(id, tuple) and id[:1] == ("storage",)):
            self.refuse("a reference that is not to a storage")

    def _built(self, target: Any) -> None:
        kind = _type_of(target)
        if kind is not None and kind.startswith("numpy.dtypes."):
            self.needed[kind] = None
        elif kind is None or (kind not in WEIGHTS_ONLY and kind not in self.needed):
            self.refuse(f"attributes given to '{_word(target)}'")


def _word(value: Any) -> str:
    return plain(value.name)[:60] if isinstance(value, Opaque | Global) else type(value).__name__


def _type_of(value: Any) -> str | None:
    """Return the full name of a value's type; None if unknown."""
    if not isinstance(value, Opaque):
        return None
    args = value.args if isinstance(value.args, tuple) else ()
    first = args[0] if args else None
    if value.name == "numpy.dtype" and isinstance(first, str):
        kind = _DTYPES.get(first) or _DTYPES.get(first[:1])
        return f"numpy.dtypes.{kind}DType" if kind else None
    if value.name == "copyreg._reconstructor" or value.name.endswith("multiarray._reconstruct"):
        return first.name if isinstance(first, Global) else None
    if value.name == "torch._tensor._rebuild_from_type_v2":
        return args[1].name if len(args) > 1 and isinstance(args[1], Global) else None
    if value.name.startswith("torch._utils._rebuild_parameter"):
        return _PARAMETER
    if value.name.startswith("torch._utils._rebuild_"):
        return _TENSOR
    is_class = is_class_like(value.name) or value.name in WEIGHTS_ONLY or value.name in _SMALL_CLASSES
    return value.name if is_class and not value.name.endswith("()") else None


def _is_value(name: str) -> bool:
    """Tell whether a name is a dtype or storage type, which are allowed and not callable."""
    module, _, last = name.rpartition(".")
    is_type = last[:1].isupper() or last == "device" or module not in ("torch", "torch.cuda")
    return name in WEIGHTS_ONLY and (not is_type or (last.endswith("Storage") and module != "torch.storage"))


# The magic number of the format before torch 1.6, and its pickle.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
N_LEGACY = 5  # pickles: the magic number, the protocol, the system, the content, the keys
_MAX_PICKLES = 100_000
_MAX_GUESSES = 4096
_MIN_OPERATIONS = 5  # distinct opcodes
_MAX_SWEEP = MAX_BYTES
_BEGIN = re.compile(rb"\x80[\x00-\x05]")
# A name as text, or as two counted strings before STACK_GLOBAL, memoised or not.
_NAME = re.compile(
    rb"[ci]([\w.]{1,100})\n([\w.]{1,100})\n|\x8c.([\w.]{1,100})\x94?\x8c.([\w.]{1,100})\x94?\x93", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class FoundPickle:
    """One pickle."""

    start: int
    end: int
    content: Any  # its description; None after an error
    error: ValueError | None  # why it could not be read
    names: tuple[str, ...]
    suspects: dict[str, Suspect]
    # Whether it certainly is a pickle: by its header, by an import, or complete and not trivial
    is_sure: bool
    is_named: bool  # whether it imports a name


class _BothEvents(IgnoreEvents):
    """Passes all events to two listeners."""

    def __init__(self, first: PickleEvents, second: PickleEvents) -> None:
        for event in ("named", "called", "altered", "hashed", "referred", "strange"):
            setattr(self, event, _each(getattr(first, event), getattr(second, event)))


def _each(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def told(*args: Any) -> None:
        first(*args)
        second(*args)

    return told


def read_pickles(
    file: IO[bytes], place: str, nested: Nested, rules: WeightsOnlyRules | None = None, is_one: bool = False
) -> list[FoundPickle]:
    """Read consecutive pickles from the beginning of a file, and possible ones after them.

    Args:
        rules: torch's rules, for the pickles that `torch.load` reads.
        is_one: whether no reader goes beyond the first.
    """
    n_bytes = file.seek(0, 2)
    first = _read(file, 0, place, nested, rules)
    if not first.is_sure:
        return []
    pickles = [first]
    is_legacy = first.content == LEGACY_MAGIC
    while (
        pickles[-1].error is None and pickles[-1].end < n_bytes and not is_one and len(pickles) < _MAX_PICKLES
    ):
        if is_legacy and len(pickles) == N_LEGACY:
            break
        current = _read(file, pickles[-1].end, place, nested, rules if is_legacy else None)
        if current.error is not None and not current.is_named and not is_legacy:
            break
        pickles.append(current)
    if pickles[-1].error is not None:
        pickles[-1] = _with_sweep(file, pickles[-1], place)
    elif not is_one:
        pickles += _behind(file, pickles[-1].end, place, nested)
    return pickles


def _read(
    file: IO[bytes], at: int, place: str, nested: Nested, rules: WeightsOnlyRules | None
) -> FoundPickle:
    file.seek(at)
    has_magic = _BEGIN.match(file.read(2)) is not None
    file.seek(at)
    auditor = PickleAuditor(place, nested)
    machine = PickleMachine(file, resolved, auditor if rules is None else _BothEvents(auditor, rules))
    content, error = None, None
    try:
        content = machine.read()
    except (ValueError, OSError, MemoryError) as raised:
        error = raised if isinstance(raised, ValueError) else ValueError(str(raised))
    if any(
        "joblib" in name.split(".") for name in machine.names
    ):  # its arrays are in the middle of the pickle
        content, error = None, ValueError(f"written by joblib, {NOT_JUDGED}")
    if rules is not None:
        rules.finished(machine.operations, error, auditor.suspects.values())
    is_named = _is_named(machine, auditor)
    is_sure = has_magic or is_named or (error is None and machine.position - at > 2)
    names = tuple(machine.names)
    return FoundPickle(at, machine.position, content, error, names, auditor.suspects, is_sure, is_named)


def _is_named(machine: PickleMachine, auditor: PickleAuditor) -> bool:
    """Tell whether a pickle imports plausible names: `class A:` in a text would import something, too."""
    ranks = [
        ranked.rank
        for name, ranked in auditor.ranks.items()
        if all(map(str.isidentifier, name.split("."))) and not name.startswith(EXTENSION)
    ]
    return DANGEROUS in ranks or (bool(ranks) and len(machine.operations) >= _MIN_OPERATIONS)


def _behind(file: IO[bytes], at: int, place: str, nested: Nested) -> list[FoundPickle]:
    """Search for pickles after bytes that are not one; return only those that import a name."""
    file.seek(at)
    data = file.read(_MAX_SWEEP)
    pickles: list[FoundPickle] = []
    end = 0
    for _, match in zip(range(_MAX_GUESSES), _BEGIN.finditer(data), strict=False):
        if match.start() >= end:
            current = _read(file, at + match.start(), place, nested, None)
            if current.is_named:
                pickles.append(current)
                end = current.end - at
    return pickles


def _with_sweep(file: IO[bytes], broken: FoundPickle, place: str) -> FoundPickle:
    """Search for dangerous names after the error in a pickle, which other readers may reach."""
    file.seek(broken.start)
    data = file.read(_MAX_SWEEP)
    suspects = dict(broken.suspects)
    for match in _NAME.finditer(data):
        parts = match[1] or match[3], match[2] or match[4]
        module, name = python3_name(*(part.decode("utf-8", "replace") for part in parts))
        ranked = rank(Global(f"{module}.{name}", module))
        if ranked.rank == DANGEROUS and f"{module}.{name}" not in suspects:
            where = f"{place}, byte {broken.start + match.start()}".removeprefix(", ")
            suspects[f"{module}.{name}"] = Suspect(f"{module}.{name}", DANGEROUS, ranked.reason, None, where)
    return replace(broken, suspects=suspects)
