"""Judge each step of a pickle as the machine interprets it. Standard library."""

from collections.abc import Callable, Iterable
from typing import Any

from modelscope_cli.checkpoints.opcodes import Blob
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque, Persistent
from modelscope_cli.checkpoints.safety.call_rules import (
    CALL_RULES,
    HARMFUL,
    LOADS_BYTES,
    PARTIALS,
    ForwardedCall,
    is_handed_code,
    is_reached,
    may_call,
)
from modelscope_cli.checkpoints.safety.known_names import (
    DOES,
    HASHES,
    KEEPS,
    KEEPS_FIRST,
    KNOWN_NAMES,
    LISTS,
    READS,
    UNCALLED,
)
from modelscope_cli.checkpoints.safety.rank import Rating, is_class_like, rank
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import DANGEROUS, KNOWN, UNKNOWN, Suspect

_MAX_TEXT = 60
_MAX_ITEMS = 4
_MAX_DEPTH = 3


def format_call(callee: Any, args: Any) -> str:
    """Format a call, shortened if long."""
    inside = (
        [format_value(arg, 1) for arg in args[:_MAX_ITEMS]]
        if isinstance(args, tuple)
        else [f"*{format_value(args)}"]
    )
    more = ["…"] if isinstance(args, tuple) and len(args) > _MAX_ITEMS else []
    return f"{format_value(callee, _MAX_DEPTH)}({', '.join(inside + more)})"


def format_value(value: Any, depth: int = 0) -> str:
    """Format a value, cutting deep nesting and long values."""
    if isinstance(value, Global):
        return plain(value.name)[:_MAX_TEXT]
    if isinstance(value, Opaque):
        is_inside = depth < _MAX_DEPTH and isinstance(value.args, tuple)
        args = (
            ", ".join(format_value(arg, depth + 1) for arg in value.args[:_MAX_ITEMS]) if is_inside else "…"
        )
        return f"{plain(value.name)[:_MAX_TEXT]}({args})"
    if isinstance(value, str | bytes | bytearray):
        return repr(value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT]) + "…" * (len(value) > _MAX_TEXT)
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        text = ", ".join(format_value(item, depth + 1) for item in value[:_MAX_ITEMS])
        text += ", …" if len(value) > _MAX_ITEMS else ""
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    if value is None or isinstance(value, int | float):
        return str(value)
    return {dict: "{…}", list: "[…]", tuple: "(…)", Blob: "many bytes", Persistent: "a storage"}.get(
        type(value), "…"
    )


Nested = Callable[[Any, int], str | None]

# Functions that unpickle their argument.
_LOADERS = ("loads", "load", "_load_from_bytes", "_loads", "Unpickler", "_Unpickler", "read_pickle")
# Maximum values inspected per pickle; beyond it their content is unknown.
_MAX_LOOK = 3_000_000
_MAX_HANDED = 200
# Looked up on the object before its class, by CPython's `load_build` and `load_appends`.
_CALLED_BY_PICKLE = ("__setstate__", "append", "extend", "add")
# Special names that harmless objects have as instance attributes.
_HARMLESS_SPECIAL = ("__orig_class__", "__wrapped__", "__fields_set__", "__pydantic_fields_set__", "__dict__")
_SETS = ("builtins.set", "builtins.frozenset", "collections.Counter")
_COMPUTED = Rating(DANGEROUS, "is called with arguments that cannot be determined")
_CALLED = Rating(UNKNOWN, "is called, and what it does with its arguments is unknown", is_call=True)
_MADE = Rating(UNKNOWN, "is made without arguments, and then given its attributes")
_NOT_CALLED = Rating(UNKNOWN, "is called, which no known checkpoint does", is_call=True)
_TOO_MUCH = Global("more values than can be looked through")


class PickleAuditor:
    """Collects the unknown names of a pickle, with the worst use of each."""

    def __init__(self, place: str, nested: Nested) -> None:
        """Take `nested(bytes, position)`, which scans a nested pickle and returns the problem, or None."""
        self._place = place
        self._nested = nested
        self._has_code = False  # whether a name is unknown or calls its arguments
        self._left = _MAX_LOOK
        self._keys: dict[int, Any] = {}
        self.ranks: dict[str, Rating] = {}  # rating of every imported name
        self.suspects: dict[str, Suspect] = {}  # the worst use by name

    def named(self, found: Global, position: int) -> None:
        if found.name not in self.ranks:
            ranked = Rating(KNOWN, "judged where it is called") if found.name in CALL_RULES else rank(found)
            self.ranks[found.name] = ranked
            self._has_code = self._has_code or ranked.rank != KNOWN or found.name in HARMFUL
            self._suspect(found.name, ranked, None, position)

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        if how == "BUILD":
            self._built(callee, args, position)
            return
        keywords = None
        if how == "NEWOBJ_EX" and isinstance(args, tuple) and len(args) == 2 and isinstance(args[0], tuple):
            args, keywords = args
        if isinstance(callee, Global):
            ranked = self._judge(how, callee, args, keywords, position)
            self._suspect(callee.name, ranked, (callee, args), position)
            if ranked.rank != KNOWN and callee.name not in CALL_RULES:
                for function in _handed_on(args, keywords):
                    reason = f"is handed to '{callee.name}', which may call it"
                    self._danger(function.name, reason, callee, args, position)
        elif isinstance(callee, Opaque) and may_call(callee):
            self._suspect(
                callee.name, Rating(UNKNOWN, "makes a function out of bytes"), (callee, args), position
            )
        elif isinstance(callee, Opaque | Persistent):
            name = callee.name if isinstance(callee, Opaque) else "something outside the pickle"
            reason = "returned a function that is then called; which one cannot be determined"
            self._danger(name, reason, callee, args, position)

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        if isinstance(target, Global):
            self._danger(target.name, "is itself changed", target, (items,), position)
        elif isinstance(target, Persistent) or (isinstance(target, Opaque) and "._rebuild_" in target.name):
            self.strange("values written into a tensor by the pickle", position)
        elif isinstance(target, Opaque) and is_reached(target):
            reason = "returned an object that is then changed; which one cannot be determined"
            self._danger(target.name, reason, target, (items,), position)
        elif isinstance(target, Opaque) and self._rank(target) != KNOWN:
            if target.state is not None:
                reason = "is filled after its attributes are set, which no pickler does"
                self._call_of(target.name, reason, position)
            self._kept(target, items, position)
        elif isinstance(target, Opaque) and DOES.get(target.name) not in (LISTS, HASHES, KEEPS_FIRST):
            self._read(target.name, [target.state, items], position)

    def hashed(self, keys: list[Any], position: int) -> None:
        if self._has_code:
            self._keys.update((id(key), key) for key in keys if isinstance(key, Opaque))
            self._read("a dict or set", keys, position, is_kept=True)

    def referred(self, id: Any, position: int) -> None:
        is_storage = isinstance(id, tuple) and id[:1] in (("storage",), ("module",))
        if is_storage:
            if any(isinstance(part, Opaque | Persistent | dict) for part in id):
                self.strange("a storage that is not named by plain values", position)
        elif type(id) is not int:
            self._suspect(
                "an object outside the pickle", Rating(UNKNOWN, "is not a storage of torch"), None, position
            )

    def strange(self, what: str, position: int) -> None:
        self._suspect(what, Rating(DANGEROUS, "is not written by any checkpoint writer"), None, position)

    def _rank(self, value: Global | Opaque) -> str:
        ranked = self.ranks.get(value.name)
        return ranked.rank if ranked is not None else KNOWN if value.name in KNOWN_NAMES else UNKNOWN

    def _judge(self, how: str, callee: Global, args: Any, keywords: Any, position: int) -> Rating:
        name, rating = callee.name, self.ranks.get(callee.name) or rank(callee)
        values = args if isinstance(args, tuple) else None
        does = DOES.get(name)
        if name in CALL_RULES:
            verdict = CALL_RULES[name](values) if values is not None else _COMPUTED
            if isinstance(verdict, ForwardedCall):
                self._forwarded(verdict, position)
                return rating
            if isinstance(verdict, Rating):
                return verdict
            does = verdict or KEEPS
        elif name.rpartition(".")[2] in _LOADERS:
            return self._load(name, rating, values, position)
        elif rating.rank == DANGEROUS:
            return rating
        elif rating.rank == UNKNOWN:
            # A subclass of OrderedDict is pickled as a call without arguments.
            is_made = values == () and not keywords and (how == "NEWOBJ" or is_class_like(name))
            return _MADE if is_made else _CALLED
        if does == UNCALLED:
            is_made = how.startswith("NEWOBJ") and values == () and not keywords
            return rating if is_made else _NOT_CALLED
        self._handed(name, does, args, keywords, position)
        return rating

    def _handed(self, name: str, does: str | None, args: Any, keywords: Any, position: int) -> None:
        """Judge the arguments of a known name by its use of them."""
        values = args if isinstance(args, tuple) else None
        if values is None or does == READS:
            self._read(name, args if values is not None else [args], position)
        elif does == KEEPS_FIRST:
            self._read(name, values[1:], position)
        elif does in (LISTS, HASHES):
            for value in values:
                if not isinstance(value, list | tuple | dict):
                    self._read(name, [value], position)
                elif does == HASHES:
                    keys = [
                        one[0] if isinstance(one, list | tuple) and len(one) == 2 else one for one in value
                    ]
                    self._read(name, value if name in _SETS else keys, position, is_kept=True)
        if keywords and does != KEEPS:
            self._read(name, [keywords], position)

    def _forwarded(self, call: ForwardedCall, position: int) -> None:
        """Judge a call that a function makes with its arguments."""
        args = (call.args, call.keywords) if call.keywords else call.args
        self.called(call.how, call.callee, args, position)
        if call.state is not None:
            self._built(Opaque("torch._utils._rebuild_parameter"), call.state, position)

    def _read(self, name: str, values: Iterable[Any], position: int, *, is_kept: bool = False) -> None:
        """Judge values that `name` converts, iterates or compares; with `is_kept` functions are harmless there."""
        code = self._code_in(values, is_kept=is_kept) if self._has_code else None
        if code is not None and is_handed_code(code):
            reason = f"is handed to '{name}', which reads it"
            self._danger(code.name, reason, Global(name), (code,), position)
        elif code is not None:
            self._call_of(code.name, f"may be called by '{name}', which reads it", position)

    def _call_of(self, name: str, reason: str, position: int) -> None:
        self._suspect(name, Rating(UNKNOWN, reason, is_call=True), None, position)

    def _code_in(self, values: Iterable[Any], *, is_kept: bool = False) -> Global | Opaque | None:
        """Return the worst content of some values that runs code when called; None without any."""
        worst_code: Global | Opaque | None = None
        visited: set[int] = set()
        waiting: list[tuple[Any, bool]] = [(value, is_kept) for value in values]
        while waiting:
            value, is_kept = waiting.pop()
            if isinstance(value, Global):
                if not is_kept and (value.name in HARMFUL or self._rank(value) != KNOWN):
                    worst_code = value
            elif isinstance(value, list | tuple | dict | Opaque | Persistent) and id(value) not in visited:
                visited.add(id(value))
                if isinstance(value, Opaque):
                    if is_reached(value):
                        worst_code = value
                    inner: Iterable[Any] = (value.args, value.state, value.items)
                elif isinstance(value, Persistent):
                    inner = ()
                else:
                    inner = [*value, *value.values()] if isinstance(value, dict) else value
                    self._left -= len(value)
                keeps = is_kept and isinstance(value, list | tuple)
                self._left -= 1
                if self._left < 0:
                    return _TOO_MUCH
                waiting.extend((item, keeps) for item in inner)
            if worst_code is not None and is_handed_code(worst_code):
                return worst_code
        return worst_code

    def _load(self, name: str, rating: Rating, values: tuple[Any, ...] | None, position: int) -> Rating:
        """Scan the pickle in a loader's argument."""
        data = _bytes_of(values[0]) if values else None
        problem = self._nested(data, position) if data is not None else "its bytes cannot be determined"
        if name == LOADS_BYTES and problem is None:
            return rating
        reason = f"loads a second pickle; {problem}" if problem else "loads a second pickle"
        return Rating(DANGEROUS, reason) if rating.rank == DANGEROUS or name == LOADS_BYTES else rating

    def _built(self, target: Any, state: Any, position: int) -> None:
        planted = _planted(state)
        if planted is not None:
            self._danger(
                planted.name, "is put where unpickling itself will call it", target, (state,), position
            )
        if isinstance(target, Global):
            self._danger(target.name, "is itself given attributes", target, (state,), position)
        if not isinstance(target, Opaque):
            return
        if is_reached(target):
            reason = "returned an object that is then given attributes; which one cannot be determined"
            self._danger(target.name, reason, target, (state,), position)
        elif target.name in PARTIALS:
            ranked = CALL_RULES[target.name](state if isinstance(state, tuple) else ())
            if isinstance(ranked, Rating):
                self._suspect(target.name, ranked, (Global(target.name), state), position)
        elif self._has_code and self._rank(target) == KNOWN:
            if DOES.get(target.name) == READS or target.name in CALL_RULES:
                self._read(target.name, [state], position, is_kept=True)
        elif self._has_code:
            if target.state is not None:
                self._call_of(target.name, "is given its attributes twice, which no pickler does", position)
            self._kept(target, state, position)
        if id(target) in self._keys:
            self._read("a dict or set", [state], position)

    def _kept(self, target: Opaque, values: Any, position: int) -> None:
        """Judge the content of an object of an unknown class, whose code may call it."""
        code = self._code_in([values]) if HARMFUL & self.ranks.keys() else None
        if code is _TOO_MUCH:
            self._call_of(code.name, f"are handed to '{target.name}'", position)
        elif isinstance(code, Global) and code.name in HARMFUL:
            reason = f"is handed to '{target.name}', which may call it"
            self._danger(code.name, reason, target, (values,), position)

    def _danger(self, name: str, reason: str, callee: Any, args: Any, position: int) -> None:
        self._suspect(name, Rating(DANGEROUS, reason), (callee, args), position)

    def _suspect(self, name: str, ranked: Rating, call: tuple[Any, Any] | None, position: int) -> None:
        """Keep the worst rating of a name; of two equal ones, that of a call."""
        if ranked.rank == KNOWN:
            return
        place = f"{self._place}, byte {position}" if self._place else f"byte {position}"
        text = format_call(*call) if call else None
        new = Suspect(plain(name), ranked.rank, ranked.reason, text, place, ranked.is_call)
        old = self.suspects.get(name)
        if old is None or (new.badness, text is not None) > (old.badness, old.call is not None):
            self.suspects[name] = new


def _planted(state: Any) -> Global | Opaque | None:
    """Return the value that a state sets under a name that pickle looks up on the object and calls.
    A pair of states, whose second is set attribute by attribute, may also change the class."""
    for part in state if isinstance(state, tuple) else (state,):
        if not isinstance(part, dict):
            continue
        for name, value in part.items():
            is_special = isinstance(name, str) and name.startswith("__") and name.endswith("__")
            may_be_called = isinstance(value, Global) or (
                isinstance(value, Opaque) and value.name not in DOES
            )
            if may_be_called and (
                name in _CALLED_BY_PICKLE or (is_special and name not in _HARMLESS_SPECIAL)
            ):
                return value
    return None


def _handed_on(*arguments: Any) -> list[Global | Opaque]:
    """Return the functions among arguments that are harmful when called."""
    functions: list[Global | Opaque] = []
    waiting, budget = list(arguments), _MAX_HANDED
    while waiting and budget:
        value, budget = waiting.pop(), budget - 1
        if is_handed_code(value):
            functions.append(value)
        elif isinstance(value, list | tuple):
            waiting += value[:_MAX_HANDED]
        elif isinstance(value, dict):
            waiting += list(value.values())[:_MAX_HANDED]
    return functions


def _bytes_of(value: Any) -> bytes | Blob | None:
    """Return a value's bytes: plain, in an in-memory file, or as text; None if unknown."""
    for _ in range(3):
        if isinstance(value, bytes | bytearray | Blob):
            return bytes(value) if isinstance(value, bytearray) else value
        if not isinstance(value, Opaque) or not isinstance(value.args, tuple) or not value.args:
            return None
        if value.name == "_codecs.encode" and isinstance(value.args[0], str):
            return value.args[0].encode("latin-1", "replace")
        value = (
            value.args[0]
            if value.name in ("_io.BytesIO", "io.BytesIO", "builtins.bytes", "builtins.bytearray")
            else None
        )
    return None
