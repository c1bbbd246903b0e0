"""MS746: several ranks that should hold the same weights, and do not. Certain, whatever the loss does."""

from collections.abc import Iterator

from modelscope_cli.records.check import ERROR
from modelscope_cli.rules.training.case import Case, Link, TrainingRule, TrainingSighting


def ranks_disagree(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    found = case.facts.ranks.disagreement if case.facts.ranks is not None else None
    if found is not None:
        place = found.model, found.name
        row = next((one for one in case.course.parameters if (one.model, one.name) == place), None)
        yield TrainingSighting(row, found.step, found.distance, found.message, found.place, hint=found.cure)


RULES = (
    TrainingRule(
        code="MS746",
        name="ranks-disagree",
        severity=ERROR,
        sentence="several ranks that should hold the same weights hold different ones",
        threshold=1e-6,
        measure="by which share of their size the weights of two ranks differ",
        source="certain: DistributedDataParallel, or averaged gradients, keep every copy the same to the last bit",
        hint="treat weights, gradients and steps alike on every rank",
        link=Link.BOOKKEEPING,
        judge=ranks_disagree,
    ),
)
