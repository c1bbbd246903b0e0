"""Read the logs of all ranks into the series of a record."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelscope_cli.analysis.statistics.moments import Moments
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.training_facts import Birth, OptimizerFacts, ScheduleFacts, TimeFacts
from modelscope_cli.records.watch import (
    CriterionSeries,
    Event,
    InputSeries,
    LayerSeries,
    Magnitudes,
    ModelFacts,
    ParameterFacts,
    ParameterSeries,
    ScalarSeries,
    Series,
    TrainingFacts,
    WatchedCriterion,
    WatchedInput,
    WatchedLayer,
    WatchedParameter,
)
from modelscope_cli.watching.disagreement import compare_weights, find_other_ends, find_same_data
from modelscope_cli.watching.log import VERSION, Entry, log_file, number, read_log
from modelscope_cli.watching.step_sums import (
    EDGES,
    MOST_NAMED,
    N_BINS,
    Sums,
    alive_within,
    dead_fraction,
    dead_in,
    unpack,
)

ParameterKey = tuple[str, str]  # model, name


@dataclass(slots=True)
class Described:
    """An input or criterion described in the log, and its rows by step."""

    key: tuple[Any, ...]
    entry: Entry
    rows: dict[int, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class FactsLog:
    """The facts in the log of one process."""

    inputs: list[Described] = field(default_factory=list)
    criteria: list[Described] = field(default_factory=list)
    optimizers: dict[str, OptimizerFacts] = field(default_factory=dict)
    models: dict[str, ModelFacts] = field(default_factory=dict)
    # Class and line of every optimizer that had not stepped when facts were written; it may have since
    idle: dict[tuple[str, str | None], None] = field(default_factory=dict)
    # Shape and facts of every parameter of every model that ran
    stated: dict[ParameterKey, tuple[tuple[int, ...], ParameterFacts]] = field(default_factory=dict)
    schedules: dict[tuple[str, str | None], ScheduleFacts] = field(default_factory=dict)
    time: TimeFacts | None = None

    def take(self, kind: str, entry: Entry) -> None:
        """Update the facts; those about deleted models, which later entries lack, remain."""
        if kind == "time":
            self.time = TimeFacts(**entry)
        if kind != "facts":
            return
        self.optimizers |= {one["optimizer"]: OptimizerFacts(**one) for one in entry["optimizers"]}
        self.models |= {one["model"]: _model_facts(one) for one in entry["models"]}
        self.schedules |= {(one["schedule"], one["made"]): ScheduleFacts(**one) for one in entry["schedules"]}
        self.idle |= dict.fromkeys((kind, place) for kind, place in entry["idle"])
        self.stated |= {
            (model, name): (tuple(shape), replace(facts, start_rms=float(facts.start_rms)))  # may be NaN
            for model, name, shape, *values in entry["parameters"]
            for facts in (ParameterFacts(*values),)
        }

    def describe(self, kind: str, entry: Entry) -> Described:
        """Add the description of an input or a criterion."""
        described = Described(tuple(entry["key"]), entry)
        (self.inputs if kind == "entering" else self.criteria).append(described)
        return described

    def to_facts(self, backwards: int) -> TrainingFacts:
        stepped = {(one.optimizer.partition("#")[0], one.made) for one in self.optimizers.values()}
        return TrainingFacts(
            inputs=tuple(_input(one) for one in self.inputs),
            criteria=tuple(_criterion(one) for one in self.criteria),
            optimizers=tuple(self.optimizers.values()),
            models=tuple(self.models.values()),
            idle=tuple(key for key in self.idle if key not in stepped),
            backwards=backwards,
            schedules=tuple(self.schedules.values()),
            time=self.time,
        )


def _input(described: Described) -> WatchedInput:
    n, mean, m2, low, high, non_finite, batch, alike = columns_of(described.rows, 8)
    std = tuple(math.sqrt(float(s) / k) if k else None for s, k in zip(m2, n, strict=True))
    series = InputSeries(
        tuple(described.rows), _numbers(mean), std, _numbers(low), _numbers(high), non_finite, batch, alike
    )
    (model, name), entry = described.key, described.entry
    shape, is_computed = tuple(entry["shape"]), bool(entry["computed"])
    return WatchedInput(model, name, entry["type"], shape, entry["dtype"], is_computed, series)


def _criterion(described: Described) -> WatchedCriterion:
    columns = columns_of(described.rows, 10)
    value, rows, right, labels, guess, variance, is_probability, is_positive, guessing, shared = columns
    counts = [dict(map(tuple, row)) if row is not None else {} for row in labels]
    all_labels = sum(map(Counter, counts), Counter[int]())
    name, place, is_training = described.key
    shapes = described.entry["shapes"]
    return WatchedCriterion(
        name=name,
        place=place,
        is_training=is_training,
        classes=described.entry["classes"],
        made_by=described.entry["made_by"],
        shapes=(tuple(shapes[0]), tuple(shapes[1])) if shapes else None,
        is_summed=described.entry["is_summed"],
        is_weighted=described.entry.get("is_weighted", False),
        label_entropy=_entropy(all_labels),
        commonest_label=_commonest(all_labels),
        series=CriterionSeries(
            step=tuple(described.rows),
            value=_numbers(value),
            rows=rows,
            accuracy=_numbers(right),
            commonest_label=tuple(map(_commonest, counts)),
            commonest_prediction=_numbers(guess),
            target_variance=_numbers(variance),
            is_probability=is_probability,
            is_positive=is_positive,
            guessing=_numbers(guessing),
            shared=_numbers(shared),
        ),
    )


def _commonest(counts: Mapping[int, int]) -> float | None:
    """Return the share of the commonest label; None without any."""
    return max(counts.values()) / sum(counts.values()) if counts else None


def _entropy(counts: Mapping[int, int]) -> float | None:
    """Return the entropy of the labels in nats with the correction of Miller (1955); None without labels."""
    total = sum(counts.values())
    if not total:
        return None
    plain = -sum(n / total * math.log(n / total) for n in counts.values())
    return plain + (len(counts) - 1) / (2 * total)


def _model_facts(entry: Entry) -> ModelFacts:
    values = entry["norm_values"]
    lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
    lists["copies"] = tuple(map(tuple, entry.get("copies", ())))
    lists["outputs"] = tuple(float(one) for one in entry["outputs"])  # NaN is written as a string
    return ModelFacts(**{**entry, **lists, "norm_values": tuple(values) if values else None})


def columns_of(rows: dict[int, list[Any]], n: int) -> list[tuple[Any, ...]]:
    """Return the `n` columns of rows by step."""
    return list(zip(*rows.values(), strict=True)) or [()] * n


def _numbers(values: Iterable[Any]) -> Series:
    return tuple(map(number, values))


LayerKey = tuple[str, str, int]  # model, name, call
StepKey = tuple[str, int]  # optimizer, step


@dataclass(frozen=True, slots=True)
class Scalars:
    """Loss, learning rates and time of a step."""

    loss: float | None
    lr: list[float | None]
    ms: float | None
    is_recorded: bool


@dataclass(slots=True)
class RankLog:
    """The log of one process in memory, built entry by entry, from a file or during the run."""

    begin: Entry = field(default_factory=dict)
    end: Entry | None = None
    device: str = "cpu"
    dtype: str = "float32"
    types: dict[LayerKey, str] = field(default_factory=dict)
    trained: dict[ParameterKey, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    sharded: set[ParameterKey] = field(default_factory=set)
    origins: dict[ParameterKey, Entry] = field(default_factory=dict)
    layers: dict[LayerKey, dict[int, Sums]] = field(default_factory=dict)
    parameters: dict[ParameterKey, dict[int, list[float | None]]] = field(default_factory=dict)
    weights: dict[ParameterKey, dict[int, tuple[int, float, float]]] = field(default_factory=dict)
    states: dict[StepKey, tuple[int, int]] = field(default_factory=dict)
    passes: dict[StepKey, tuple[int, int, bool]] = field(default_factory=dict)
    steps: dict[StepKey, Scalars] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    facts: FactsLog = field(default_factory=FactsLog)
    births: list[Birth] = field(default_factory=list)
    _by_id: dict[int, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the script; None if it was killed or still runs."""
        return None if self.end is None else self.end["code"]

    @property
    def n_steps(self) -> int:
        """Number of steps; of a killed run, those in the log."""
        if self.end is not None:
            return int(self.end["steps"])
        return max((step + 1 for _, step in self.steps), default=0)

    def take(self, kind: str, entry: Entry) -> None:
        """Add an entry; unknown kinds are ignored."""
        if kind == "begin":
            argv, world = entry.get("argv", ()), entry.get("world", 1)
            self.begin = {**entry, "argv": tuple(map(str, argv)), "world": int(world)}
        elif kind == "end":
            code, elapsed = entry["code"], float(entry.get("elapsed_ms", 0.0))
            code = None if code is None else int(code)
            self.end = {**entry, "code": code, "steps": int(entry["steps"]), "elapsed_ms": elapsed}
        elif kind == "event":
            self.events.append(Event(entry["step"], entry["kind"], entry["message"]))
        elif kind == "birth":
            self.births.append(Birth(**entry))
        elif kind == "layer":
            model, name, call = entry["key"]
            layer = self._by_id[entry["id"]] = model, name, int(call)
            self.types[layer] = entry["type"]
        elif kind == "parameter":
            model, name = entry["key"]
            parameter = self._by_id[entry["id"]] = model, name
            self.trained[parameter] = entry["optimizer"], tuple(entry["shape"])
            if entry.get("sharded"):
                self.sharded.add(parameter)
            self.origins[parameter] = entry.get("origin", {})
            self.device, self.dtype = entry["device"], entry["dtype"]
        elif kind in ("entering", "criterion"):
            self._by_id[entry["id"]] = self.facts.describe(kind, entry)
        elif kind == "evaluation":
            self._take_rows(entry["criteria"], entry["step"])
        elif kind in ("time", "facts"):
            self.facts.take(kind, entry)
        elif kind == "step":
            self._take_step(entry, entry["step"])

    def _take_step(self, entry: Entry, step: int) -> None:
        self.steps[entry["optimizer"], step] = Scalars(
            number(entry["loss"]), list(map(number, entry["lr"])), number(entry["ms"]), entry["recorded"]
        )
        for id_, values in entry.get("layers", {}).items():
            self.layers.setdefault(self._by_id[int(id_)], {})[step] = _sums(values)
        for id_, values in entry.get("parameters", {}).items():
            self.parameters.setdefault(self._by_id[int(id_)], {})[step] = list(map(number, values))
        self._take_rows(entry.get("entering", {}) | entry.get("criteria", {}), step)
        if "state" in entry:  # there are other ranks
            key = entry["optimizer"], step
            self.states[key], self.passes[key] = tuple(entry["state"]), tuple(entry["passes"])
            for id_, (checksum, signed, norm) in entry["weights"].items():
                figures = checksum, float(signed), float(norm)
                self.weights.setdefault(self._by_id[int(id_)], {})[step] = figures

    def _take_rows(self, rows: Entry, step: int) -> None:
        for id_, values in rows.items():
            self._by_id[int(id_)].rows[step] = values


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Everything the logs of one run hold."""

    ranks: Sequence[RankLog]
    layers: tuple[WatchedLayer, ...]
    parameters: tuple[WatchedParameter, ...]
    loss: tuple[ScalarSeries, ...]
    lr: tuple[ScalarSeries, ...]
    step_ms: tuple[ScalarSeries, ...]
    events: tuple[Event, ...]
    births: tuple[Birth, ...]
    facts: TrainingFacts

    @property
    def steps(self) -> int:
        """Number of steps of the optimizer with the most."""
        return max(rank.n_steps for rank in self.ranks)

    @property
    def recorded(self) -> int:
        """Number of recorded steps of the optimizer with the most."""
        counts = Counter(key[0] for key, noted in self.ranks[0].steps.items() if noted.is_recorded)
        return max(counts.values(), default=0)


def read_series(folder: Path, world: int | None = None) -> RunSeries:
    """Read the logs in a folder and merge the ranks by their sums.

    Args:
        world: number of ranks; None for the number in the first log.
    """
    if not log_file(folder).is_file():
        raise UsageError(f"there is no log.jsonl in '{folder}'", "modelscope watch SCRIPT   writes one")
    first = read_rank(log_file(folder))
    world = world or first.begin.get("world", 1)
    files = [log_file(folder, rank) for rank in range(1, world)]
    return merge_ranks([first, *(read_rank(file) for file in files if file.is_file())])


def read_rank(path: Path) -> RankLog:
    """Read the log of one process; see `read_series`."""
    log = RankLog()
    for entry_number, (kind, entry) in enumerate(read_log(path), 1):
        if kind == "begin":
            _check_version(entry, path)
        try:
            log.take(kind, entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"entry {entry_number} of '{path}', '{kind}', was not written by watch"
            raise CannotRunError(
                message, "modelscope watch --out FOLDER SCRIPT   writes a new one"
            ) from error
    return log


def _check_version(begin: Entry, path: Path) -> None:
    version = begin.get("version", 1)
    if version != VERSION:
        message = f"'{path}' is a log of version {version}, and this modelscope reads version {VERSION}"
        is_older = type(version) is int and version < VERSION
        hint = "modelscope watch --out FOLDER SCRIPT   writes a new one"
        raise CannotRunError(message, hint if is_older else "pip install --upgrade modelscope-cli")


def merge_ranks(ranks: Sequence[RankLog]) -> RunSeries:
    first = ranks[0]
    names = list(first.types) + [key for rank in ranks[1:] for key in rank.types if key not in first.types]
    events = [event for rank in ranks for event in rank.events]
    return RunSeries(
        ranks=ranks,
        layers=tuple(_layer(key, order, ranks) for order, key in enumerate(names)),
        parameters=tuple(_parameter(key, first) for key in (first.trained | first.facts.stated)),
        loss=_scalars(ranks, lambda noted: [noted.loss]),
        lr=_scalars(ranks[:1], lambda noted: noted.lr),
        step_ms=_scalars(ranks[:1], lambda noted: [noted.ms]),
        events=(*events, *find_other_ends(ranks), *find_same_data(ranks)),
        births=tuple(
            sorted((birth for rank in ranks for birth in rank.births), key=lambda birth: birth.step)
        ),
        facts=replace(
            first.facts.to_facts(int((first.end or {}).get("backward", 0))),
            ranks=compare_weights(ranks),
        ),
    )


def _sums(values: list[Any]) -> Sums:
    n, mean, m2, n_zero, n_near, n_nan, n_inf, squares, first, used, *more = values
    alive, saturated = more or (None, None)
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
        alive=unpack(alive),
    )
    if not 0 <= first <= first + len(used) <= N_BINS + 2:
        raise ValueError("a histogram of another size")
    counts = [0] * first + used
    counts += [0] * (N_BINS + 2 - len(counts))
    return Sums(moments, tuple(counts), number(squares), (saturated[0], saturated[1]) if saturated else None)


def merge(parts: list[Sums]) -> Sums:
    """Return the sums over all ranks. The loss of a rank is a mean over its share of the batch, so gradients of the
    common mean are smaller by the number of ranks."""
    moments = parts[0].moments
    for part in parts[1:]:
        moments = moments.merge(part.moments)
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    squares = [part.grad_squares for part in parts if part.grad_squares is not None]
    pairs = [part.saturated for part in parts if part.saturated is not None]
    saturated = (sum(count for count, _ in pairs), sum(total for _, total in pairs)) if pairs else None
    return Sums(moments, counts, sum(squares) / len(parts) ** 2 if squares else None, saturated)


def _layer(key: LayerKey, order: int, ranks: Sequence[RankLog]) -> WatchedLayer:
    holders = [rank for rank in ranks if key in rank.layers]
    steps = sorted({step for rank in holders for step in rank.layers[key]})
    merged = [
        merge([rank.layers[key][step] for rank in holders if step in rank.layers[key]]) for step in steps
    ]
    moments = [sums.moments for sums in merged]
    alive_lately = list(alive_within([m.alive for m in moments]))
    dead = tuple(map(dead_fraction, alive_lately))
    alive = alive_lately[-1] if alive_lately else None
    saturated = tuple(sums.saturated and sums.saturated[0] / (sums.saturated[1] or 1) for sums in merged)
    model, name, call = key
    return WatchedLayer(
        model=model,
        name=name,
        type=next(rank.types[key] for rank in ranks if key in rank.types),
        order=order,
        call=call,
        series=LayerSeries.of(
            tuple(steps),
            moments,
            _nine_digits,
            grad_norm=tuple(
                None if sums.grad_squares is None else _nine_digits(math.sqrt(sums.grad_squares))
                for sums in merged
            ),
            histogram=Magnitudes(EDGES, tuple(sums.counts for sums in merged)),
            dead_fraction=_if_any(dead),
            channels=None if alive is None else len(alive),
            dead_channels=tuple(dead_in(alive or ())[:MOST_NAMED]),
            saturated_fraction=_if_any(saturated),
        ),
    )


def _if_any(values: Series) -> Series | None:
    return values if any(value is not None for value in values) else None


def _nine_digits(value: float) -> float:
    """Round to nine digits, the precision of the log."""
    return float(f"{value:.9g}")


def _parameter(key: ParameterKey, log: RankLog) -> WatchedParameter:
    rows = log.parameters.get(key, {})
    series = ParameterSeries(tuple(rows), *columns_of(rows, 3))
    shape, facts = log.facts.stated.get(key, ((), None))
    optimizer, shape = log.trained.get(key, ("", shape))
    return WatchedParameter(key[0], key[1], optimizer, shape, series, facts)


def _scalars(
    ranks: Sequence[RankLog], read: Callable[[Scalars], list[float | None]]
) -> tuple[ScalarSeries, ...]:
    """Return one series for every optimizer and group, the mean over the ranks."""
    series: dict[tuple[str, int], dict[int, list[float]]] = {}
    for rank in ranks:
        for (optimizer, step), scalars in rank.steps.items():
            for group, value in enumerate(read(scalars)):
                if value is not None:
                    series.setdefault((optimizer, group), {}).setdefault(step, []).append(value)
    means = {
        key: {step: sum(v) / len(v) for step, v in sorted(found.items())} for key, found in series.items()
    }
    return tuple(
        ScalarSeries(optimizer, tuple(found), tuple(found.values()), group)
        for (optimizer, group), found in means.items()
    )
