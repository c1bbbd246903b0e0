"""MS771 to MS776: what a training waits for, and memory that grows. Measured, and silent where little is lost."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from modelscope_cli.records.check import WARNING
from modelscope_cli.records.naming import counted
from modelscope_cli.records.training_facts import MemoryFacts, TimeFacts
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingRule, TrainingSighting

_LEAST_S = 5.0  # lost to one thing; below that nothing is worth a change
_LEAST_STEPS = 8
_OFTEN = 0.9  # of the steps
_LEAST_BYTES = 32 * 2**20  # of growth
_LEAST_SAMPLES, _SEGMENTS = 20, 8  # of the steps after the first quarter
_STEADY = 0.3  # of the mean growth, in each segment
_LEAST_KEPT = 16  # losses


def _time(case: Case) -> TimeFacts | None:
    time = case.facts.time
    return time if time is not None and time.steps >= _LEAST_STEPS and time.total else None


def waits_for_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.share("data") <= threshold or time.seconds["data"] < _LEAST_S:
        return
    words = f"{time.share('data'):.0%} of each step waits for "
    if time.workers:
        words += f"{time.workers} worker{'s' * (time.workers > 1)}"
        hint = (
            f"DataLoader(num_workers={2 * time.workers}, persistent_workers=True), or make a sample quicker"
        )
    else:
        words += "data, which the training itself loads"
        hint = "DataLoader(num_workers=4, persistent_workers=True), so that it loads while the model computes"
        if time.images:
            words += f": {1000 * time.seconds['data'] / time.images:.3g} ms an image"
    yield TrainingSighting(None, 1, time.share("data"), words, hint=hint)


def validates_too_long(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.seconds.get("validation", 0.0) < _LEAST_S:
        return
    training = sum(time.seconds.get(part, 0.0) for part in ("data", "forward", "backward", "optimizer"))
    times = time.seconds["validation"] / training if training else 0.0
    if times > threshold:
        words = f"validation takes {times:.2g} times as long as the training itself"
        yield TrainingSighting(None, 1, times, words)


def first_step_is_most(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.first < _LEAST_S:
        return
    share = time.first / (time.first + time.total)
    if share > threshold:
        words = f"the first step takes {time.first:.3g} s, {share:.0%} of all steps"
        yield TrainingSighting(None, 0, share, words)


def synchronises_each_step(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.waited < _OFTEN * time.steps or time.idle < _LEAST_S:
        return
    share = time.idle / time.total
    if share > threshold:
        words = f"an accelerator has nothing to do during {share:.0%} of each step"
        words += ", after the script has waited for its results" + (f" at {time.place}" if time.place else "")
        yield TrainingSighting(None, 1, share, words, place=time.place)


def memory_grows(case: Case, threshold: float) -> Iterator[TrainingSighting]:
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


def slow_rank(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Compare what each rank does itself: others wait for the slowest in the backward, or in a collective."""
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
    words = f"rank {slow} takes {1000 * lost / ranks[slow].steps:.3g} ms more for each step than the others"
    words += f", mostly {where}, and they wait for it during {share:.0%} of the time"
    yield TrainingSighting(None, 1, share, words)


_WHERE = {
    "data": "waiting for data",
    "forward": "in the forward",
    "optimizer": "in the optimizer",
    "rest": "outside of forward, backward and optimizer",
    "watching": "being watched",
}


RULES = (
    TrainingRule(
        code="MS771",
        name="waits-for-data",
        severity=WARNING,
        sentence="the model waits for data during much of each step",
        threshold=0.3,
        measure="share of the time of all steps but the first, at least five seconds in all",
        source="measured; PyTorch, performance tuning guide: asynchronous data loading",
        hint="more workers, persistent_workers=True, or samples that are made quicker",
        link=Link.WIRING,
        judge=waits_for_data,
    ),
    TrainingRule(
        code="MS772",
        name="validates-too-long",
        severity=WARNING,
        sentence="validation takes longer than the training itself",
        threshold=1.0,
        measure="time of validation over that of data, forward, backward and optimizer; at least five seconds",
        source="measured; own reasoning",
        hint="validate more rarely, on fewer batches, or in larger ones",
        link=Link.WIRING,
        judge=validates_too_long,
    ),
    TrainingRule(
        code="MS773",
        name="first-step-takes-most",
        severity=WARNING,
        sentence="the first step takes more than half of the time of all steps",
        threshold=0.5,
        measure="share of the time of all steps; at least five seconds",
        source="measured; torch.compile and the start of workers count here",
        hint="for a short run leave out torch.compile; persistent_workers=True keeps workers between epochs",
        link=Link.WIRING,
        judge=first_step_is_most,
    ),
    TrainingRule(
        code="MS774",
        name="synchronises-each-step",
        severity=WARNING,
        sentence="an accelerator has nothing to do, as the script waits for its results in each step",
        threshold=0.1,
        measure="share of the time of all steps but the first, at least five seconds in all",
        source="measured; PyTorch, performance tuning guide: avoid unnecessary CPU-GPU synchronization",
        hint="read the loss every 50 steps, or that of the step before; keep loss.detach() until then",
        link=Link.WIRING,
        judge=synchronises_each_step,
    ),
    TrainingRule(
        code="MS775",
        name="memory-grows",
        severity=WARNING,
        sentence="memory grows from step to step, or the graphs of all losses are kept",
        threshold=0.05,
        measure="growth after the first quarter of the run over the memory then, at least 32 MiB, in each eighth",
        source="measured; PyTorch, frequently asked questions: do not accumulate history across your training loop",
        hint="look for what is appended in each step: outputs, hooks, a cache; keep numbers or detached tensors",
        link=Link.WIRING,
        judge=memory_grows,
    ),
    TrainingRule(
        code="MS776",
        name="slow-rank",
        severity=WARNING,
        sentence="one rank is slower than the others, which wait for it",
        threshold=0.2,
        measure="what it does itself beyond the median of the others, over its time; at least five seconds",
        source="measured; own reasoning",
        hint="compare its data, its disk and its device with those of the others",
        link=Link.WIRING,
        judge=slow_rank,
    ),
)
