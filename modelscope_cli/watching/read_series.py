"""Read the logs of all ranks into the series of a record."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records import watch
from modelscope_cli.rules.training.rule_types import Course
from modelscope_cli.watching.disagreement import compare_weights, find_other_ends, find_same_data
from modelscope_cli.watching.log import VERSION, log_file, read_log
from modelscope_cli.watching.rank_log import LayerKey, ParameterKey, RankLog, Scalars, columns_of
from modelscope_cli.watching.step_sums import EDGES, MOST_NAMED, Sums, alive_within, dead_fraction, dead_in


@dataclass(frozen=True, slots=True)
class RunSeries(Course):
    """Everything the logs of one run hold."""

    ranks: Sequence[RankLog]
    facts: watch.TrainingFacts

    @property
    def recorded(self) -> int:
        """Number of recorded steps of the optimizer with the most."""
        counts = Counter(key[0] for key, noted in self.ranks[0].steps.items() if noted.is_recorded)
        return max(counts.values(), default=0)


def read_series(folder: Path) -> RunSeries:
    """Read the logs in a folder and merge the ranks, as many as the first log says, by their sums."""
    if not log_file(folder).is_file():
        raise UsageError(f"there is no log.jsonl in '{folder}'", "modelscope watch SCRIPT   writes one")
    first = read_rank(log_file(folder))
    files = [log_file(folder, rank) for rank in range(1, first.begin.get("world", 1))]
    return merge_ranks([first, *(read_rank(file) for file in files if file.is_file())])


def read_rank(path: Path) -> RankLog:
    """Read the log of one process; see `read_series`."""
    log, again = RankLog(), "modelscope watch --out FOLDER SCRIPT   writes a new one"
    for entry_number, (kind, entry) in enumerate(read_log(path), 1):
        if kind == "begin" and (version := entry.get("version", 1)) != VERSION:
            message = f"'{path}' is a log of version {version}, but this modelscope reads version {VERSION}"
            is_older = type(version) is int and version < VERSION
            raise CannotRunError(message, again if is_older else "pip install --upgrade modelscope-cli")
        try:
            log.take(kind, entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"entry {entry_number} of '{path}', '{kind}', was not written by watch"
            raise CannotRunError(message, again) from error
    return log


def merge_ranks(ranks: Sequence[RankLog]) -> RunSeries:
    first = ranks[0]
    names = list(first.types) + [key for rank in ranks[1:] for key in rank.types if key not in first.types]
    events = [event for rank in ranks for event in rank.events]
    return RunSeries(
        ranks=ranks,
        steps=max(rank.n_steps for rank in ranks),
        layers=tuple(_layer(key, order, ranks) for order, key in enumerate(names)),
        parameters=tuple(_parameter(key, first) for key in (first.trained | first.facts.stated)),
        loss=_scalars(ranks, lambda noted: [noted.loss]),
        lr=_scalars(ranks[:1], lambda noted: noted.lr),
        events=(*events, *find_other_ends(ranks), *find_same_data(ranks)),
        births=tuple(sorted((one for rank in ranks for one in rank.births), key=lambda one: one.step)),
        facts=replace(
            first.facts.to_facts(int((first.end or {}).get("backward", 0))), ranks=compare_weights(ranks)
        ),
    )


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


def _layer(key: LayerKey, order: int, ranks: Sequence[RankLog]) -> watch.WatchedLayer:
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
    return watch.WatchedLayer(
        model=model,
        name=name,
        type=next(rank.types[key] for rank in ranks if key in rank.types),
        order=order,
        call=call,
        series=watch.LayerSeries.of(
            tuple(steps),
            moments,
            _nine_digits,
            grad_norm=tuple(
                None if sums.grad_squares is None else _nine_digits(math.sqrt(sums.grad_squares))
                for sums in merged
            ),
            histogram=watch.Magnitudes(EDGES, tuple(sums.counts for sums in merged)),
            dead_fraction=_if_any(dead),
            channels=None if alive is None else len(alive),
            dead_channels=tuple(dead_in(alive or ())[:MOST_NAMED]),
            saturated_fraction=_if_any(saturated),
        ),
    )


def _if_any(values: watch.Series) -> watch.Series | None:
    return values if any(value is not None for value in values) else None


def _nine_digits(value: float) -> float:
    """Round to nine digits, the precision of the log."""
    return float(f"{value:.9g}")


def _parameter(key: ParameterKey, log: RankLog) -> watch.WatchedParameter:
    rows = log.parameters.get(key, {})
    series = watch.ParameterSeries(tuple(rows), *columns_of(rows, 3))
    shape, facts = log.facts.stated.get(key, ((), None))
    optimizer, shape = log.trained.get(key, ("", shape))
    return watch.WatchedParameter(key[0], key[1], optimizer, shape, series, facts)


def _scalars(
    ranks: Sequence[RankLog], read: Callable[[Scalars], list[float | None]]
) -> tuple[watch.ScalarSeries, ...]:
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
        watch.ScalarSeries(optimizer, tuple(found), tuple(found.values()), group)
        for (optimizer, group), found in means.items()
    )
