"""Every pickle in one run of bytes, whole or broken, gone through one after the other. Standard library."""

import re
from dataclasses import dataclass, replace
from typing import IO, Any

from modelscope_cli.checkpoints.opcodes import MAX_BYTES
from modelscope_cli.checkpoints.pickle_machine import EXTENSION, Global, Machine
from modelscope_cli.checkpoints.safety.call_rules import resolved
from modelscope_cli.checkpoints.safety.joblib_pickle import JoblibMachine
from modelscope_cli.checkpoints.safety.pickle_auditor import Nested, PickleAuditor
from modelscope_cli.checkpoints.safety.rank import rank
from modelscope_cli.checkpoints.safety.weights_only import WeightsOnlyRules
from modelscope_cli.checkpoints.watch import Watch
from modelscope_cli.records.weights import DANGEROUS, Suspect

# What the format before torch 1.6 begins with, as a number and as the pickle of it.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
N_LEGACY = 5  # pickles: the magic number, the protocol, the system, the content, the keys
_MAX_PICKLES = 100_000
_MAX_GUESSES = 4096
_MIN_OPERATIONS = 5  # different ones
_MAX_SWEEP = MAX_BYTES
_BEGIN = re.compile(rb"\x80[\x00-\x05]")
# A name as text, and as two counted texts before STACK_GLOBAL, with or without a memo of each.
_NAME = re.compile(
    rb"[ci]([\w.]{1,100})\n([\w.]{1,100})\n|\x8c.([\w.]{1,100})\x94?\x8c.([\w.]{1,100})\x94?\x93", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Found:
    """One pickle.

    Attributes:
        content: its description; None where it broke.
        error: why it broke.
        is_sure: it is one: it says so, it names something, or it is whole and not trivial.
        is_named: it names something.
    """

    start: int
    end: int
    content: Any
    error: ValueError | None
    names: tuple[str, ...]
    suspects: dict[str, Suspect]
    is_sure: bool
    is_named: bool


class _Both:
    """Tells two watches of everything."""

    def __init__(self, first: Watch, second: Watch) -> None:
        self._watches = (first, second)

    def named(self, found: Global, position: int) -> None:
        for watch in self._watches:
            watch.named(found, position)

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        for watch in self._watches:
            watch.called(how, callee, args, position)

    def altered(self, how: str, target: Any, items: list[Any], position: int) -> None:
        for watch in self._watches:
            watch.altered(how, target, items, position)

    def hashed(self, keys: list[Any], position: int) -> None:
        for watch in self._watches:
            watch.hashed(keys, position)

    def referred(self, id: Any, position: int) -> None:
        for watch in self._watches:
            watch.referred(id, position)

    def strange(self, what: str, position: int) -> None:
        for watch in self._watches:
            watch.strange(what, position)


def read_pickles(
    file: IO[bytes], place: str, nested: Nested, rules: WeightsOnlyRules | None = None, is_one: bool = False
) -> list[Found]:
    """Go through the pickles that follow one another from the beginning of a file, and those that may stand behind.

    Args:
        rules: of torch, for the pickles that `torch.load` reads.
        is_one: what follows the first is not read by anybody.
    """
    n_bytes = file.seek(0, 2)
    first = _read(file, 0, place, nested, rules)
    if not first.is_sure:
        return []
    found = [first]
    is_legacy = first.content == LEGACY_MAGIC
    while found[-1].error is None and found[-1].end < n_bytes and not is_one and len(found) < _MAX_PICKLES:
        if is_legacy and len(found) == N_LEGACY:
            break
        one = _read(file, found[-1].end, place, nested, rules if is_legacy else None)
        if one.error is not None and not one.is_named and not is_legacy:
            break
        found.append(one)
    if found[-1].error is not None:
        found[-1] = _with_sweep(file, found[-1], place)
    elif not is_one:
        found += _behind(file, found[-1].end, place, nested)
    return found


def _read(file: IO[bytes], at: int, place: str, nested: Nested, rules: WeightsOnlyRules | None) -> Found:
    file.seek(at)
    has_magic = _BEGIN.match(file.read(2)) is not None
    file.seek(at)
    auditor = PickleAuditor(place, nested)
    machine = JoblibMachine(file, resolved, auditor if rules is None else _Both(auditor, rules))
    content, error = None, None
    try:
        content = machine.read()
    except (ValueError, OSError, MemoryError) as raised:
        error = raised if isinstance(raised, ValueError) else ValueError(str(raised))
    if rules is not None:
        rules.finished(machine.operations, error, auditor.suspects.values())
    is_named = _is_named(machine, auditor)
    is_sure = has_magic or is_named or (error is None and machine.position - at > 2)
    names = tuple(machine.names)
    return Found(at, machine.position, content, error, names, auditor.suspects, is_sure, is_named)


def _is_named(machine: Machine, auditor: PickleAuditor) -> bool:
    """Tell whether names stand in it that can be names: `class A:` in a text would name something too."""
    ranks = [
        ranked.rank
        for name, ranked in auditor.ranks.items()
        if all(map(str.isidentifier, name.split("."))) and not name.startswith(EXTENSION)
    ]
    return DANGEROUS in ranks or (bool(ranks) and len(machine.operations) >= _MIN_OPERATIONS)


def _behind(file: IO[bytes], at: int, place: str, nested: Nested) -> list[Found]:
    """Guess where further pickles begin behind bytes that are none; only those that name something are told."""
    file.seek(at)
    data = file.read(_MAX_SWEEP)
    found: list[Found] = []
    end = 0
    for _, match in zip(range(_MAX_GUESSES), _BEGIN.finditer(data), strict=False):
        if match.start() >= end:
            one = _read(file, at + match.start(), place, nested, None)
            if one.is_named:
                found.append(one)
                end = one.end - at
    return found


def _with_sweep(file: IO[bytes], broken: Found, place: str) -> Found:
    """Look for dangerous names behind the place where a pickle breaks: another reader may get there."""
    file.seek(broken.start)
    data = file.read(_MAX_SWEEP)
    suspects = dict(broken.suspects)
    for match in _NAME.finditer(data):
        module, name = (
            (match[1] or match[3]).decode("utf-8", "replace"),
            (match[2] or match[4]).decode("utf-8", "replace"),
        )
        ranked = rank(Global(f"{module}.{name}", module))
        if ranked.rank == DANGEROUS and f"{module}.{name}" not in suspects:
            where = f"{place}, byte {broken.start + match.start()}".removeprefix(", ")
            suspects[f"{module}.{name}"] = Suspect(f"{module}.{name}", DANGEROUS, ranked.reason, None, where)
    return replace(broken, suspects=suspects)
