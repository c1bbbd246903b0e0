"""What every record has: the header of the run, what the hooks did, and how it becomes a document and a table."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from modelscope_cli import __version__
from modelscope_cli.records.display import Shown


@dataclass(frozen=True, slots=True)
class HookReport:
    """One `--hook`: what it was attached to, how often it fired, what it changed.

    Attributes:
        spec: its text in full, as the parser prints it.
        layers: what it was attached to; calls such as `relu#1` where its pattern speaks of calls.
        fired: how often a call, or a gradient, went through it. `never_fired`: the layers where none did.
        numel: values that went through it. `changed_fraction`: share of them that came out different, None where
            none did go through.
        max_abs_difference: largest |after - before| over values finite before and after; None where nothing went
            through, or where the action only looks.
        left_alone: why some tensors were passed on as they were; None where none was.
        moved: what else changed because the user's function worked in place.
        file: what `save` wrote.
    """

    spec: str
    kind: str
    action: str
    layers: tuple[str, ...]
    fired: int
    never_fired: tuple[str, ...] = ()
    numel: int = 0
    changed_fraction: float | None = None
    max_abs_difference: float | None = None
    left_alone: str | None = None
    moved: tuple[str, ...] = ()
    file: str | None = None


Shape = tuple[int, ...]
Arguments = tuple[Any, ...] | dict[str, Any]
"""What a model is called with: a tuple in order, `model(*args)`; a dict by name, `model(**args)`."""

# Python keywords cannot be field names; these keys differ from their field.
_KEYS = {"class_name": "class"}
_PLAIN = frozenset({bool, int, float, str, type(None)})


def to_plain(value: Any) -> Any:
    """Turn records, tuples and paths into dicts, lists and strings, as JSON wants them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((key, getattr(value, name)) for name, key in _fields(type(value)))
        return {key: item if type(item) in _PLAIN else to_plain(item) for key, item in pairs}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        # Series hold very many numbers: no call for each.
        return [item if type(item) in _PLAIN else to_plain(item) for item in value]
    return value


def key_of(field: str) -> str:
    """Return the key of a field in a document."""
    return _KEYS.get(field, field)


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a record, and their keys in a document."""
    return tuple((field.name, key_of(field.name)) for field in dataclasses.fields(kind) if field.repr)


@cache
def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "torchvision": version("torchvision"),
    }


class _Versions(Mapping[str, str]):
    """Looked up once they are read: a table does without, and the import takes longer than to read a checkpoint."""

    def __getitem__(self, name: str) -> str:
        return _versions()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_versions())

    def __len__(self) -> int:
        return len(_versions())


def versions() -> Mapping[str, str]:
    """Return the versions that decide the numbers."""
    return _Versions()


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a function came to be called.

    Attributes:
        argv: what was typed; empty when called from Python.
        started: when, on the monotonic clock, in seconds.
        is_forced: whether files that are there may be replaced, where no keyword says so; on the command line only
            with --force.
    """

    argv: tuple[str, ...] = ()
    started: float = field(default_factory=time.monotonic)
    is_forced: bool = True

    @property
    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self.started) * 1000, 1)


# Set by the command line for as long as one command runs.
_INVOCATION: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def invoked_as(argv: tuple[str, ...], started: float, is_forced: bool = False) -> None:
    """Remember what was typed and when, for the headers of the records that come of it."""
    _INVOCATION.set(Invocation(argv, started, is_forced))


def over() -> None:
    """Forget the command that was running: later calls come from Python."""
    _INVOCATION.set(None)


def invocation() -> Invocation:
    """Return the command that is running, or one from Python that begins now."""
    return _INVOCATION.get() or Invocation()


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning: a stable `code` for machines and one line for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class WeightsInfo:
    """Where a model's weights came from.

    Attributes:
        requested: what was typed: `auto`, `none`, an enum name, or a file.
        resolved: `random`, `own` (what a factory gave, drawn or loaded), an enum name such as `IMAGENET1K_V1`,
            the tag of timm's weights, or a file name.
        origin: in words: `seeded random`, `as the factory gave them`, `cache`, `download`, `folder`, `checkpoint`,
            `meta` (no values at all).
        sha256: of the file that was read; None where there was none.
    """

    requested: str
    resolved: str
    origin: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model was looked at. `source` is `zoo` (torchvision), `timm`, `hf` (transformers), `import` (the
    user's code) or `object` (handed over in Python)."""

    source: str
    name: str
    class_name: str
    weights: WeightsInfo

    @property
    def short_name(self) -> str:
        """The name for a title: of your own code without the folders of its file."""
        return Path(self.name).name if self.source in ("import", "hf") else self.name

    @property
    def described(self) -> str:
        """The name with its class and weights, `resnet34 (ResNet, weights random)`."""
        return f"{self.name} ({self.class_name}, weights {self.weights.resolved})"

    @property
    def heading(self) -> str:
        """What a figure of it is headed with."""
        return f"{self.short_name}, {self.weights.resolved} weights"


@dataclass(frozen=True, slots=True)
class BrokenKind:
    """Images that could not be decoded, and why: `empty`, `not an image`, `truncated`, `too large`, `32-bit`,
    `unreadable`. `names` are those of the first ten in the list of images."""

    kind: str
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Feeding:
    """How long it took to decode images and to run the model on them, in all passes together.

    Attributes:
        workers: processes that decoded beside the model; 0 where both took turns.
        decode_ms: spent decoding and preparing, summed over the processes.
        model_ms: spent on the images otherwise, by the model and its observers.
        wait_ms: for which the model waited for images.
    """

    workers: int
    decode_ms: float
    model_ms: float
    wait_ms: float


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What the model was run on.

    Attributes:
        source: `image`, `tensor`, `noise`.
        shape: shape of one batch as the model received it, one entry per input.
        files: the files, in order; of very many the first 1,000.
        preprocessing: in words and numbers; None for tensors and noise.
        names: of the inputs, as many as there are shapes; empty where they were given in order.
        n_files: how many files there are.
        broken: the images that could not be decoded, by kind; the model never saw them.
        feeding: how long that took, for images in number; else None.
    """

    source: str
    shape: tuple[Shape, ...]
    files: tuple[str, ...] = ()
    preprocessing: str | None = None
    names: tuple[str, ...] = ()
    n_files: int = 0
    broken: tuple[BrokenKind, ...] = ()
    feeding: Feeding | None = None

    @property
    def n_broken(self) -> int:
        """How many images could not be decoded."""
        return sum(kind.count for kind in self.broken)


def first_keys(command: str, versions: Mapping[str, str], argv: tuple[str, ...]) -> dict[str, Any]:
    """Return what every document begins with, whether or not a model was run for it."""
    return {"schema": f"modelscope/{command}/1", "tool": dict(versions), "argv": list(argv)}


@dataclass(frozen=True, slots=True)
class Run:
    """What every document begins with.

    Attributes:
        command: `summary`, `stats`, `featuremaps`.
        argv: what was typed, or empty when called from Python.
        input: None where nothing was run.
        versions: of the tool, Python, torch and torchvision.
        elapsed_ms: from the first line of the command to the record.
    """

    command: str
    argv: tuple[str, ...]
    model: ModelInfo
    input: InputInfo | None
    device: str
    dtype: str
    seed: int
    versions: Mapping[str, str]
    warnings: tuple[Notice, ...] = ()
    elapsed_ms: float = 0.0

    @classmethod
    def of(
        cls,
        command: str,
        model: ModelInfo,
        given: InputInfo | None,
        *,
        device: str,
        dtype: str,
        seed: int,
        warnings: Iterable[Notice] = (),
        invoked: Invocation | None = None,
    ) -> "Run":
        """Fill in what was typed, when, and the versions; without `invoked`, by the command that runs now."""
        invoked = invoked or invocation()
        return cls(
            command=command,
            argv=invoked.argv,
            model=model,
            input=given,
            device=device,
            dtype=dtype,
            seed=seed,
            versions=versions(),
            warnings=tuple(warnings),
            elapsed_ms=invoked.elapsed_ms,
        )

    def header(self) -> dict[str, Any]:
        """The keys that stand before a command's own, in the order of the contract."""
        return {
            **first_keys(self.command, self.versions, self.argv),
            "model": to_plain(self.model),
            "input": to_plain(self.input),
            "device": self.device,
            "dtype": self.dtype,
            "seed": self.seed,
            "warnings": to_plain(self.warnings),
            "elapsed_ms": round(self.elapsed_ms, 1),
        }


@dataclass(frozen=True, slots=True)
class Record(Shown):
    """The result of one command. `to_dict` gives the JSON document."""

    run: Run

    @property
    def command(self) -> str:
        return self.run.command

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        own = {f.name: to_plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "run"}
        return {**self.run.header(), **own}
