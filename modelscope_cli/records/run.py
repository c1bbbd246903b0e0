"""The common base of records: the header of the run, reports of hooks, and the JSON document."""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from modelscope_cli import __version__
from modelscope_cli.errors import in_python
from modelscope_cli.records.display import Shown


@dataclass(frozen=True, slots=True)
class HookReport:
    """One `--hook`: what it was attached to, how often it fired, what it changed.

    Attributes:
        spec: its text in full, as the parser prints it.
        layers: what it was attached to; calls such as `relu#1` if its pattern names calls.
        fired: number of calls or gradients that it processed. `never_fired`: the layers without any.
        numel: number of values that it processed. `changed_fraction`: fraction of them that changed, None without
            any.
        max_abs_difference: largest |after - before| over values finite before and after; None without values, or
            for an action that only observes.
        left_alone: why some tensors were passed on unchanged; None if none was.
        file: the file that `save` wrote.
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
    file: str | None = None


Shape = tuple[int, ...]
# What a layer, a function or an operator is called with.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
CallInputs = tuple[Args, Kwargs]
Arguments = Args | Kwargs
"""What a model is called with: a tuple in order, `model(*args)`; a dict by name, `model(**args)`."""

# Keys that are Python keywords differ from their field.
_KEYS = {"class_name": "class"}
_PLAIN = frozenset({bool, int, float, str, type(None)})


def to_plain(value: Any) -> Any:
    """Convert records, tuples and paths to dicts, lists and strings for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((key, getattr(value, name)) for name, key in _fields(type(value)))
        return {key: item if type(item) in _PLAIN else to_plain(item) for key, item in pairs}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        # Series hold very many numbers: avoid a call for each.
        return [item if type(item) in _PLAIN else to_plain(item) for item in value]
    return value


def key_of(field: str) -> str:
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
    """Versions, looked up on first access: tables do not need them, and the imports are slow."""

    def __getitem__(self, name: str) -> str:
        return _versions()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_versions())

    def __len__(self) -> int:
        return len(_versions())


def versions() -> Mapping[str, str]:
    """Return the versions that affect the numbers."""
    return _Versions()


@dataclass(frozen=True, slots=True)
class Invocation:
    """The command or call that is running.

    Attributes:
        argv: the command line; empty when called from Python.
        started: when, on the monotonic clock, in seconds.
        is_forced: whether existing files may be replaced by default; on the command line only with --force.
    """

    argv: tuple[str, ...] = ()
    started: float = field(default_factory=time.monotonic)
    is_forced: bool = True

    @property
    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self.started) * 1000, 1)


# Set by the command line while one command runs.
_INVOCATION: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def invoked_as(argv: tuple[str, ...], started: float, is_forced: bool = False) -> None:
    """Set the command line and its start time for the headers of records."""
    _INVOCATION.set(Invocation(argv, started, is_forced))


def over() -> None:
    """Reset the invocation: later calls come from Python."""
    _INVOCATION.set(None)


def invocation() -> Invocation:
    """Return the running command, else an invocation from Python that begins now."""
    return _INVOCATION.get() or Invocation()


# Codes of warnings that the scores of the model say nothing, and so what was computed from them.
SATURATED, UNDECIDED, FLAT, ALIKE, NONFINITE = DEGENERATE = (
    *("saturated_scores", "undecided", "flat_output", "same_for_all_images", "nonfinite_scores"),
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning: a stable `code` for machines and one line for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class WeightsInfo:
    """Where a model's weights came from.

    Attributes:
        requested: as typed: `auto`, `none`, an enum name, or a file.
        resolved: `random`, `own` (as the factory returned them, random or loaded), an enum name such as
            `IMAGENET1K_V1`, the tag of timm's weights, or a file name, after `6 of 21 tensors from` where not
            all were filled.
        origin: in words: `seeded random`, `as the factory gave them`, `cache`, `download`, `folder`, `checkpoint`,
            `file` (the one that is the model), `meta` (no values at all).
        sha256: of the file that was read; None where there was none.
    """

    requested: str
    resolved: str
    origin: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model was looked at. `source` is `zoo` (torchvision), `timm`, `hf` (transformers), `import` (the
    user's code), `onnx` (a file that onnxruntime runs), `pt2` (one of torch.export) or `object` (from Python)."""

    source: str
    name: str
    class_name: str
    weights: WeightsInfo

    @property
    def short_name(self) -> str:
        """The name for a title, without the folders of a user's file."""
        return Path(self.name).name if self.source in ("import", "hf", "onnx", "pt2") else self.name

    @property
    def described(self) -> str:
        """The name with its class and weights, `resnet34 (ResNet, weights random)`; or an object's class."""
        is_object = self.weights.resolved == "object" and self.name == self.class_name
        return self.name if is_object else f"{self.name} ({self.class_name}, weights {self.weights.resolved})"

    @property
    def heading(self) -> str:
        is_object = self.weights.resolved == "object"
        return self.short_name if is_object else f"{self.short_name}, {self.weights.resolved} weights"


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the images, with the interval that holds the true share in 95 of 100 such samples.

    It is Wilson's (1927, "Probable inference, the law of succession, and statistical inference"), which stays
    within 0..1 and means something for few images and for shares of 0 and 1, too.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, n: int, z: float = 1.959963984540054) -> "Share":
        """Return `count / n`. `z`: quantile of the normal distribution, of 97.5 %."""
        share = count / n
        middle, spread = share + z * z / (2 * n), z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
        scale = 1 + z * z / n
        # At 0 and n the two terms are equal, and the rounding of the root would matter.
        low, high = (middle - spread) / scale, (middle + spread) / scale
        return cls(share, low if count else 0.0, high if count < n else 1.0)

    def is_above(self, other: "Share") -> bool:
        """Tell whether it is larger than another by more than chance explains: the intervals do not overlap."""
        return self.low > other.high


@dataclass(frozen=True, slots=True)
class BrokenKind:
    """Images that could not be decoded, and why: `empty`, `not an image`, `truncated`, `too large`, `32-bit`,
    `unreadable`. `names` are those of the first ten in the list of images."""

    kind: str
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InputInfo:
    """The input of the model.

    Attributes:
        source: `image`, `tensor`, `noise`.
        shape: shape of one batch as the model received it, one entry per input.
        files: the files, in order; of very many the first 1,000.
        preprocessing: in words and numbers; None for tensors and noise.
        names: of the inputs, as many as there are shapes; empty where they were given in order.
        n_files: how many files there are.
        broken: the images that could not be decoded, by kind; the model never saw them.
    """

    source: str
    shape: tuple[Shape, ...]
    files: tuple[str, ...] = ()
    preprocessing: str | None = None
    names: tuple[str, ...] = ()
    n_files: int = 0
    broken: tuple[BrokenKind, ...] = ()

    @property
    def n_broken(self) -> int:
        """How many images could not be decoded."""
        return sum(kind.count for kind in self.broken)


def first_keys(command: str, versions: Mapping[str, str], argv: tuple[str, ...]) -> dict[str, Any]:
    """Return the first keys of every document, with or without a model run."""
    return {"schema": f"modelscope/{command}/1", "tool": dict(versions), "argv": list(argv)}


@dataclass(frozen=True, slots=True)
class Run:
    """The header of every document.

    Attributes:
        command: `summary`, `stats`, `featuremaps`.
        argv: what was typed, or empty when called from Python.
        input: None where nothing was run.
        versions: of the tool, Python, torch and torchvision.
        seed: None for a user's script, which sets its own seeds.
        elapsed_ms: time from the start of the command to this record.
    """

    command: str
    argv: tuple[str, ...]
    model: ModelInfo
    input: InputInfo | None
    device: str
    dtype: str
    seed: int | None
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
        seed: int | None,
        warnings: Iterable[Notice] = (),
        invoked: Invocation | None = None,
    ) -> "Run":
        """Fill in command line, time and versions; `invoked` defaults to the running command."""
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
            warnings=tuple(
                one if invoked.argv else dataclasses.replace(one, message=in_python(one.message))
                for one in warnings
            ),
            elapsed_ms=invoked.elapsed_ms,
        )

    def header(self) -> dict[str, Any]:
        """The keys before those of the command, in the order of the contract."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        body = {f.name: to_plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "run"}
        return {**self.run.header(), **body}


@dataclass(frozen=True, slots=True)
class Listing(Shown):
    """The result of a command that runs no model, with a header of its own."""

    versions: Mapping[str, str]
    argv: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("versions", "argv")]
        body = {name: to_plain(getattr(self, name)) for name in names}
        return {**first_keys(self.document, self.versions, self.argv), **body}


def luck_of(right: int, n: int, share: float) -> float:
    """Return the probability that at least `right` of `n` guesses are right, by the binomial distribution.

    It is 1 below the mean, where the sum would be long and every accuracy is at chance.
    """
    if right <= share * n or not share:
        return float(right <= share * n)
    hit, miss = math.log(share), math.log1p(-share)
    most = min(n, right + 10 * math.isqrt(n) + 10)  # more is over 20 standard deviations above the mean
    return math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * hit + (n - k) * miss)
        for k in range(right, most + 1)
    )
