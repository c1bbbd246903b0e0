"""What a pickle would do, judged as the machine comes to it. Standard library."""

from collections.abc import Callable
from typing import Any

from modelscope_cli.checkpoints.pickle_machine import Blob, Global, Opaque, Persistent
from modelscope_cli.checkpoints.safety.judged import JUDGED, is_handed_code, is_reached, may_call
from modelscope_cli.checkpoints.safety.rank import Ranked, is_class_like, is_standard, rank
from modelscope_cli.checkpoints.safety.words import call_in_words
from modelscope_cli.plain_text import plain
from modelscope_cli.records.safety import DANGEROUS, KNOWN, RANKS, UNKNOWN, Suspect

Nested = Callable[[Any, int], str | None]

# Handed to somebody else they are dangerous; the others judged by their arguments are known by name.
_LOADS_BYTES = "torch.storage._load_from_bytes"
# Load the bytes they are given as a pickle.
_LOADERS = ("loads", "load", "_load_from_bytes", "_loads", "Unpickler", "_Unpickler", "read_pickle")
# Call the first of their arguments with the third, or are given a class to make something of.
_FORWARD = {"torch._tensor._rebuild_from_type_v2": (0, 2), "copyreg.__newobj__": (0, None)}
# A function of these that is not on the list and is called has been found to run code too often.
_LIBRARIES = (
    "torch",
    "numpy",
    "torchvision",
    "networkx",
    "mpmath",
    "matplotlib",
    "PIL",
    "click",
    "typer",
    "rich",
)
_MAX_LOOK = 200
# Looked up in an object before its class: `load_build` and `load_appends` of CPython.
_CALLED_BY_PICKLE = ("__setstate__", "append", "extend", "add")
_COMPUTED = Ranked(DANGEROUS, "is called with arguments that cannot be determined")


class Witness:
    """Keeps the names of a pickle that are not known, with the worst that is done with each.

    Attributes:
        ranks: every name that was imported.
        suspects: by name and rank, the first of each.
    """

    def __init__(self, place: str, nested: Nested) -> None:
        """Take `nested(bytes, position)`, which goes through a pickle inside and returns what is wrong with it."""
        self._place = place
        self._nested = nested
        self.ranks: dict[str, Ranked] = {}
        self.suspects: dict[str, Suspect] = {}

    def named(self, found: Global, position: int) -> None:
        if found.name not in self.ranks:
            ranked = rank(found)
            if ranked.rank == DANGEROUS and found.name in JUDGED:
                ranked = Ranked(UNKNOWN, "may be dangerous, depending on its arguments")
            self.ranks[found.name] = ranked
            self._suspect(found.name, self.ranks[found.name], None, position)

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        if how == "BUILD":
            self._built(callee, args, position)
            return
        keywords = None
        if how == "NEWOBJ_EX" and isinstance(args, tuple) and len(args) == 2 and isinstance(args[0], tuple):
            args, keywords = args
        if isinstance(callee, Global):
            ranked = self._judge(callee, args, position)
            self._suspect(callee.name, ranked, (callee, args), position)
            planted = _planted(args) if "._rebuild_" in callee.name else None
            if planted is not None:
                self._danger(
                    planted.name, "is put where unpickling itself will call it", callee, args, position
                )
            if ranked.rank != KNOWN and callee.name not in JUDGED:
                for given in _handed_on(args, keywords, is_function=not is_class_like(callee.name)):
                    self._danger(
                        given.name, f"is handed to '{callee.name}', which may call it", callee, args, position
                    )
        elif isinstance(callee, Opaque) and may_call(callee):
            self._suspect(
                callee.name, Ranked(UNKNOWN, "makes a function out of bytes"), (callee, args), position
            )
        elif isinstance(callee, Opaque | Persistent):
            name = callee.name if isinstance(callee, Opaque) else "something outside the pickle"
            self._danger(
                name, "produced what is called: it cannot be determined what that is", callee, args, position
            )

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        if isinstance(target, Global):
            self._danger(target.name, "is itself changed", target, (items,), position)
        elif isinstance(target, Opaque) and is_reached(target):
            self._danger(
                target.name,
                "produced what is changed: it cannot be determined what that is",
                target,
                (items,),
                position,
            )
        elif isinstance(target, Persistent) or (isinstance(target, Opaque) and "._rebuild_" in target.name):
            self.strange("values written into a tensor by the pickle", position)

    def referred(self, id: Any, position: int) -> None:
        is_storage = isinstance(id, tuple) and id[:1] in (("storage",), ("module",))
        if not is_storage and type(id) is not int:
            self._suspect(
                "an object outside the pickle", Ranked(UNKNOWN, "is not a storage of torch"), None, position
            )

    def strange(self, what: str, position: int) -> None:
        self._suspect(what, Ranked(DANGEROUS, "is not what any checkpoint writer makes"), None, position)

    def _judge(self, callee: Global, args: Any, position: int) -> Ranked:
        name, own = callee.name, self.ranks.get(callee.name) or rank(callee)
        values = args if isinstance(args, tuple) else None
        if name in JUDGED:
            return (JUDGED[name](values or ()) if values is not None else _COMPUTED) or own
        if name in _FORWARD and values is not None:
            return self._forwarded(name, own, values, position)
        if name == "copyreg._reconstructor" and values is not None:
            for kind in values[:2]:
                self.called("NEWOBJ", kind, values[2:], position)
            return own
        if name.rpartition(".")[2] in _LOADERS:
            return self._load(name, own, values, position)
        is_function = not is_class_like(name) and own.rank == UNKNOWN
        if is_function and name.partition(".")[0] in _LIBRARIES:
            return Ranked(DANGEROUS, "is a function that no checkpoint is known to call")
        if own.rank != DANGEROUS and "." in name[len(callee.module) + 1 :] and is_standard(name):
            return (
                own
                if name in ("zoneinfo.ZoneInfo._unpickle",)
                else Ranked(DANGEROUS, "is a method that is called")
            )
        return own

    def _forwarded(self, name: str, own: Ranked, values: tuple[Any, ...], position: int) -> Ranked:
        """Judge the call that a known function makes of its arguments."""
        function, given = _FORWARD[name]
        first = values[function] if len(values) > function else None
        if isinstance(first, Global) and rank(first).rank == KNOWN and not first.name.startswith("torch."):
            return Ranked(DANGEROUS, f"is given '{first.name}' to call, as torch never does")
        if len(values) > function:
            args = values[1:] if given is None else values[given] if len(values) > given else ()
            self.called("REDUCE", values[function], args, position)
        return own

    def _load(self, name: str, own: Ranked, values: tuple[Any, ...] | None, position: int) -> Ranked:
        """Go through the pickle in the bytes that a loader is given."""
        data = _bytes_of(values[0]) if values else None
        problem = self._nested(data, position) if data is not None else "its bytes cannot be determined"
        if name == _LOADS_BYTES and problem is None:
            return own
        reason = f"loads a second pickle; {problem}" if problem else "loads a second pickle"
        return Ranked(DANGEROUS, reason) if own.rank == DANGEROUS or name == _LOADS_BYTES else own

    def _built(self, target: Any, state: Any, position: int) -> None:
        planted = _planted(state)
        if planted is not None:
            self._danger(
                planted.name, "is put where unpickling itself will call it", target, (state,), position
            )
        if isinstance(target, Global):
            self._danger(target.name, "is itself given attributes", target, (state,), position)
        elif isinstance(target, Opaque):
            if is_reached(target):
                reason = "produced what is given attributes: it cannot be determined what that is"
                self._danger(target.name, reason, target, (state,), position)
            elif target.name == "functools.partial":
                ranked = JUDGED[target.name](state if isinstance(state, tuple) else ())
                self._suspect(target.name, ranked or _COMPUTED, (Global(target.name), state), position)

    def _danger(self, name: str, reason: str, callee: Any, args: Any, position: int) -> None:
        self._suspect(name, Ranked(DANGEROUS, reason), (callee, args), position)

    def _suspect(self, name: str, ranked: Ranked, call: tuple[Any, Any] | None, position: int) -> None:
        """Keep the worst that is said of a name; of two that are as bad, the one that tells of a call."""
        if ranked.rank == KNOWN:
            return
        old = self.suspects.get(name)
        if old is not None:
            is_worse = RANKS.index(ranked.rank) > RANKS.index(old.rank)
            if not is_worse and not (call and old.call is None and ranked.rank == old.rank):
                return
        place = f"{self._place}, byte {position}" if self._place else f"byte {position}"
        words = call_in_words(*call) if call else None
        self.suspects[name] = Suspect(plain(name), ranked.rank, ranked.reason, words, place)


def _planted(state: Any) -> Global | Opaque | None:
    """Return what a state puts under a name that the unpickler looks up in the object itself, and calls."""
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            found = [part[name] for name in _CALLED_BY_PICKLE if isinstance(part.get(name), Global | Opaque)]
            if found:
                return found[0]
    return None


def _handed_on(*given: Any, is_function: bool) -> list[Global | Opaque]:
    """Return the functions among arguments that do harm once they are called; a class mostly keeps them."""
    found: list[Global | Opaque] = []
    waiting, left = list(given), _MAX_LOOK
    while waiting and left:
        value, left = waiting.pop(), left - 1
        if is_handed_code(value) or (is_function and isinstance(value, Opaque) and is_reached(value)):
            found.append(value)
        elif isinstance(value, list | tuple):
            waiting += value[:_MAX_LOOK]
        elif isinstance(value, dict):
            waiting += list(value.values())[:_MAX_LOOK]
    return found


def _bytes_of(value: Any) -> bytes | Blob | None:
    """Return the bytes that a value would be, where that is known: plain, in a file in memory, or as text."""
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
