"""From the logs of all ranks to the series of a record."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelscope_cli.analysis.statistics.moments import Moments
from modelscope_cli.errors import UsageError
from modelscope_cli.records.watch import (
    Event,
    LayerSeries,
    Magnitudes,
    ParameterSeries,
    ScalarSeries,
    WatchedLayer,
    WatchedParameter,
)
from modelscope_cli.watching.disagreement import find_disagreements
from modelscope_cli.watching.log import log_file, number, read_log
from modelscope_cli.watching.magnitudes import EDGES, N_BINS
from modelscope_cli.watching.step_sums import Sums

LayerKey = tuple[str, str, int]  # model, name, call
ParameterKey = tuple[str, str]
StepKey = tuple[str, int]  # optimizer, step


@dataclass(slots=True)
class RankLog:
    """One log, read."""

    begin: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    device: str = "cpu"
    dtype: str = "float32"
    types: dict[LayerKey, str] = field(default_factory=dict)
    trained: dict[ParameterKey, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    layers: dict[LayerKey, dict[int, Sums]] = field(default_factory=dict)
    parameters: dict[ParameterKey, dict[int, list[float | None]]] = field(default_factory=dict)
    steps: dict[StepKey, dict[str, Any]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def exit_code(self) -> int | None:
        """The script's own; None where it was killed."""
        return None if self.end is None else int(self.end["code"])

    @property
    def n_steps(self) -> int:
        """Steps taken; of a run that was killed, as far as the log tells."""
        if self.end is not None:
            return int(self.end["steps"])
        return max((step + 1 for _, step in self.steps), default=0)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything the logs of one run hold."""

    ranks: list[RankLog]
    layers: tuple[WatchedLayer, ...]
    parameters: tuple[WatchedParameter, ...]
    loss: tuple[ScalarSeries, ...]
    lr: tuple[ScalarSeries, ...]
    step_ms: tuple[ScalarSeries, ...]
    events: tuple[Event, ...]

    @property
    def recorded(self) -> int:
        """Steps that were looked at, by the optimizer that had most of them."""
        counts = Counter(key[0] for key, fields in self.ranks[0].steps.items() if fields["recorded"])
        return max(counts.values(), default=0)


def gather(folder: Path, world: int | None = None) -> Gathered:
    """Read the logs in a folder and merge the ranks by their sums.

    Args:
        world: how many ranks there were; None to take what the first log says.

    Raises:
        UsageError: there is no log in the folder (exit 2).
    """
    if not log_file(folder).is_file():
        raise UsageError(f"there is no log.jsonl in '{folder}'", "modelscope watch train.py   writes one")
    first = _read(log_file(folder))
    world = world or int(first.begin.get("world", 1))
    files = [log_file(folder, rank) for rank in range(1, world)]
    ranks = [first, *(_read(file) for file in files if file.is_file())]
    names = list(first.types) + [key for rank in ranks[1:] for key in rank.types if key not in first.types]
    events = [event for rank in ranks for event in rank.events]
    return Gathered(
        ranks=ranks,
        layers=tuple(_layer(key, order, ranks) for order, key in enumerate(names)),
        parameters=tuple(_parameter(key, first) for key in first.trained),
        loss=_scalars(ranks, lambda fields: [fields["loss"]]),
        lr=_scalars(ranks[:1], lambda fields: fields["lr"]),
        step_ms=_scalars(ranks[:1], lambda fields: [fields["ms"]]),
        events=(*events, *find_disagreements(ranks)),
    )


def _read(path: Path) -> RankLog:
    log = RankLog()
    by_id: dict[int, Any] = {}
    for kind, fields in read_log(path):
        if kind == "begin":
            log.begin = fields
        elif kind == "end":
            log.end = fields
        elif kind == "event":
            log.events.append(Event(fields["step"], fields["kind"], fields["message"]))
        elif kind == "layer":
            key = by_id[fields["id"]] = tuple(fields["key"])
            log.types[key] = fields["type"]
        elif kind == "parameter":
            key = by_id[fields["id"]] = tuple(fields["key"])
            log.trained[key] = fields["optimizer"], tuple(fields["shape"])
            log.device, log.dtype = fields["device"], fields["dtype"]
        elif kind == "step":
            step = fields["step"]
            log.steps[fields["optimizer"], step] = fields
            for number_, values in fields["layers"].items():
                log.layers.setdefault(by_id[int(number_)], {})[step] = _sums(values)
            for number_, values in fields["parameters"].items():
                log.parameters.setdefault(by_id[int(number_)], {})[step] = list(map(number, values))
    return log


def _sums(values: list[Any]) -> Sums:
    n, mean, m2, n_zero, n_near, n_nan, n_inf, squares, first, used = values
    moments = Moments(
        n=n,
        mean=float(mean),
        m2=float(m2),
        low=math.nan,
        high=math.nan,
        n_nan=n_nan,
        n_inf=n_inf,
        n_zero=n_zero,
        n_near_zero=n_near,
    )
    counts = [0] * first + used
    return Sums(moments, tuple(counts + [0] * (N_BINS + 2 - len(counts))), number(squares))


def merge(parts: list[Sums]) -> Sums:
    """Return the sums of all ranks together. Each rank's loss is a mean over its own share of the batch, so the
    gradient of the common mean is that many times smaller."""
    moments = parts[0].moments
    for part in parts[1:]:
        moments = moments.merge(part.moments)
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    squares = [part.grad_squares for part in parts if part.grad_squares is not None]
    return Sums(moments, counts, sum(squares) / len(parts) ** 2 if squares else None)


def _layer(key: LayerKey, order: int, ranks: list[RankLog]) -> WatchedLayer:
    held = [rank for rank in ranks if key in rank.layers]
    steps = sorted({step for rank in held for step in rank.layers[key]})
    merged = [merge([rank.layers[key][step] for rank in held if step in rank.layers[key]]) for step in steps]
    moments = [sums.moments for sums in merged]
    model, name, call = key
    return WatchedLayer(
        model=model,
        name=name,
        type=next(rank.types[key] for rank in ranks if key in rank.types),
        order=order,
        call=call,
        series=LayerSeries(
            step=tuple(steps),
            mean=tuple(m.mean if m.n else None for m in moments),
            std=tuple(m.std if m.n else None for m in moments),
            zero_fraction=tuple((m.n_zero or 0) / m.n if m.n else None for m in moments),
            near_zero_fraction=tuple((m.n_near_zero or 0) / m.n if m.n else None for m in moments),
            nan_count=tuple(m.n_nan for m in moments),
            inf_count=tuple(m.n_inf for m in moments),
            grad_norm=tuple(
                None if sums.grad_squares is None else math.sqrt(sums.grad_squares) for sums in merged
            ),
            histogram=Magnitudes(EDGES, tuple(sums.counts for sums in merged)),
        ),
    )


def _parameter(key: ParameterKey, log: RankLog) -> WatchedParameter:
    rows = log.parameters.get(key, {})
    columns = list(zip(*rows.values(), strict=True)) or [(), (), ()]
    series = ParameterSeries(tuple(rows), *columns)
    optimizer, shape = log.trained[key]
    return WatchedParameter(model=key[0], name=key[1], optimizer=optimizer, shape=shape, series=series)


def _scalars(ranks: list[RankLog], read: Any) -> tuple[ScalarSeries, ...]:
    """Return one series for every optimizer and group, the mean over the ranks."""
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for rank in ranks:
        for (optimizer, step), fields in rank.steps.items():
            for group, value in enumerate(map(number, read(fields))):
                if value is not None:
                    found.setdefault((optimizer, group), {}).setdefault(step, []).append(value)
    return tuple(
        ScalarSeries(optimizer, tuple(sorted(values)), _means(values), group)
        for (optimizer, group), values in found.items()
    )


def _means(values: dict[int, list[float]]) -> tuple[float, ...]:
    return tuple(_mean(values[step]) for step in sorted(values))


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every)
