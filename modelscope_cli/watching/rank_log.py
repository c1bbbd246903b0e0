"""The log of one process in memory."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from modelscope_cli.analysis.statistics.moments import Moments
from modelscope_cli.records import watch
from modelscope_cli.records.training_facts import Birth, OptimizerFacts, ScheduleFacts, TimeFacts
from modelscope_cli.records.trials import Fix, TrialRow, Trials
from modelscope_cli.watching.log import Entry, number
from modelscope_cli.watching.step_sums import N_BINS, Sums, unpack

ParameterKey = tuple[str, str]  # model, name
_ENOUGH_LABELS = 20  # for each class


@dataclass(slots=True)
class Described:
    """An input or criterion described in the log, and its rows by step."""

    key: tuple[Any, ...]
    entry: Entry
    rows: dict[int, list[Any]] = field(default_factory=dict)
    optimizers: set[str] = field(default_factory=set)


@dataclass(slots=True)
class FactsLog:
    """The facts in the log of one process."""

    inputs: list[Described] = field(default_factory=list)
    criteria: list[Described] = field(default_factory=list)
    optimizers: dict[str, OptimizerFacts] = field(default_factory=dict)
    models: dict[str, watch.ModelFacts] = field(default_factory=dict)
    # Class and line of every optimizer that had not stepped when facts were written; it may have since
    idle: dict[tuple[str, str | None], None] = field(default_factory=dict)
    # Shape and facts of every parameter of every model that ran
    stated: dict[ParameterKey, tuple[tuple[int, ...], watch.ParameterFacts]] = field(default_factory=dict)
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
            for facts in (watch.ParameterFacts(*values),)
        }

    def describe(self, kind: str, entry: Entry) -> Described:
        """Add the description of an input or a criterion."""
        described = Described(tuple(entry["key"]), entry)
        (self.inputs if kind == "entering" else self.criteria).append(described)
        return described

    def to_facts(self, backwards: int) -> watch.TrainingFacts:
        stepped = {(one.optimizer.partition("#")[0], one.made) for one in self.optimizers.values()}
        return watch.TrainingFacts(
            inputs=tuple(_input(one) for one in self.inputs),
            criteria=tuple(_criterion(one) for one in self.criteria),
            optimizers=tuple(self.optimizers.values()),
            models=tuple(self.models.values()),
            idle=tuple(key for key in self.idle if key not in stepped),
            backwards=backwards,
            schedules=tuple(self.schedules.values()),
            time=self.time,
        )


def _input(described: Described) -> watch.WatchedInput:
    n, mean, m2, low, high, non_finite, batch, alike = columns_of(described.rows, 8)
    std = tuple(math.sqrt(float(s) / k) if k else None for s, k in zip(m2, n, strict=True))
    (model, name), entry = described.key, described.entry
    shape, is_computed = tuple(entry["shape"]), bool(entry["computed"])
    samples = tuple(k // max(math.prod(shape[1:]), 1) for k in n)
    numbers = _numbers(mean), std, _numbers(low), _numbers(high)
    series = watch.InputSeries(tuple(described.rows), *numbers, non_finite, batch, alike, samples)
    return watch.WatchedInput(model, name, entry["type"], shape, entry["dtype"], is_computed, series)


def _criterion(described: Described) -> watch.WatchedCriterion:
    columns = columns_of(described.rows, 10)
    value, rows, right, labels, guess, variance, is_probability, is_positive, guessing, shared = columns
    counts = [dict(map(tuple, row)) if row is not None else {} for row in labels]
    all_labels = sum(map(Counter, counts), Counter[int]())
    name, place, is_training = described.key
    shapes, n_classes = described.entry["shapes"], described.entry["classes"] or 0
    # Of equally likely classes one is missing by chance once in 400 million
    is_enough = len(all_labels) > 1 and n_classes > 2 and all_labels.total() >= _ENOUGH_LABELS * n_classes
    return watch.WatchedCriterion(
        name=name,
        place=place,
        is_training=is_training,
        classes=described.entry["classes"],
        made_by=described.entry["made_by"],
        shapes=(tuple(shapes[0]), tuple(shapes[1])) if shapes else None,
        is_summed=described.entry["is_summed"],
        is_weighted=described.entry.get("is_weighted", False),
        label_entropy=_entropy(all_labels, described.entry.get("smoothing", 0.0), n_classes),
        commonest_label=_commonest(all_labels),
        absent=tuple(one for one in range(n_classes) if one not in all_labels) if is_enough else (),
        label=next(iter(all_labels)) if len(all_labels) == 1 and all(counts) else None,
        optimizers=tuple(sorted(described.optimizers)),
        series=watch.CriterionSeries(
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


def _entropy(counts: Mapping[int, int], smoothing: float, n_classes: int) -> float | None:
    """Return the entropy of the labels in nats with the correction of Miller (1955); None without labels."""
    total = sum(counts.values())
    if not total:
        return None
    shares = [
        (1 - smoothing) * counts.get(one, 0) / total + smoothing / n_classes for one in range(n_classes)
    ]
    correction = (len(counts) - 1) / (2 * total)
    entropy = -sum(share * math.log(share) for share in shares if share)
    return min(entropy + correction, math.log(max(n_classes, 2)))


def _model_facts(entry: Entry) -> watch.ModelFacts:
    values = entry["norm_values"]
    lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
    lists["copies"] = tuple(map(tuple, entry.get("copies", ())))
    lists["outputs"] = tuple(float(one) for one in entry["outputs"])  # NaN is written as a string
    return watch.ModelFacts(**{**entry, **lists, "norm_values": tuple(values) if values else None})


def columns_of(rows: dict[int, list[Any]], n: int) -> list[tuple[Any, ...]]:
    """Return the `n` columns of rows by step."""
    return list(zip(*rows.values(), strict=True)) or [()] * n


def _numbers(values: Iterable[Any]) -> watch.Series:
    return tuple(map(number, values))


LayerKey = tuple[str, str, int]  # model, name, call
StepKey = tuple[str, int]  # optimizer, step


@dataclass(frozen=True, slots=True)
class Scalars:
    """Loss and learning rates of a step."""

    loss: float | None
    lr: list[float | None]
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
    passes: dict[StepKey, tuple[int, int, bool]] = field(default_factory=dict)
    steps: dict[StepKey, Scalars] = field(default_factory=dict)
    events: list[watch.Event] = field(default_factory=list)
    facts: FactsLog = field(default_factory=FactsLog)
    births: list[Birth] = field(default_factory=list)
    trials: Trials = field(default_factory=Trials)
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
            self.events.append(watch.Event(entry["step"], entry["kind"], entry["message"]))
        elif kind == "birth":
            self.births.append(Birth(**entry))
        elif kind == "trials":
            self.trials = _trials(entry)
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
            number(entry["loss"]), list(map(number, entry["lr"])), entry["recorded"]
        )
        for id_, values in entry.get("layers", {}).items():
            self.layers.setdefault(self._by_id[int(id_)], {})[step] = _sums(values)
        for id_, values in entry.get("parameters", {}).items():
            self.parameters.setdefault(self._by_id[int(id_)], {})[step] = list(map(number, values))
        self._take_rows(entry.get("entering", {}) | entry.get("criteria", {}), step)
        for id_ in entry.get("criteria", {}):
            self._by_id[int(id_)].optimizers.add(entry["optimizer"])
        if "passes" in entry:  # there are other ranks
            self.passes[entry["optimizer"], step] = tuple(entry["passes"])
            for id_, (checksum, signed, norm) in entry["weights"].items():
                figures = checksum, float(signed), float(norm)
                self.weights.setdefault(self._by_id[int(id_)], {})[step] = figures

    def _take_rows(self, rows: Entry, step: int) -> None:
        for id_, values in rows.items():
            self._by_id[int(id_)].rows[step] = values


def _trials(entry: Entry) -> Trials:
    fix = entry["fix"]
    return Trials(
        rows=tuple(TrialRow(**one) for one in entry["rows"]),
        fix=Fix(**{**fix, "codes": tuple(fix["codes"])}) if fix else None,
        outcome=entry["outcome"],
        refuted=tuple(entry["refuted"]),
        in_vain=entry.get("in_vain", {}),
        examined=entry["examined"],
        place=entry["place"],
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
        raise ValueError("a histogram of a different size")
    counts = [0] * first + used
    counts += [0] * (N_BINS + 2 - len(counts))
    return Sums(moments, tuple(counts), number(squares), (saturated[0], saturated[1]) if saturated else None)
