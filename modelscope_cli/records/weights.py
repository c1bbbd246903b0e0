"""What `weights` returns, and what its scan for code returns."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, count, counter, figure, shape, share, size, words
from modelscope_cli.records.identified import Identified
from modelscope_cli.records.naming import some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Listing, Notice, Shape, first_keys, to_plain

KNOWN, UNKNOWN, DANGEROUS = "known", "unknown", "dangerous"
DAMAGED = "damaged"  # cut off, or not what its beginning says
NOT_A_CHECKPOINT = "not a checkpoint"  # a web page or an empty file by the name of one
OTHER = "other file"  # text or an image, which hold nothing that a loader of weights would run
RANKS = (OTHER, KNOWN, NOT_A_CHECKPOINT, UNKNOWN, DAMAGED, DANGEROUS)
# What fails: dangerous names, also calls of unknown names, every unknown name, nothing.
CALL = "call"
# What would run a suspect
TORCH, NUMPY = "an unrestricted torch.load", "numpy.load with allow_pickle=True"
NOT_TORCH = "a pickle that torch.load does not read"
_N_NAMED, _N_ERRORS = 8, 3  # in a warning


def worst(ranks: Iterable[str]) -> str:
    """Return the worst of some ranks; `known` if there are none."""
    return max(ranks, key=RANKS.index, default=KNOWN)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A function or class that a file names and that is not known to only hold values.

    Attributes:
        name: in full, as Python 3 finds it: `os.system`; what it is in words where it has no name.
        rank: `unknown` or `dangerous`.
        reason: why.
        call: the call that loading would make, `os.system('id')`; None if it is only referred to.
        place: the part of the file, where it has parts, and the byte there.
        is_call: whether it is, or may be, called with arguments from the file. Otherwise an unknown one is only
            referred to, or is an object made without its constructor and given its attributes.
        loader: what would run it.
    """

    name: str
    rank: str
    reason: str
    call: str | None
    place: str
    is_call: bool = False
    loader: str = TORCH

    @property
    def badness(self) -> tuple[int, bool, bool]:
        return RANKS.index(self.rank), self.is_call, self.loader == TORCH


@dataclass(frozen=True, slots=True)
class WeightsOnly:
    """Whether `torch.load(..., weights_only=True)` takes a file, by the rules of its unpickler.

    Attributes:
        loads: `yes`, `with names` that have to be allowed, `no`, or `unasked` where torch.load unpickles nothing.
        names: those to allow, with `torch.serialization.add_safe_globals`.
        reason: why not.
    """

    loads: str
    names: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Safety:
    """What loading a file in full could run.

    Attributes:
        file: the path, as it was given.
        rank: of the worst of its names; at least `unknown` where something could not be read, `damaged` where the
            file is not whole; `not a checkpoint` for a file that is named like one and is something else, such as a
            web page; `other file` for text and images by their own names, in which no pickle was found.
        suspects: the dangerous ones first.
        foreign: all names except those of torch, in that order.
        pickles: where pickles were found in the file.
        unread: pickles that torch.load does not read, but another loader may.
        errors: what could not be read, or is not judged, and is therefore not known.
        allowed: unknown names that were allowed and are therefore not among the suspects.
    """

    file: Annotated[str, words(rank=0)]
    rank: Annotated[str, words("verdict", rank=0)]
    suspects: tuple[Suspect, ...]
    weights_only: WeightsOnly
    foreign: tuple[str, ...] = ()
    pickles: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    @property
    def dangerous(self) -> tuple[Suspect, ...]:
        return tuple(suspect for suspect in self.suspects if suspect.rank == DANGEROUS)

    @property
    def unknown(self) -> tuple[Suspect, ...]:
        return tuple(suspect for suspect in self.suspects if suspect.rank == UNKNOWN)

    @property
    def calls(self) -> tuple[Suspect, ...]:
        return tuple(suspect for suspect in self.unknown if suspect.is_call)

    @property
    def is_script(self) -> bool:
        return any(suspect.name == "TorchScript" for suspect in self.unknown)

    @property
    def objects(self) -> tuple[Suspect, ...]:
        """The unknown names that are not called, without the layers of a TorchScript program."""
        own = ("TorchScript", "__torch__.") if self.is_script else ()
        return tuple(one for one in self.unknown if not (one.is_call or one.name.startswith(own)))

    def allowing(self, patterns: Iterable[str]) -> "Safety":
        """Return a copy without the unknown names that match a pattern; dangerous ones stay."""
        wanted = tuple(patterns)
        allowed = {one.name for one in self.unknown if any(fnmatchcase(one.name, p) for p in wanted)}
        if not allowed:
            return self
        remaining = tuple(one for one in self.suspects if one.rank == DANGEROUS or one.name not in allowed)
        unread = DAMAGED if self.rank == DAMAGED else UNKNOWN
        rank = worst([one.rank for one in remaining] + [unread] * bool(self.errors))
        return replace(self, suspects=remaining, rank=rank, allowed=tuple(sorted(allowed)))

    def fails(self, fail_on: str) -> bool:
        """Tell whether it is as bad as `fail_on`, `call`, `dangerous`, `unknown` or `never`."""
        if fail_on == CALL:
            return self.rank == DANGEROUS or bool(self.calls)
        return fail_on in RANKS and RANKS.index(self.rank) >= RANKS.index(fail_on)


@dataclass(frozen=True, slots=True)
class ScanRecord(Listing):
    """What `weights --scan` returns: every file below a folder.

    Attributes:
        rank: of the worst file.
        passed: every file was judged, and none is as bad as `fail_on`.
    """

    document: ClassVar[str] = "weights-scan"
    source: str
    files: tuple[Safety, ...]
    fail_on: str

    @property
    def rank(self) -> str:
        return worst(file.rank for file in self.files)

    @property
    def passed(self) -> bool:
        return not any(file.errors or file.fails(self.fail_on) for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        header = first_keys(self.document, self.versions, self.argv)
        verdict = {"source": self.source, "rank": self.rank, "fail_on": self.fail_on, "passed": self.passed}
        return {**header, **verdict, "files": to_plain(self.files)}


@dataclass(slots=True, unsafe_hash=True)  # not frozen, which makes creation four times slower
class TensorRow(Row):
    """One named tensor of a checkpoint; the statistics are of its finite values, None unless requested.

    Attributes:
        dtype: torch's name: `float32`.
        file: where its values are.
        shared_with: the first name of the same tensor, where it has several.
        problem: why there are no statistics although they were requested.
    """

    name: Annotated[str, words(rank=0)]
    shape: Annotated[Shape, shape()]
    dtype: Annotated[str, words(rank=3)]
    numel: Annotated[int, count(rank=5)]
    bytes: Annotated[int, size("size", rank=2)]
    file: Annotated[str, words(rank=7)]
    mean: Annotated[float | None, figure(rank=0)] = None
    std: Annotated[float | None, figure()] = None
    min: Annotated[float | None, figure(rank=4)] = None
    max: Annotated[float | None, figure(rank=4)] = None
    abs_max: Annotated[float | None, figure("abs max", rank=3)] = None
    zero_fraction: Annotated[float | None, share(rank=0, key="zero")] = None
    nan_count: Annotated[int | None, counter(key="nan", rank=2)] = None
    inf_count: Annotated[int | None, counter(key="inf", rank=2)] = None
    shared_with: Annotated[str | None, words(is_shown=False, key="shared")] = None
    problem: Annotated[str | None, words(rank=6)] = None


_SPIKE, _SPIKED = 0.999, 16  # share of the sum of squares in one value, of at least so many


def oddity(row: TensorRow) -> str:
    """Say which values no sound model has; empty if there are none, or if the values were not read."""
    if n := (row.nan_count or 0) + (row.inf_count or 0):
        return f"{n:,} NaN or infinite"
    low, high = row.min or 0.0, row.max or 0.0
    if row.name.endswith("running_var") and low < 0:
        return f"a variance of {low:.3g}"
    far, rms = max(low, high, key=abs), math.hypot(row.std or 0.0, row.mean or 0.0)
    is_far = row.numel >= _SPIKED and (row.zero_fraction or 0.0) < 0.5
    is_far &= abs(far) > math.sqrt(_SPIKE * row.numel) * rms
    return f"one of {far:.3g} beside far smaller ones" * is_far


@dataclass(frozen=True, slots=True)
class DtypeTotal:
    """How much there is of one dtype."""

    tensors: int
    numel: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WeightTotals:
    """Sums over the tensors shown; one with several names counts once.

    Attributes:
        storage_bytes: of all storages that these tensors view, which may be larger than the tensors.
    """

    tensors: int
    numel: int
    bytes: int
    storage_bytes: int
    by_dtype: dict[str, DtypeTotal]


@dataclass(frozen=True, slots=True)
class WeightsRecord(Listing):
    """What `weights` returns: no model was run, so it has a header of its own.

    Attributes:
        source: the path that was given.
        format: file format, in words.
        metadata: what safetensors files and shard indexes carry.
        beside: other content of the file, by name and in words.
        foreign: functions and classes that loading the file in full would import or run, dangerous ones first.
        note: the entry of the file that holds the state dict.
        safety: the same with the rank of each, and whether torch loads the file with weights_only=True.
        error: why the file could not be read; None if it could.
        saved_class: the class of a model that was saved whole, not as a state dict.
    """

    document: ClassVar[str] = "weights"
    source: str
    format: str
    tensors: tuple[TensorRow, ...]
    totals: WeightTotals
    metadata: dict[str, str]
    beside: dict[str, str]
    foreign: tuple[str, ...]
    note: str | None
    architecture: Identified
    has_stats: bool = False
    warnings: tuple[Notice, ...] = ()
    elapsed_ms: float = 0.0
    safety: Safety | None = None
    error: str | None = None
    saved_class: str | None = None


def warnings_of(safety: Safety) -> tuple[Notice, ...]:
    """Return a warning for every dangerous name, one for all unknown names, and for unread parts."""
    notices = [Notice("dangerous_code", _sentence(suspect)) for suspect in safety.dangerous]
    for loader in dict.fromkeys(one.loader for one in safety.unknown):
        calls = [one.call or one.name for one in safety.calls if one.loader == loader]
        names = [one.name for one in safety.objects if one.loader == loader]
        if calls:
            text = f"unknown calls: {loader} would run {some(calls, _N_NAMED)}"
            notices.append(Notice("foreign_call", text))
        if names:
            text = f"unknown classes, no calls: {loader} would import {some(names, _N_NAMED)}"
            notices.append(Notice("foreign_code", text))
    if safety.is_script:
        text = "a TorchScript program: torch.jit.load would run its code, which was not looked at"
        notices.append(Notice("foreign_code", text))
    own = (".debug_pkl", "constants.pkl") if safety.is_script else ()
    if unread := [one for one in safety.unread if not one.endswith(own)]:
        places = some(unread, _N_ERRORS)
        notices.append(Notice("more_pickles", f"it contains more pickles than torch.load reads: {places}"))
    if safety.errors and safety.rank != NOT_A_CHECKPOINT:  # which the error says
        errors = some(safety.errors, _N_ERRORS)
        notices.append(Notice("not_read", f"the scan for code is not complete: {errors}"))
    return tuple(notices)


def tell_allowed(safety: Safety, progress: Progress) -> None:
    """Report which unknown names a pattern allows."""
    if safety.allowed:
        progress.note(f"allowed in '{safety.file}': {some(safety.allowed, _N_NAMED)}")


def _sentence(suspect: Suspect) -> str:
    what = suspect.call or suspect.name
    return f"dangerous: {suspect.loader} would run {what} ({suspect.place}): it {suspect.reason}"
