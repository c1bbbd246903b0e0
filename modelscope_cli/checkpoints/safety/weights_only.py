"""Whether torch would load a pickle under `weights_only=True`: the rules of its own unpickler. Standard library.

The source: `torch/_weights_only_unpickler.py`, class `Unpickler`; every rule here is one `raise` there.
"""

import pickle
import pickletools
from collections.abc import Iterable
from typing import Any

from modelscope_cli.checkpoints.opcodes import python3_name
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.checkpoints.safety.call_rules import HARMFUL
from modelscope_cli.checkpoints.safety.known import BLOCKED, WEIGHTS_ONLY
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
    **{
        "u1": "UInt8",
        "u2": "UInt16",
        "u4": "UInt32",
        "u8": "UInt64",
        "M8": "DateTime64",
        "m8": "TimeDelta64",
    },
    **{"S": "Bytes", "O": "Object"},
}


class WeightsOnlyRules:
    """Watches a pickle and remembers what torch would refuse in it.

    Attributes:
        needed: names that are not allowed by themselves, in order.
        reason: the first thing that no name would help with.
    """

    def __init__(self) -> None:
        self.needed: dict[str, None] = {}
        self.reason: str | None = None

    def verdict(self) -> WeightsOnly:
        """Return what torch would do, once all its pickles have been gone through."""
        if self.reason is not None:
            return WeightsOnly("no", (), self.reason)
        return WeightsOnly("with names", tuple(self.needed)) if self.needed else WeightsOnly("yes")

    def finished(
        self, operations: set[int], error: ValueError | None, suspects: Iterable[Suspect] = ()
    ) -> None:
        """Take the operations of a pickle that has been read, why it could not be, and what it would run.

        A name that would be run is not one to allow.
        """
        run = [suspect for suspect in suspects if suspect.is_call or suspect.rank == DANGEROUS]
        if self.needed and run:
            self.refuse(f"'{run[0].name}', which {run[0].reason}")
        refused = sorted(_NAMES[code] for code in operations - _TAKEN)
        if refused:
            self.refuse(f"the pickle operation {refused[0]}, which it does not accept")
        if error is not None:
            self.refuse(f"a damaged pickle: {error}")

    def refuse(self, reason: str) -> None:
        """Remember why, if there was no reason yet."""
        self.reason = self.reason or reason

    def named(self, found: Global, position: int) -> None:
        module, name = python3_name(found.module, found.name[len(found.module) + 1 :])
        if module in BLOCKED:
            self.refuse(f"'{module}.{name}': it never takes anything of '{module}'")
        elif rank(Global(f"{module}.{name}", module)).rank == DANGEROUS:
            self.refuse(f"'{module}.{name}', which should not be allowed")
        elif f"{module}.{name}" in HARMFUL - WEIGHTS_ONLY:
            self.refuse(f"'{module}.{name}', which calls or loads what any file hands to it")
        elif f"{module}.{name}" not in WEIGHTS_ONLY:
            self.needed[f"{module}.{name}"] = None

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        if how == "BUILD":
            self._built(callee)
        elif not isinstance(callee, Global):
            self.refuse("a call of what is not a function by name")
        elif how == "REDUCE" and _is_value(callee.name):
            self.refuse(f"a call of '{callee.name}', which is not a function")

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        kind = _type_of(target)
        if how != "SETITEMS" or kind not in _MAPPINGS:
            self.refuse(f"items put into '{_word(target)}', neither a list nor a dict")

    def hashed(self, keys: list[Any], position: int) -> None:
        pass

    def referred(self, id: Any, position: int) -> None:
        if not (isinstance(id, tuple) and id[:1] == ("storage",)):
            self.refuse("a reference that is not to a storage")

    def strange(self, what: str, position: int) -> None:
        pass

    def _built(self, target: Any) -> None:
        kind = _type_of(target)
        if kind is not None and kind.startswith("numpy.dtypes."):
            self.needed[kind] = None
        elif kind is None or (kind not in WEIGHTS_ONLY and kind not in self.needed):
            self.refuse(f"attributes given to '{_word(target)}'")


def _word(value: Any) -> str:
    return plain(value.name)[:60] if isinstance(value, Opaque | Global) else type(value).__name__


def _type_of(value: Any) -> str | None:
    """Return the full name of the type that a value would have; None where that cannot be known."""
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
    """Tell a dtype or the type of a storage, which are allowed and cannot be called."""
    module, _, last = name.rpartition(".")
    is_type = last[:1].isupper() or last == "device" or module not in ("torch", "torch.cuda")
    return name in WEIGHTS_ONLY and (not is_type or (last.endswith("Storage") and module != "torch.storage"))
