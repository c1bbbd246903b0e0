"""What every command returns: frozen, plain numbers and strings, no tensors and no modules.

The keys of `to_dict` are the JSON contract. Inside one schema version keys are added, never renamed.
Units stand in the names: `_bytes`, `_ms`, `_fraction` (0..1). Counts are integers.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from modelscope_cli import __version__

Shape = tuple[int, ...]

# Python keywords cannot be field names; these keys differ from their field.
_KEYS = {"class_name": "class"}


def to_plain(value: Any) -> Any:
    """Turn records, tuples and paths into dicts, lists and strings, as JSON wants them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr)
        return {_KEYS.get(name, name): to_plain(item) for name, item in pairs}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def versions() -> dict[str, str]:
    """Return the versions that decide the numbers."""
    import platform
    from importlib.metadata import version

    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "torchvision": version("torchvision"),
    }


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
        resolved: `random`, an enum name such as `IMAGENET1K_V1`, or a file name.
        origin: in words: `seeded random`, `cache`, `download`, `checkpoint`, `meta` (no values at all).
        sha256: of the file that was read; None where there was none.
    """

    requested: str
    resolved: str
    origin: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model was looked at. `source` is `zoo` (torchvision), `import` (the user's code) or `object`
    (handed over in Python)."""

    source: str
    name: str
    class_name: str
    weights: WeightsInfo


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What the model was run on.

    Attributes:
        source: `image`, `tensor`, `noise`.
        shape: shape of one batch as the model received it, one entry per input.
        files: the files read, in order.
        preprocessing: in words and numbers; None for tensors and noise.
    """

    source: str
    shape: tuple[Shape, ...]
    files: tuple[str, ...] = ()
    preprocessing: str | None = None


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
    versions: dict[str, str]
    warnings: tuple[Notice, ...] = ()
    elapsed_ms: float = 0.0

    def header(self) -> dict[str, Any]:
        """The keys that stand before a command's own, in the order of the contract."""
        return {
            "schema": f"modelscope/{self.command}/1",
            "tool": dict(self.versions),
            "argv": list(self.argv),
            "model": to_plain(self.model),
            "input": to_plain(self.input),
            "device": self.device,
            "dtype": self.dtype,
            "seed": self.seed,
            "warnings": to_plain(self.warnings),
            "elapsed_ms": round(self.elapsed_ms, 1),
        }


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one command. `to_dict` gives the JSON document."""

    run: Run

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings under the keys of the JSON contract."""
        own = {f.name: to_plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "run"}
        return {**self.run.header(), **own}

    # How it looks is the business of the reports, which know the records; hence the late imports.

    def __str__(self) -> str:
        from modelscope_cli.report import notebook

        return notebook.to_text(notebook.sheet_of(self))

    def _repr_html_(self) -> str:
        from modelscope_cli.report import notebook

        return notebook.to_html(notebook.sheet_of(self))


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One row of `summary`: one call of one layer, or a layer that was not called.

    Attributes:
        depth: 0 for the model, 1 for its children.
        order: 1-based position among all calls; None where the layer was not called.
        call: 0 for the first call, 1 for the second; `calls` counts them.
        executed: whether the layer was called at all.
        input_shapes, output_shapes: of every tensor that went in and came out.
        kernel_size: of convolutions and pools.
        params, trainable_params: in the layer and everything below it; counted once where shared.
        macs, flops: of this call with everything inside it, for one batch; flops are 2 x macs.
        output_bytes: memory of the output tensors.
        note: why the layer was not called, where that is known.
    """

    name: str
    type: str
    depth: int
    order: int | None
    call: int
    calls: int
    executed: bool
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    kernel_size: Shape | None
    params: int
    trainable_params: int
    macs: int
    flops: int
    output_bytes: int
    is_leaf: bool
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SummaryTotals:
    """Sums over the whole model for one batch. `activation_bytes`: the outputs of all innermost calls, which is
    what training keeps at least; a forward alone frees most of it."""

    params: int
    trainable_params: int
    param_bytes: int
    buffer_bytes: int
    macs: int
    flops: int
    activation_bytes: int
    layers: int
    calls: int


@dataclass(frozen=True, slots=True)
class SummaryRecord(Record):
    """What `summary` returns.

    Attributes:
        layers: in the order of the module tree, calls of one layer one after the other.
        uncounted_ops: operators that ran and for which no FLOP formula exists, with how often.
        failed: the label of the layer whose forward raised; then the rows up to it are there. Else None.
    """

    layers: tuple[LayerShape, ...]
    totals: SummaryTotals
    uncounted_ops: tuple[str, ...] = ()
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram: `counts[i]` values lie in `[edges[i], edges[i + 1])`; `sampled`: of an even sample."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How alike the channels of a layer are, over positions and images.

    Attributes:
        mean_abs: mean absolute correlation over the pairs of different channels, 0..1.
        channels: channels that varied; a constant one has no correlation and is left out.
        file: the picture of the matrix, None where none was written.
    """

    mean_abs: float | None
    channels: int
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ActivationStats:
    """One row of `stats`: one output tensor of one call, over all images.

    Every figure is of the finite values; the others are counted.

    Attributes:
        output: which tensor of the output, empty where there is only one.
        shape: of the first batch. `numel` counts all elements seen.
        std: divided by n. `mad`: mean absolute deviation from the mean.
        zero_fraction, near_zero_fraction: share of exact zeros, and of |x| below the stated threshold.
        channels, dead_channels: None where the output has no channels; dead is zero over all images.
        problem: why there are no figures; then they are None.
    """

    name: str
    type: str
    order: int
    call: int
    output: str
    shape: Shape
    dtype: str
    numel: int
    mean: float | None = None
    std: float | None = None
    mad: float | None = None
    min: float | None = None
    max: float | None = None
    rms: float | None = None
    zero_fraction: float | None = None
    near_zero_fraction: float | None = None
    nan_count: int = 0
    inf_count: int = 0
    channels: int | None = None
    dead_channels: int | None = None
    histogram: Counts | None = None
    correlation: Redundancy | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StatsRecord(Record):
    """What `stats` returns; `layers` in execution order, `near_zero` the threshold, in the unit of the values."""

    layers: tuple[ActivationStats, ...]
    images: int
    near_zero: float
    not_called: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """One grid `featuremaps` wrote.

    Attributes:
        shape: of the layer's output for one image, channels first.
        channels: how many there are; `shown`: which of them, in the order of the cells.
        file: name inside `out_dir`; None where the output cannot be shown, and `problem` says why.
        scale: `channel` or `layer`: over what the colours span.
        min, max: range of the finite values.
    """

    name: str
    type: str
    order: int
    call: int
    output: str
    shape: Shape
    channels: int = 0
    shown: tuple[int, ...] = ()
    file: str | None = None
    scale: str = "channel"
    min: float | None = None
    max: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class FeatureMapsRecord(Record):
    """What `featuremaps` returns; `contact_sheet` and `tensors` are file names inside `out_dir`."""

    maps: tuple[FeatureMap, ...]
    contact_sheet: str | None
    out_dir: str
    tensors: str | None = None
    not_called: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One of torchvision's models, as published for its default weights.

    Attributes:
        macs: multiply-adds of one forward at `input_shapes`; torchvision publishes them in units of 1e9.
        input_shapes: one per input; empty where any size will do.
        weights: every name `--weights` takes for this model.
    """

    name: str
    family: str
    params: int
    macs: int
    input_shapes: tuple[Shape, ...]
    weights: tuple[str, ...]
    default_weights: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What `models` returns: no model was loaded, so it has a header of its own."""

    versions: dict[str, str]
    argv: tuple[str, ...]
    models: tuple[ModelEntry, ...]

    def to_dict(self) -> dict[str, Any]:
        header = {"schema": "modelscope/models/1", "tool": dict(self.versions), "argv": list(self.argv)}
        return {**header, "models": to_plain(self.models)}
