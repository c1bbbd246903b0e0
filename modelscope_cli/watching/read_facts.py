"""From the entries of a log to what is certain of a run, what enters its models and what its criteria are given."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modelscope_cli.records.training_facts import OptimizerFacts, ScheduleFacts, TimeFacts
from modelscope_cli.records.watch import (
    CriterionSeries,
    InputSeries,
    ModelFacts,
    ParameterFacts,
    Series,
    TrainingFacts,
    WatchedCriterion,
    WatchedInput,
)
from modelscope_cli.watching.log import Entry, number

ParameterKey = tuple[str, str]  # model, name


@dataclass(slots=True)
class Described:
    """Something that the log has numbered and described, and its rows by step."""

    key: tuple[Any, ...]
    entry: Entry
    rows: dict[int, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class FactsLog:
    """What one process has said beside its series.

    Attributes:
        idle: class and line of every optimizer that had not stepped when something was said; it may have since.
        stated: shape and facts of every parameter of every model that ran.
    """

    inputs: list[Described] = field(default_factory=list)
    criteria: list[Described] = field(default_factory=list)
    optimizers: dict[str, OptimizerFacts] = field(default_factory=dict)
    models: dict[str, ModelFacts] = field(default_factory=dict)
    idle: dict[tuple[str, str | None], None] = field(default_factory=dict)
    stated: dict[ParameterKey, tuple[tuple[int, ...], ParameterFacts]] = field(default_factory=dict)
    schedules: dict[tuple[str, str | None], ScheduleFacts] = field(default_factory=dict)
    time: TimeFacts | None = None

    def take(self, entry: Entry) -> None:
        """Take what is certain by now. The last word on each counts: a model that is gone by then is not in it."""
        self.optimizers |= {one["optimizer"]: OptimizerFacts(**one) for one in entry["optimizers"]}
        self.models |= {one["model"]: _model_facts(one) for one in entry["models"]}
        self.schedules |= {(one["schedule"], one["made"]): ScheduleFacts(**one) for one in entry["schedules"]}
        self.idle |= dict.fromkeys((kind, place) for kind, place in entry["idle"])
        self.stated |= {
            (model, name): (tuple(shape), ParameterFacts(*values))
            for model, name, shape, *values in entry["parameters"]
        }

    def describe(self, kind: str, entry: Entry) -> Described:
        """Take the description of a tensor that enters, or of a criterion."""
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


def _input(seen: Described) -> WatchedInput:
    n, mean, m2, low, high, non_finite, batch, alike = columns_of(seen.rows, 8)
    std = tuple(math.sqrt(float(s) / k) if k else None for s, k in zip(m2, n, strict=True))
    series = InputSeries(
        tuple(seen.rows), _numbers(mean), std, _numbers(low), _numbers(high), non_finite, batch, alike
    )
    model, name = seen.key
    return WatchedInput(
        model,
        name,
        seen.entry["type"],
        tuple(seen.entry["shape"]),
        seen.entry["dtype"],
        bool(seen.entry["computed"]),
        series,
    )


def _criterion(seen: Described) -> WatchedCriterion:
    columns = columns_of(seen.rows, 10)
    value, rows, right, labels, guess, variance, is_probability, is_positive, guessing, shared = columns
    counts = [dict(map(tuple, row)) if row is not None else {} for row in labels]
    together = sum(map(Counter, counts), Counter[int]())
    name, place, is_training = seen.key
    shapes = seen.entry["shapes"]
    return WatchedCriterion(
        name=name,
        place=place,
        is_training=is_training,
        classes=seen.entry["classes"],
        made_by=seen.entry["made_by"],
        shapes=(tuple(shapes[0]), tuple(shapes[1])) if shapes else None,
        is_summed=seen.entry["is_summed"],
        label_entropy=_entropy(together),
        commonest_label=_commonest(together),
        series=CriterionSeries(
            step=tuple(seen.rows),
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
    """Return the entropy of the labels in nats, corrected for how few they are: Miller 1955; None without any."""
    total = sum(counts.values())
    if not total:
        return None
    plain = -sum(n / total * math.log(n / total) for n in counts.values())
    return plain + (len(counts) - 1) / (2 * total)


def _model_facts(entry: Entry) -> ModelFacts:
    values = entry["norm_values"]
    lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
    lists["copies"] = tuple(map(tuple, entry.get("copies", ())))
    lists["outputs"] = tuple(float(one) for one in entry["outputs"])  # NaN is written as a word
    return ModelFacts(**{**entry, **lists, "norm_values": tuple(values) if values else None})


def columns_of(rows: dict[int, list[Any]], n: int) -> list[tuple[Any, ...]]:
    """Return the `n` columns of rows by step."""
    return list(zip(*rows.values(), strict=True)) or [()] * n


def _numbers(values: Iterable[Any]) -> Series:
    return tuple(map(number, values))
