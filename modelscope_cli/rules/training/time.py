"""MS771 to MS776: what a training waits for, and memory that grows. Measured, and silent where little is lost."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from modelscope_cli.records.check import WARNING
from modelscope_cli.records.naming import counted, duration, percent
from modelscope_cli.records.training_facts import MemoryFacts, TimeFacts
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingSighting, training_rule

_LEAST_S = 5.0  # lost to one thing; below that nothing is worth a change
_LEAST_FIRST_S = 15.0  # of the first step: a busy machine makes any start slow
_LEAST_STEPS = 8
_OFTEN = 0.9  # of the steps
_LEAST_BYTES = 32 * 2**20  # of growth
_LEAST_SAMPLES, _SEGMENTS = 20, 8  # of the steps after the first quarter
_STEADY = 0.3  # of the mean growth, in each segment
_LEAST_KEPT = 16  # losses


def _time(case: Case) -> TimeFacts | None:
    time = case.facts.time
    return time if time is not None and time.steps >= _LEAST_STEPS and time.total else None


@training_rule("MS771", "waits-for-data", WARNING, 0.3, Link.SPEED)
def waits_for_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The model waits for data during much of each step.

    Measure: share of the time of all steps but the first, at least five seconds in all
    Source: measured; PyTorch, performance tuning guide: asynchronous data loading
    Hint: more workers, persistent_workers=True, or samples that load faster
    Why: the device is idle while it waits, and the run takes longer
    """
    time = _time(case)
    if time is None or time.share("data") <= threshold or time.seconds["data"] < _LEAST_S:
        return
    words = f"{percent(time.share('data'))} of each step waits for "
    if time.workers:
        words += f"{time.workers} worker{'s' * (time.workers > 1)}"
        hint = (
            f"DataLoader(num_workers={2 * time.workers}, persistent_workers=True), or make a sample quicker"
        )
    else:
        words += "data, which the training process loads itself"
        hint = "DataLoader(num_workers=4, persistent_workers=True), so that it loads while the model computes"
        if time.images:
            words += f": {duration(time.seconds['data'] / time.images)} an image"
    yield TrainingSighting(None, 1, time.share("data"), words, hint=hint)


@training_rule("MS772", "validates-too-long", WARNING, 1.0, Link.SPEED)
def validates_too_long(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Validation takes longer than the training itself.

    Measure: time of validation over that of data, forward, backward and optimizer; at least five seconds
    Source: measured; own reasoning
    Hint: validate more rarely, on fewer batches, or in larger ones
    Why: most of the time goes into measuring the model instead of training it
    """
    time = _time(case)
    if time is None or time.seconds.get("validation", 0.0) < _LEAST_S:
        return
    training = sum(time.seconds.get(part, 0.0) for part in ("data", "forward", "backward", "optimizer"))
    times = time.seconds["validation"] / training if training else 0.0
    if times > threshold:
        words = f"validation takes {times:.2g} times as long as the training itself"
        yield TrainingSighting(None, 1, times, words)


@training_rule("MS773", "first-step-takes-most", WARNING, 0.5, Link.SPEED)
def first_step_is_most(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The first step takes more than half of the time of all steps.

    Measure: share of the time of all steps; at least fifteen seconds
    Source: measured; torch.compile and the start of workers count here
    Hint: for a short run leave out torch.compile; persistent_workers=True keeps workers between epochs
    Why: compiling and starting workers only pay off in a longer run
    """
    time = _time(case)
    if time is None or time.first < _LEAST_FIRST_S:
        return
    share = time.first / (time.first + time.total)
    if share > threshold:
        words = f"the first step takes {duration(time.first)}, {percent(share)} of all steps"
        yield TrainingSighting(None, 0, share, words)


@training_rule("MS774", "synchronises-each-step", WARNING, 0.1, Link.SPEED)
def synchronises_each_step(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An accelerator is idle because the script waits for its results in each step.

    Measure: share of the time of all steps but the first, at least five seconds in all
    Source: measured; PyTorch, performance tuning guide: avoid unnecessary CPU-GPU synchronization
    Hint: read the loss every 50 steps, or that of the step before; keep loss.detach() until then
    Why: an accelerator is fast only while operations are queued, and reading a result empties the queue
    """
    time = _time(case)
    if time is None or time.waited < _OFTEN * time.steps or time.idle < _LEAST_S:
        return
    share = time.idle / time.total
    if share > threshold:
        words = f"an accelerator is idle during {percent(share)} of each step"
        words += ", after the script has waited for its results" + (f" at {time.place}" if time.place else "")
        yield TrainingSighting(None, 1, share, words, place=time.place)


@training_rule("MS775", "memory-grows", WARNING, 0.05, Link.SPEED)
def memory_grows(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Memory grows from step to step, or the graphs of all losses are kept.

    Measure: growth after the first quarter of the run over the memory then, at least 32 MiB, in each eighth
    Source: measured; PyTorch, frequently asked questions: do not accumulate history across your training loop
    Hint: look for what is appended in each step: outputs, hooks, a cache; keep numbers or detached tensors
    Why: a long run ends with an out-of-memory error, or slows down when the machine begins to swap
    """
    memory = case.facts.memory
    if memory is None:
        return
    grown = _steady_growth(memory)
    n_bytes, steps = grown or (0, 1)
    share = n_bytes / max(memory.bytes[-1] - n_bytes, 1) if grown else 0.0
    speed = (
        f"by {n_bytes / steps / 2**20:.2g} MiB a step, {n_bytes / 2**20:,.0f} MiB in {counted(steps, 'step')}"
    )
    if memory.marked >= _LEAST_KEPT and memory.kept >= _OFTEN * memory.marked:
        words = f"the graphs of {memory.kept} of {memory.marked} earlier losses still exist"
        words += f", and memory grows {speed}" if grown and share > threshold else ""
        hint = "losses.append(loss.item()), total += loss.item(), or loss.detach()"
        yield TrainingSighting(None, 1, memory.kept / memory.marked, words, hint=hint)
    elif grown and share > threshold and memory.in_data < 0.5:
        yield TrainingSighting(None, 1, share, f"memory grows in all parts of the run, {speed}")


def _steady_growth(memory: MemoryFacts) -> tuple[int, int] | None:
    """Return bytes and steps of the growth after the first quarter of a run; None unless it is steady."""
    first = len(memory.step) // 4
    step, in_use = memory.step[first:], memory.bytes[first:]
    if len(step) < _LEAST_SAMPLES:
        return None
    ends = [round(n * (len(step) - 1) / _SEGMENTS) for n in range(_SEGMENTS + 1)]
    grown, steps = in_use[-1] - in_use[0], step[-1] - step[0]
    if grown < _LEAST_BYTES:
        return None
    for begin, end in pairwise(ends):
        if in_use[end] - in_use[begin] < _STEADY * grown * (step[end] - step[begin]) / steps:
            return None
    return grown, steps


@training_rule("MS776", "slow-rank", WARNING, 0.2, Link.SPEED)
def slow_rank(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """One rank is slower than the others, which wait for it.

    Compare what each rank does itself: others wait for the slowest in the backward, or in a collective.

    Measure: time of its own work above the median of the other ranks, as a share of its time; at least five seconds
    Source: measured; own reasoning
    Hint: compare its data, its disk and its device with those of the others
    Why: all ranks take as long as the slowest, however many there are
    """
    ranks = case.facts.rank_times
    if len(ranks) < 2 or any(time.steps < _LEAST_STEPS or not time.total for time in ranks):
        return
    waits = [time.seconds.get("backward", 0.0) + time.seconds.get("ranks", 0.0) for time in ranks]
    own = [time.total - waited for time, waited in zip(ranks, waits, strict=True)]
    slow = max(range(len(ranks)), key=own.__getitem__)
    others = [n for n in range(len(ranks)) if n != slow]
    lost = own[slow] - median(own[n] for n in others)
    share = lost / ranks[slow].total
    is_waited_for = median(waits[n] for n in others) - waits[slow] > lost / 2
    if share <= threshold or lost < _LEAST_S or not is_waited_for:
        return

    def more(part: str) -> float:
        return ranks[slow].seconds.get(part, 0.0) - median(ranks[n].seconds.get(part, 0.0) for n in others)

    part = max(set(ranks[slow].seconds) - {"backward", "ranks"}, key=more)
    where = _WHERE.get(part, f"in {part}")
    words = f"rank {slow} takes {duration(lost / ranks[slow].steps)} more for each step than the others"
    words += f", mostly {where}, and they wait for it during {percent(share)} of the time"
    yield TrainingSighting(None, 1, share, words)


_WHERE = {
    "data": "waiting for data",
    "forward": "in the forward",
    "optimizer": "in the optimizer",
    "rest": "outside of forward, backward and optimizer",
    "watching": "being watched",
}
